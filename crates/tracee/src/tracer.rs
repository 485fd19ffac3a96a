//! The tracing thread.
//!
//! The kernel ties tracees to the *thread* that seized them, and resumes them all when it ends. So each stop
//! has its own tracing thread, and the end of that thread guarantees that no tracee stays behind. This
//! includes threads that never came to a stop (vfork parents), which no call can detach.
//!
//! The thread ends when every interrupted thread has come to rest and been resumed. If that takes long, the
//! thread lingers. This holds for a job that panics, too.
//!
//! While a seize waits for an exec (see `reaper`), the thread that waits for the tracing thread reaps.

use crate::group::Group;
use crate::linger;
use crate::priority::Raised;
use crate::{Error, Process, reaper};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

type Job = Box<dyn FnOnce(&mut Group) + Send>;

/// The name of tracing threads, by which another whet recognizes them.
pub(crate) const TRACER_NAME: &str = "whet-tracer";

/// A seize that lasts longer than this, or twice this, waits for an exec. Others take some microseconds.
const LONG_SEIZE: Duration = Duration::from_millis(5);

/// A handle to the thread. When it is dropped, all threads that can be are resumed, and the thread has ended
/// or lingers.
#[derive(Debug)]
pub(crate) struct Tracer {
    process: Process,
    seizes: Arc<AtomicU64>,
    jobs: Option<Sender<Job>>,
    /// Receives a message when the thread lingers; closed when it will not linger any more.
    lingers: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Starts a thread for `group`.
    pub(crate) fn start(mut group: Group) -> Result<Self, Error> {
        let (process, seizes) = (group.process.clone(), Arc::clone(&group.seizes));
        let (jobs, inbox) = channel::<Job>();
        let (lingering, lingers) = channel();
        let body = move || {
            let raised = Raised::own();
            // A panic ends the jobs: its caller and later ones get an error.
            let _ = catch_unwind(AssertUnwindSafe(|| inbox.into_iter().for_each(|job| job(&mut group))));
            if !group.insist(Group::wind_down) && !group.is_child() {
                // No caller waits for this any more.
                drop(raised);
                let end = linger::begin();
                let _ = lingering.send(());
                group.insist(|group| group.linger(&end));
            }
        };
        let thread = std::thread::Builder::new().name(TRACER_NAME.into()).spawn(body);
        let thread = Some(thread.map_err(|_| Error::TracerLost)?);
        Ok(Self { process, seizes, jobs: Some(jobs), lingers, thread })
    }

    /// Runs a job in the thread. If it fails because the process has ended, the error is [`Error::Gone`].
    pub(crate) fn run<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Group) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        self.call(job)?.map_err(|e| self.process.cause(e))
    }

    /// Runs a job in the thread, and returns its result of any type.
    pub(crate) fn call<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Group) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let (answer, result) = channel();
        let job: Job = Box::new(move |group| {
            let r = job(group);
            // There is no receiver only if the caller has ended.
            let _ = answer.send(r);
        });
        self.jobs.as_ref().ok_or(Error::TracerLost)?.send(job).map_err(|_| Error::TracerLost)?;
        let mut last = 0;
        loop {
            match result.recv_timeout(LONG_SEIZE) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(Error::TracerLost),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = self.seizes.load(Ordering::Relaxed);
            if now % 2 == 1 && now == last {
                reaper::reap_all(&self.process);
            }
            last = now;
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && self.lingers.recv().is_err()
        {
            // After a panic there the kernel has resumed everything.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience::Patience;
    use crate::{Pid, Tid};
    use std::collections::BTreeMap;
    use std::process::{Child, Command};
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

    /// A program with three threads in `epoll_wait`. A thread whose call fails with `EINTR` waits again, for less time.
    struct Waiting {
        child: Child,
        process: Process,
    }

    impl Waiting {
        fn start() -> Self {
            let script = "import select, threading\n\
                          for _ in range(3): threading.Thread(target=lambda: select.epoll().poll(120)).start()";
            let child = Command::new("python3").args(["-c", script]).spawn().unwrap();
            let pid = Pid(i32::try_from(child.id()).unwrap());
            let mut waiting = Self { child, process: Process::open(pid).unwrap() };
            waiting.until(|limits| limits.len() == 3);
            // python3 may be a script that has started the program.
            waiting.process = Process::open(pid).unwrap();
            waiting
        }

        /// Returns the time limits of the waits, in milliseconds.
        fn limits(&self) -> BTreeMap<Tid, u64> {
            let limit = |tid: Tid| {
                let text = self.process.text(&format!("task/{tid}/syscall")).ok()?;
                let (nr, args) = text.split_once(' ')?;
                let limit = args.split(' ').nth(3)?.strip_prefix("0x")?;
                let waits = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait].contains(&nr.parse().ok()?);
                waits.then(|| (tid, u64::from_str_radix(limit, 16).unwrap()))
            };
            self.process.threads().unwrap().into_iter().filter_map(limit).collect()
        }

        fn until(&self, holds: impl Fn(&BTreeMap<Tid, u64>) -> bool) {
            let since = Instant::now();
            while !holds(&self.limits()) {
                assert!(since.elapsed() < LONG, "{:?}", self.limits());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }

    /// Stops a program, and panics as it resumes one of its threads. Checks that only this thread notices.
    fn panics_for_one(last: impl FnOnce(&Tracer)) {
        let waiting = Waiting::start();
        let before = waiting.limits();
        let first = *before.keys().next().unwrap();
        let mut group = Group::new(&waiting.process, false);
        group.panics_for = Some(first);
        let tracer = Tracer::start(group).unwrap();
        let stop = |group: &mut Group| {
            group.seize_all()?;
            Ok(group.stop_all(Patience::from(LONG)))
        };
        tracer.run(stop).unwrap().unwrap();
        // So that the thread has less time to wait.
        std::thread::sleep(Duration::from_millis(5));
        last(&tracer);
        drop(tracer);
        let is_right = |(tid, limit): (&Tid, &u64)| match *tid == first {
            true => limit < &before[tid],
            false => limit == &before[tid],
        };
        waiting.until(|limits| limits.len() == 3 && limits.iter().all(is_right));
        for tid in waiting.process.threads().unwrap() {
            assert_eq!(waiting.process.thread_status(tid).unwrap().tracer_pid, 0);
        }
    }

    #[test]
    fn a_panic_in_a_release_is_felt_by_one_thread() {
        panics_for_one(|tracer| assert!(matches!(tracer.call(Group::release), Err(Error::TracerLost))));
    }

    #[test]
    fn a_panic_in_a_job_and_then_in_the_release_is_felt_by_one_thread() {
        panics_for_one(|tracer| {
            let answer = tracer.call(|_| panic!("on purpose"));
            assert!(matches!(answer, Err::<(), _>(Error::TracerLost)));
        });
    }

    #[test]
    fn a_panic_in_the_release_at_the_end_is_felt_by_one_thread() {
        panics_for_one(|_| {});
    }
}
