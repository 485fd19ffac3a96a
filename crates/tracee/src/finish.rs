//! Leading a thread into the slot that finishes its call.
//!
//! Registers change at once and a slot needs nobody, so our death at any instant leaves a thread that finishes its call.
//!
//! A call that has moved something must end with that as soon as a signal handler runs, even one whose signal restarts calls
//! (`SA_RESTART`). The kernel decides by the address behind the call. So such a thread is followed to the entry of its
//! call in the slot, where it gets the address from which there is no restart. Should we die in between, a
//! handler of that kind lets the call go on. From there it goes on as a tracee until the tracing thread ends: to be let
//! go at a stop inside of a call would wake it out of the call. In that moment an ignored signal would end the call, too,
//! so only threads of processes that have handlers are followed, or may get one of their C library's at any time.
//!
//! Waits are followed where a C library finds out by the program counter whether a cancelled thread waits (musl, and glibc
//! from 2.41). The handler of its signal would run in a slot between the restart of the call and its `syscall`
//! instruction, see no wait there, and let the call begin. A thread that is followed has the call end with `EINTR` then, by
//! which these libraries cancel as well.

use crate::group::{Group, Thread};
use crate::ptrace::{self, Stop};
use crate::rest::{self, Rest};
use crate::slots::Slot;
use crate::{Regs, Sig, Status, Tid, seccomp};

/// A thread that was sent into a slot, and is followed there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entering {
    slot: Slot,
    /// Whether its call has moved something.
    moves: bool,
    /// The registers with which its call ends, should a handler run before the call begins: of a transfer those behind the
    /// call with what it has moved; of a wait those in the slot with which the kernel ends the wait.
    early: Regs,
    /// Its call has begun. It needs nothing but the end of the tracing thread.
    pub(crate) there: bool,
}

impl Group {
    /// Lets a thread at rest finish its call in a slot, which is returned; where there is none it goes on as it is.
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

    /// The same; `None` where nothing was done.
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

    /// A thread on its way into a slot has stopped.
    pub(crate) fn entered(&mut self, tid: Tid, entering: Entering, stop: Stop) {
        let Entering { slot, moves, early, there } = entering;
        let Ok(mut regs) = ptrace::regs(tid) else { return self.detach(tid, None) };
        let under_way = regs.ip() == slot.behind() || regs.ip() == slot.entry();
        match stop {
            Stop::Syscall if !there && regs.ip() == slot.behind() => {
                if moves {
                    regs.0.rip = slot.once().0;
                    // Else the thread goes on without that, as it would without us.
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
                // The handler runs after the call, which ends as it does when nobody interrupts it but the signal.
                if ptrace::set_regs(tid, &early).is_ok() && moves {
                    slot.free(&self.process);
                }
                self.detach(tid, Some(sig));
            }
            Stop::Signal(sig) => self.detach(tid, Some(sig)),
            _ => self.detach(tid, None),
        }
    }

    /// Whether a signal has a handler; yes where nobody can tell.
    fn catches(&self, tid: Tid, sig: Sig) -> bool {
        let bit = 1u64 << (sig.0 - 1).rem_euclid(64);
        self.process.thread_status(tid).map_or(true, |s| s.sig_cgt & bit != 0)
    }
}

/// Whether the thread's filters allow the call that these registers make.
fn may_call(tid: Tid, status: &Status, regs: &Regs) -> bool {
    let call = |nr| seccomp::Call { nr, ip: regs.ip(), args: rest::args(regs) };
    regs.syscall().is_none_or(|nr| seccomp::allows(tid, status, call(nr)))
}
