//! Sends a thread into the slot that finishes its call.
//!
//! Registers change at once and a slot needs no tracer. So if whet dies at any instant, the thread finishes
//! its call.
//!
//! A call that has moved a part must end with that part as soon as a signal handler runs, even if the
//! handler's signal restarts calls (`SA_RESTART`). The kernel decides by the address behind the call. So such
//! a thread is followed to the entry of its call in the slot. There it gets the address from which the kernel
//! does not restart the call. If whet dies in between, the call continues after a handler with `SA_RESTART`.
//! From the entry on the thread stays a tracee until the tracing thread ends. To detach it, whet would have
//! to stop it, which would wake it out of the call. During that time an ignored signal would end the call as
//! well. So threads are followed only if their process has handlers, or may get a handler of its C library at
//! any time.
//!
//! Waits are followed where a C library finds out by the program counter whether a cancelled thread waits
//! (musl, and glibc from 2.41). Between the restart of the call and its `syscall` instruction, the
//! cancellation's handler would find a program counter in the slot. It would treat the thread as not waiting,
//! and the call would begin. A followed thread's call ends with `EINTR` instead, by which these libraries
//! cancel too.

use crate::group::{Group, Thread};
use crate::ptrace::{self, Stop};
use crate::rest::{self, Rest};
use crate::slots::Slot;
use crate::{Regs, Sig, Status, Tid, seccomp};

/// A thread that was sent into a slot, and is followed there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entering {
    slot: Slot,
    /// Whether its call has moved a part.
    moves: bool,
    /// The registers with which the call ends if a handler runs before the call begins. For a transfer: behind
    /// the call, with what it has moved. For a wait: in the slot, where the kernel ends the wait.
    early: Regs,
    /// The call has begun. The thread needs only the end of the tracing thread.
    pub(crate) there: bool,
}

impl Group {
    /// Lets a thread at rest finish its call in a slot and returns the slot. Without a slot the thread is
    /// resumed as it is.
    pub(crate) fn finish(&mut self, tid: Tid, rest: &Rest) -> Option<Slot> {
        if let Some(slot) = rest.slot().filter(|_| rest.ends()) {
            if ptrace::set_regs(tid, &rest.part()).is_ok() {
                slot.free(&self.process);
            }
            self.detach(tid, None);
            return None;
        }
        let entered = self.enter(tid, rest);
        if entered.is_none() {
            self.let_go_as_is(tid);
        }
        entered
    }

    /// Sends a thread into a slot; `None` if nothing was done.
    fn enter(&mut self, tid: Tid, rest: &Rest) -> Option<Slot> {
        let status = self.process.thread_status(tid).ok()?;
        let slot = match rest.slot() {
            Some(slot) => slot,
            None => self.slot(rest.pieces(), &status)?,
        };
        let regs = rest.enter(&self.process, slot).filter(|regs| may_call(tid, &status, regs));
        let Some(regs) = regs.filter(|regs| ptrace::set_regs(tid, regs).is_ok()) else {
            if rest.slot().is_none() {
                slot.free(&self.process);
            }
            return None;
        };
        self.cured += 1;
        // The handler by which a C library cancels threads restarts calls, and may be installed at any time.
        let moves = rest.moves();
        let handled = moves && status.has_handlers() || !self.process.cancels_anywhere();
        if handled && regs.syscall().is_some() && ptrace::to_syscall(tid, None).is_ok() {
            let early = if moves { rest.part() } else { regs };
            self.threads.insert(tid, Thread::entering(Entering { slot, moves, early, there: false }));
        } else {
            self.detach(tid, None);
        }
        Some(slot)
    }

    /// Handles a stop of a thread on its way into a slot.
    pub(crate) fn entered(&mut self, tid: Tid, entering: Entering, stop: Stop) {
        let Entering { slot, moves, early, there } = entering;
        let Ok(mut regs) = ptrace::regs(tid) else { return self.detach(tid, None) };
        let under_way = regs.ip() == slot.behind() || regs.ip() == slot.entry();
        match stop {
            Stop::Syscall if !there && regs.ip() == slot.behind() => {
                if moves {
                    regs.0.rip = slot.once().0;
                    // On failure the thread continues without this address, as it would if whet died.
                    let _ = ptrace::set_regs(tid, &regs);
                }
                match ptrace::cont(tid, None) {
                    Ok(()) => {
                        self.threads.insert(tid, Thread::entering(Entering { there: true, ..entering }));
                    }
                    Err(_) => self.detach(tid, None),
                }
            }
            Stop::Signal(sig) if !self.catches(tid, sig) => {
                // While traced, even ignored signals wake a thread out of its call.
                let on = match there || !under_way {
                    true => {
                        self.threads.insert(tid, Thread::dismissed());
                        ptrace::interrupt(tid).and_then(|()| ptrace::cont(tid, Some(sig)))
                    }
                    false => ptrace::to_syscall(tid, Some(sig)),
                };
                if on.is_err() {
                    self.detach(tid, Some(sig));
                }
            }
            Stop::Signal(sig) if !there && under_way => {
                // The handler runs after the call, which ends as if only the signal had interrupted it.
                if ptrace::set_regs(tid, &early).is_ok() && moves {
                    slot.free(&self.process);
                }
                self.detach(tid, Some(sig));
            }
            Stop::Signal(sig) => self.detach(tid, Some(sig)),
            _ => self.detach(tid, None),
        }
    }

    /// Returns whether a signal has a handler; true if that cannot be determined.
    fn catches(&self, tid: Tid, sig: Sig) -> bool {
        let bit = 1u64 << (sig.0 - 1).rem_euclid(64);
        self.process.thread_status(tid).map_or(true, |s| s.sig_cgt & bit != 0)
    }
}

/// Returns whether the thread's filters allow the call that these registers make.
fn may_call(tid: Tid, status: &Status, regs: &Regs) -> bool {
    let call = |nr| seccomp::Call { nr, ip: regs.ip(), args: rest::args(regs) };
    regs.syscall().is_none_or(|nr| seccomp::allows(tid, status, call(nr)))
}
