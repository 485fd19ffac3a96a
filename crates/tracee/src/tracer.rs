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
