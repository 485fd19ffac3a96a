//! The thread that traces.
//!
//! The kernel ties tracees to the *thread* that seized them, and lets them all go on when it ends. So each stop has a
//! thread of its own, and its end is the guarantee that nothing stays behind: also threads that never came to a stop
//! (vfork parents), which no call can detach.

use crate::Error;
use crate::group::Group;
use crate::priority::Raised;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce(&mut Group) + Send>;

/// A handle to the thread; dropped, all is let go and the thread has ended.
#[derive(Debug)]
pub(crate) struct Tracer {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Starts a thread for `group`.
    pub(crate) fn start(group: Group) -> Result<Self, Error> {
        let (jobs, inbox) = channel::<Job>();
        let body = move || {
            let _raised = Raised::own();
            // Declared after the priority, so dropped before it.
            let mut group = group;
            for job in inbox {
                job(&mut group);
            }
            // Here, or by unwinding: the group is dropped and lets go in order, then the thread ends.
        };
        let thread = std::thread::Builder::new().name("whet-tracer".into()).spawn(body);
        Ok(Self { jobs: Some(jobs), thread: Some(thread.map_err(|_| Error::TracerLost)?) })
    }

    /// Has the thread do something.
    pub(crate) fn run<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Group) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        self.ask(job)?
    }

    /// Has the thread do something, whatever the result is.
    pub(crate) fn ask<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Group) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let (answer, result) = channel();
        let job: Job = Box::new(move |group| {
            let r = job(group);
            // Nobody waits for the answer only if the asker is gone.
            let _ = answer.send(r);
        });
        self.jobs.as_ref().ok_or(Error::TracerLost)?.send(job).map_err(|_| Error::TracerLost)?;
        result.recv().map_err(|_| Error::TracerLost)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has let go of everything too, and was told by whoever asked.
            let _ = thread.join();
        }
    }
}
