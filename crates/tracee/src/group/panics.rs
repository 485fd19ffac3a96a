//! Panics in the tracing thread, which are faults of whet.
//!
//! INVARIANT(panic): whet looks at a thread, runs calls in it and resumes it in [`Group::on`]. A panic in there does not
//! touch the other threads. It ends the job, whose caller gets an error; then all other threads are resumed as if they
//! had not been stopped. The thread itself is only detached, after them: a wait that its stop has ended fails with
//! `EINTR`. In the middle of a system call of whet, its return frame leads it back, as if whet had died.
//!
//! After a panic in work that is no single thread's, each thread at rest is resumed as if it had not been stopped. Only if
//! transfers cannot be finished, each ends with what it has moved. The end of the tracing thread resumes what is left:
//! threads that did not come to rest, and whose waits may fail with `EINTR`.

use super::resuming::REENTRY;
use super::{Group, NAP};
use crate::Tid;
use crate::ptrace::Stop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

impl Group {
    /// Works on one thread. A panic in there counts as that thread's.
    pub(crate) fn on<R>(&mut self, tid: Tid, work: impl FnOnce(&mut Self) -> R) -> R {
        let outer = self.at.replace(tid);
        let result = work(self);
        self.at = outer;
        result
    }

    /// Does work that can be begun again. After a panic that is a thread's, it is begun again without this thread.
    ///
    /// # Panics
    /// Any other panic goes on, when all sound threads at rest are resumed.
    pub(crate) fn insist<R>(&mut self, work: impl Fn(&mut Self) -> R) -> R {
        // The thread of a job that has panicked.
        self.set_apart();
        self.begin_again(work).unwrap_or_else(|panic| {
            self.let_each_go();
            resume_unwind(panic)
        })
    }

    /// As [`Group::insist`], but returns any other panic.
    fn begin_again<R>(&mut self, work: impl Fn(&mut Self) -> R) -> std::thread::Result<R> {
        loop {
            let end = catch_unwind(AssertUnwindSafe(|| work(self)));
            if end.is_ok() || !self.set_apart() {
                return end;
            }
        }
    }

    /// Sets apart the thread of the last panic. Returns whether it is another one than before.
    fn set_apart(&mut self) -> bool {
        self.place = None;
        self.at.take().is_some_and(|tid| self.faulty.insert(tid))
    }

    /// Resumes each sound thread at rest by itself, when the transfers are finished.
    fn let_each_go(&mut self) {
        let in_order = self.begin_again(Self::finish_transfers).is_ok();
        let _ = self.begin_again(|group| {
            for (tid, regs) in group.sound().collect::<Vec<_>>() {
                // In another order, a transfer could go on with another file.
                match !in_order && regs.syscall().is_some() && regs.result() > 0 {
                    true => group.on(tid, |group| group.detach(tid, None)),
                    false => group.let_go(tid),
                }
            }
        });
        let since = Instant::now();
        let _ = self.begin_again(|group| {
            while group.is_following() && since.elapsed() < REENTRY {
                let _ = group.pump();
                std::thread::sleep(NAP);
            }
        });
    }

    /// Ends the tracing of a thread at which whet has panicked. A thread or process that it has created is stopped until
    /// it is known.
    pub(super) fn let_faulty_go(&mut self, tid: Tid, stop: Stop) {
        if matches!(stop, Stop::Clone | Stop::Vfork) {
            let _ = catch_unwind(AssertUnwindSafe(|| self.created(tid, stop)));
        }
        let signal = if let Stop::Signal(sig) = stop { Some(sig) } else { None };
        self.detach(tid, signal);
    }
}

/// The point at which a test makes this thread panic, once.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct Spot(std::cell::Cell<Option<Point>>);

#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Point {
    /// Before the rest of a thread's call is determined.
    Rest(Tid),
    /// While a system call of whet runs.
    Call,
    /// Before the first transfer is finished.
    Transfers,
    /// Before a new thread is known.
    Created,
}

#[cfg(test)]
impl Spot {
    fn set(&self, point: Point) {
        self.0.set(Some(point));
    }

    pub(crate) fn reach(&self, point: Point) {
        if self.0.get() == Some(point) {
            self.0.set(None);
            panic!("on purpose");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience::Patience;
    use crate::remote::Gadgets;
    use crate::tracer::Tracer;
    use crate::{Error, Pid, Process};
    use std::collections::BTreeMap;
    use std::process::{Child, Command};
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);
    /// How long a system call of whet takes in which it panics. Milliseconds.
    const CALL: u64 = 300;

    /// A program with three threads in `epoll_wait`. A thread whose call fails with `EINTR` waits again, for less time.
    struct Waiting {
        child: Child,
        process: Process,
    }

    impl Waiting {
        fn start() -> Self {
            Self::start_with("")
        }

        /// With more that the first thread does.
        fn start_with(more: &str) -> Self {
            let script = format!(
                "import select, threading\n\
                 for _ in range(3): threading.Thread(target=lambda: select.epoll().poll(120)).start()\n{more}"
            );
            let child = Command::new("python3").args(["-c", &script]).spawn().unwrap();
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

    fn stop(group: &mut Group) {
        group.seize_all().unwrap();
        group.stop_all(Patience::from(LONG)).unwrap();
        // So that a thread that begins its wait again has less time to wait.
        std::thread::sleep(Duration::from_millis(5));
    }

    /// Starts a tracer for a group that panics at `point`.
    fn tracer(waiting: &Waiting, point: Point) -> Tracer {
        let group = Group::new(&waiting.process, false);
        group.panics_at.set(point);
        Tracer::start(group).unwrap()
    }

    /// Ends a group as its tracing thread does, and returns whether that panicked.
    fn ends_with_panic(group: &mut Group) -> bool {
        let since = Instant::now();
        while since.elapsed() < LONG {
            match catch_unwind(AssertUnwindSafe(|| group.insist(Group::wind_down))) {
                // Some threads wait for a CPU.
                Ok(false) => {}
                end => return end.is_err(),
            }
        }
        panic!("threads do not come to rest");
    }

    fn are_untraced(process: &Process) -> bool {
        let is_untraced = |tid| process.thread_status(tid).is_ok_and(|s| s.tracer_pid == 0);
        process.threads().unwrap().into_iter().all(is_untraced)
    }

    /// Checks that all threads run untraced and block no signal, and that at most one has noticed its stop.
    fn is_felt_by(noticed: Option<Tid>, waiting: &Waiting, before: &BTreeMap<Tid, u64>) {
        let is_right = |(tid, limit): (&Tid, &u64)| match Some(*tid) == noticed {
            true => limit < &before[tid],
            false => limit == &before[tid],
        };
        waiting.until(|limits| limits.len() == 3 && limits.iter().all(is_right));
        assert!(are_untraced(&waiting.process));
        for tid in waiting.process.threads().unwrap() {
            assert_eq!(waiting.process.thread_status(tid).unwrap().sig_blk, 0);
        }
    }

    /// Stops a program, and panics as it resumes one of its threads. Checks that only this thread notices.
    fn panics_for_one(last: impl FnOnce(&Tracer)) {
        let waiting = Waiting::start();
        let before = waiting.limits();
        let first = *before.keys().next().unwrap();
        let tracer = tracer(&waiting, Point::Rest(first));
        tracer.call(stop).unwrap();
        last(&tracer);
        drop(tracer);
        is_felt_by(Some(first), &waiting, &before);
    }

    /// Panics while a thread runs a system call of whet. The release begins after `pause`. Its return frame leads the
    /// thread back into its wait.
    fn panics_in_call(pause: Duration) {
        let waiting = Waiting::start();
        let before = waiting.limits();
        let first = *before.keys().next().unwrap();
        let gadgets = Gadgets::of(&waiting.process).unwrap();
        let tracer = tracer(&waiting, Point::Call);
        tracer.call(stop).unwrap();
        let job = move |group: &mut Group| {
            let call = || group.syscall(first, gadgets, libc::SYS_poll, [0, 0, CALL, 0, 0, 0]);
            catch_unwind(AssertUnwindSafe(call)).unwrap_err();
            std::thread::sleep(pause);
            assert!(!ends_with_panic(group));
            assert!(group.faulty.contains(&first));
        };
        tracer.call(job).unwrap();
        is_felt_by(None, &waiting, &before);
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

    #[test]
    fn a_panic_while_a_system_call_runs_is_felt_by_none() {
        panics_in_call(Duration::ZERO);
    }

    #[test]
    fn a_panic_at_the_end_of_a_system_call_is_felt_by_none() {
        panics_in_call(Duration::from_millis(2 * CALL));
    }

    #[test]
    fn a_panic_that_is_no_threads_is_felt_by_none() {
        let waiting = Waiting::start();
        let before = waiting.limits();
        let tracer = tracer(&waiting, Point::Transfers);
        tracer.call(stop).unwrap();
        assert!(tracer.call(ends_with_panic).unwrap());
        is_felt_by(None, &waiting, &before);
    }

    #[test]
    fn after_a_panic_at_its_creator_a_new_thread_runs() {
        let waiting = Waiting::start_with("while True: threading.Thread(target=lambda: None).start()");
        let tracer = tracer(&waiting, Point::Created);
        let job = |group: &mut Group| {
            let panics = |group: &mut Group, work: fn(&mut Group)| {
                catch_unwind(AssertUnwindSafe(|| work(group))).is_err()
            };
            if !panics(group, |group| group.seize_all().unwrap()) {
                let since = Instant::now();
                while !panics(group, |group| assert!(group.pump().is_ok())) {
                    assert!(since.elapsed() < LONG);
                }
            }
            // What a stop of all threads does first.
            group.since = Some(Instant::now());
            group.threads.keys().for_each(|&tid| group.interrupt(tid).unwrap());
            assert!(!ends_with_panic(group));
            assert_eq!(group.faulty.len(), 1);
        };
        tracer.call(job).unwrap();
        let since = Instant::now();
        while !are_untraced(&waiting.process) {
            assert!(since.elapsed() < LONG);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
