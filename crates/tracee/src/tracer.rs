//! The thread that traces.
//!
//! The kernel ties tracees to the *thread* that seized them, and lets them all go on when it ends. So each stop has a
//! thread of its own, and its end is the guarantee that nothing stays behind: also threads that never came to a stop
//! (vfork parents), which no call can detach.
//!
//! It ends when every thread that was interrupted has come to rest and been let go, or may do so only in a while: then
//! it lingers.

use crate::group::Group;
use crate::linger;
use crate::priority::Raised;
use crate::{Error, Process};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce(&mut Group) + Send>;

/// The name of threads that trace, by which another whet knows them.
pub const TRACER_NAME: &str = "whet-tracer";

/// A handle to the thread; dropped, all is let go that can be, and the thread has ended or lingers.
#[derive(Debug)]
pub(crate) struct Tracer {
    process: Process,
    jobs: Option<Sender<Job>>,
    /// Tells that it lingers, or that it will not any more.
    lingers: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Starts a thread for `group`.
    pub(crate) fn start(group: Group) -> Result<Self, Error> {
        let process = group.process.clone();
        let (jobs, inbox) = channel::<Job>();
        let (lingering, lingers) = channel();
        let body = move || {
            let raised = Raised::own();
            // Declared after the priority, so dropped before it.
            let mut group = group;
            for job in inbox {
                job(&mut group);
            }
            if !group.wind_down() && !group.is_child() {
                // Nobody waits for this any more.
                drop(raised);
                let end = linger::begin();
                let _ = lingering.send(());
                group.linger(&end);
            }
            // Here, or by unwinding: the group is dropped and lets go in order, then the thread ends.
        };
        let thread = std::thread::Builder::new().name(TRACER_NAME.into()).spawn(body);
        let thread = Some(thread.map_err(|_| Error::TracerLost)?);
        Ok(Self { process, jobs: Some(jobs), lingers, thread })
    }

    /// Has the thread do something. A failure because the process has ended is called that.
    pub(crate) fn run<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Group) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        self.ask(job)?.map_err(|e| self.process.cause(e))
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
        if let Some(thread) = self.thread.take()
            && self.lingers.recv().is_err()
        {
            // A panic there has let go of everything too, and was told by whoever asked.
            let _ = thread.join();
        }
    }
}
