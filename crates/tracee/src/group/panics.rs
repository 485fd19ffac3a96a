//! Panics in the tracing thread, which are faults of whet.
//!
//! INVARIANT(panic): a panic in the work that [`Group::on`] does on one thread does not touch the others. It ends the
//! job, whose caller gets an error; then all other threads are resumed as if they had not been stopped. The thread
//! itself is only detached, after them: a wait that its stop has ended fails with `EINTR`.
//!
//! This escapes system calls that whet makes on a thread (see `remote`), and work that is no single thread's: after such
//! a panic the end of the tracing thread resumes what is left.

use super::Group;
use crate::Tid;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

impl Group {
    /// Works on one thread. A panic in there counts as that thread's.
    pub(super) fn on<R>(&mut self, tid: Tid, work: impl FnOnce(&mut Self) -> R) -> R {
        let outer = self.at.replace(tid);
        let result = work(self);
        self.at = outer;
        result
    }

    /// Does work that can be begun again. After a panic that is a thread's, it is begun again without this thread.
    ///
    /// # Panics
    /// Any other panic goes on.
    pub(crate) fn insist<R>(&mut self, work: impl Fn(&mut Self) -> R) -> R {
        // The thread of a job that has panicked.
        self.set_apart();
        loop {
            match catch_unwind(AssertUnwindSafe(|| work(self))) {
                Ok(result) => return result,
                Err(panic) if !self.set_apart() => resume_unwind(panic),
                Err(_) => {}
            }
        }
    }

    /// Sets apart the thread of the last panic. Returns whether it is another one than before.
    fn set_apart(&mut self) -> bool {
        self.place = None;
        self.at.take().is_some_and(|tid| self.faulty.insert(tid))
    }
}
