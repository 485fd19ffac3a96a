//! System calls run by the target itself.
//!
//! A thread at rest gets other registers and runs one `syscall` instruction that exists in the target's code,
//! between two stops. Then it gets its own registers back. Its floating-point state, its shadow stack and its
//! sequence of signals do not change: all signals are blocked meanwhile.
//!
//! If whet is killed in between, the thread must return by itself. So the first step writes a *return frame*:
//! a signal frame with the thread's true state, below its red zone, where a handler's frame would be. A `ret`
//! follows the `syscall` instruction and leads to the C library's `rt_sigreturn`. At every instant the thread
//! either has its own registers and signal mask, or its next instructions restore them.
// INVARIANT(return): registers change first and are restored last; the signal mask changes only in between.

use crate::group::{Group, NAP};
use crate::lend;
use crate::priority::Raised;
use crate::ptrace::{self, OPTIONS, SUSPEND_SECCOMP, Stop, Wait};
use crate::regs::error_of;
use crate::restart::SYSCALL;
use crate::return_frame::{Place, ReturnFrame};
use crate::stop::write_text;
use crate::tracer::Tracer;
use crate::{Error, Process, Regs, Sig, Tid};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use std::io;
use std::time::Duration;

/// Places in the target's code that whet uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gadgets {
    /// A `syscall` instruction, followed by `ret` if `return_path` is set.
    pub(crate) syscall: Avma,
    /// The code that calls `rt_sigreturn`.
    pub(crate) return_path: Option<ReturnPath>,
}

/// Code of the target that calls `rt_sigreturn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReturnPath {
    /// `mov $15, %rax; syscall`: the return from a signal handler.
    Restorer(Avma),
    /// `pop %rax; ret`, then any `syscall`. A static program without signal handlers has no restorer, but
    /// each `_init` and `_fini` of musl ends with this sequence.
    Pop(Avma),
}

impl ReturnPath {
    /// The maximum number of words that [`Gadgets::words`] returns.
    pub(crate) const MOST_WORDS: u64 = 3;
}

const SYSCALL_RET: [u8; 3] = [0x0f, 0x05, 0xc3];
/// The code of `__restore_rt` in glibc and musl.
const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// `pop %rax; ret`.
const POP_RET: [u8; 2] = [0x58, 0xc3];
/// The number of `rt_sigreturn`.
const RT_SIGRETURN: u64 = 15;

impl Gadgets {
    /// Returns the gadgets of a process, which are searched for once.
    pub(crate) fn of(process: &Process) -> Result<Self, Error> {
        if let Some(known) = process.gadgets().filter(|g| g.are_there(process)) {
            return Ok(known);
        }
        let found = Self::find(process)?;
        process.set_gadgets(found);
        Ok(found)
    }

    fn are_there(&self, process: &Process) -> bool {
        let is = |at, want: &[u8]| {
            let mut b = vec![0; want.len()];
            process.read(at, &mut b).is_ok() && b == want
        };
        match self.return_path {
            Some(ReturnPath::Restorer(at)) => is(self.syscall, &SYSCALL_RET) && is(at, &SIGRETURN),
            Some(ReturnPath::Pop(at)) => is(self.syscall, &SYSCALL_RET) && is(at, &POP_RET),
            None => is(self.syscall, &SYSCALL),
        }
    }

    /// Returns the words by which a `ret` leads to `rt_sigreturn`: addresses for `ret`, and values to pop.
    /// The last word lies where `rt_sigreturn` expects the return address of a signal handler. Empty without
    /// a return path.
    pub(crate) fn words(&self) -> Vec<u64> {
        match self.return_path {
            Some(ReturnPath::Restorer(at)) => vec![at.0],
            Some(ReturnPath::Pop(at)) => vec![at.0, RT_SIGRETURN, self.syscall.0],
            None => Vec::new(),
        }
    }

    fn find(process: &Process) -> Result<Self, Error> {
        let maps = process.maps_text()?;
        // The C library has all of the patterns, or the program if libc is linked in. The vdso, which is
        // small, has `syscall`.
        let rank = |line: &str| (!line.ends_with("[vdso]"), !line.contains("/libc"), !line.contains("/ld-"));
        let mut code: Vec<&str> =
            maps.lines().filter(|l| l.split(' ').nth(1).is_some_and(|p| p.starts_with("r-x"))).collect();
        code.sort_by_key(|l| rank(l));
        let (mut plain, mut with_ret, mut return_path, mut pop) = (None, None, None, None);
        for range in code.into_iter().filter_map(crate::process::mapping_range) {
            scan(process, range, |at, bytes| {
                let starts = |want: &[u8]| bytes.starts_with(want).then_some(at);
                plain = plain.or_else(|| starts(&SYSCALL));
                with_ret = with_ret.or_else(|| starts(&SYSCALL_RET));
                return_path = return_path.or_else(|| starts(&SIGRETURN));
                pop = pop.or_else(|| starts(&POP_RET));
            });
            if with_ret.is_some() && return_path.is_some() {
                break;
            }
        }
        let return_path = return_path.map(ReturnPath::Restorer).or_else(|| pop.map(ReturnPath::Pop));
        match (with_ret, return_path) {
            (Some(syscall), Some(_)) => Ok(Self { syscall, return_path }),
            _ => Ok(Self {
                syscall: plain.ok_or(Error::NoSyscallInstruction(process.pid()))?,
                return_path: None,
            }),
        }
    }
}

/// Calls `see` for every place of a range where a pattern may begin.
fn scan(process: &Process, range: AvmaRange, mut see: impl FnMut(Avma, &[u8])) {
    const CHUNK: usize = 1 << 16;
    const OVERLAP: usize = SIGRETURN.len() - 1;
    let mut buf = vec![0; CHUNK + OVERLAP];
    let mut at = range.start;
    while range.contains(at) {
        let want = usize::try_from(AvmaRange::new(at, range.end).len()).unwrap_or(usize::MAX).min(buf.len());
        let n = process.read_some(at, &mut buf[..want]);
        for i in 0..n.min(CHUNK) {
            if [SYSCALL[0], SIGRETURN[0], POP_RET[0]].contains(&buf[i]) {
                see(at.add(i as u64), &buf[i..n]);
            }
        }
        at = at.add(CHUNK as u64);
    }
}

/// A system call: its number and its arguments.
#[derive(Clone, Copy)]
pub(crate) struct SystemCall(pub(crate) i64, pub(crate) [u64; 6]);

impl Group {
    /// Runs one system call on the first thread at rest that is fit for it.
    pub(crate) fn syscall_anywhere(
        &mut self,
        gadgets: Gadgets,
        nr: i64,
        args: [u64; 6],
    ) -> Result<i64, Error> {
        if let Some(tid) = self.place.as_ref().map(|(tid, _)| *tid).filter(|&tid| self.regs(tid).is_ok()) {
            return self.syscall(tid, gadgets, nr, args);
        }
        let (mut dispatching, mut unfit) = (false, false);
        let resting: Vec<(Tid, Regs)> = self.resting().collect();
        for (tid, regs) in resting {
            if ptrace::dispatches_syscalls(tid) {
                dispatching = true;
            } else if let Some(place) = Place::of(&self.process, tid, &regs) {
                return self.syscall_at(tid, gadgets, place, SystemCall(nr, args));
            } else {
                unfit = true;
            }
        }
        let pid = self.process.pid();
        Err(if dispatching && !unfit { Error::SyscallDispatch(pid) } else { Error::NoThread(pid) })
    }

    /// Runs one system call on a thread at rest.
    pub(crate) fn syscall(
        &mut self,
        tid: Tid,
        gadgets: Gadgets,
        nr: i64,
        args: [u64; 6],
    ) -> Result<i64, Error> {
        // The place stays right as long as the thread is at rest. To find it takes the text of all mappings.
        let place = match self.place.take().filter(|(of, _)| *of == tid) {
            Some((_, place)) => place,
            None => self.place(tid)?,
        };
        self.syscall_at(tid, gadgets, place, SystemCall(nr, args))
    }

    /// Returns the place for the return frame of a thread at rest.
    pub(crate) fn place(&self, tid: Tid) -> Result<Place, Error> {
        Place::of(&self.process, tid, &self.regs(tid)?).ok_or(Error::NoThread(self.process.pid()))
    }

    /// As [`Group::syscall`], with a known place for the frame. Makes a shelter first if the place would
    /// dirty pages.
    fn syscall_at(
        &mut self,
        tid: Tid,
        gadgets: Gadgets,
        mut place: Place,
        call: SystemCall,
    ) -> Result<i64, Error> {
        if let Some(pages) = place.dear {
            self.make_shelter(tid, gadgets, &place, pages)?;
            place = self.place(tid)?;
        }
        let result = self.one_syscall(tid, gadgets, &place, call);
        self.place = Some((tid, place));
        result
    }

    /// As [`Group::syscall`], with the place as it is.
    pub(crate) fn one_syscall(
        &mut self,
        tid: Tid,
        gadgets: Gadgets,
        place: &Place,
        call: SystemCall,
    ) -> Result<i64, Error> {
        // Threads that stopped too late to be chosen are resumed.
        self.pump()?;
        self.on(tid, |group| group.go_and_return(tid, gadgets, place, call))
    }

    fn go_and_return(
        &mut self,
        tid: Tid,
        gadgets: Gadgets,
        place: &Place,
        SystemCall(nr, args): SystemCall,
    ) -> Result<i64, Error> {
        let saved = leave_rseq(&self.process, tid, self.regs(tid)?);
        let mask = ptrace::sigmask(tid).map_err(|e| os("getsigmask", tid, e))?;
        let seccomp = self.process.thread_status(tid)?.seccomp;
        if seccomp != 0 {
            let set = ptrace::set_options(tid, OPTIONS | SUSPEND_SECCOMP);
            set.map_err(|e| Error::SeccompFilter { pid: self.process.pid(), why: e.to_string() })?;
        }
        // Without a return path no call is made: the death of whet in between would end the target.
        let words = gadgets.words();
        if words.is_empty() {
            return Err(Error::NoReturnPath(self.process.pid()));
        }
        let frame = ReturnFrame::lay(&self.process, place, &saved, mask, &words);
        let frame = frame.ok_or(Error::NoThread(self.process.pid()))?;

        let mut away = saved;
        let r = &mut away.0;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = args;
        r.rax = nr.cast_unsigned();
        // Marks the thread as outside any system call, so that the kernel restarts none.
        r.orig_rax = u64::MAX;
        r.rip = gadgets.syscall.0;
        r.rsp = frame.sp().0;
        let mut held = Vec::new();
        let result = ptrace::set_regs(tid, &away)
            .and_then(|()| ptrace::set_sigmask(tid, u64::MAX))
            .map_err(|e| os("setregs", tid, e))
            .and_then(|()| self.run_syscall(tid, &mut held));
        // A killed thread needs nothing back. For any other thread each step is tried, even if an earlier one
        // failed.
        let mask_back = ptrace::set_sigmask(tid, mask).map_err(|e| os("setsigmask", tid, e));
        let regs_back = self.set_regs(tid, &saved);
        frame.lift(&self.process);
        if seccomp != 0 {
            let _ = ptrace::set_options(tid, OPTIONS);
        }
        for sig in held {
            let sent = ptrace::send(self.process.pid(), tid, sig);
            sent.map_err(|source| Error::SignalLost { tid, sig, source })?;
        }
        let result = result?;
        mask_back?;
        regs_back?;
        error_of(result).map_or(Ok(result), |errno| Err(Error::Remote { nr, errno }))
    }

    /// Runs a thread from rest through one system call and back to rest. Returns the result of the call.
    fn run_syscall(&mut self, tid: Tid, held: &mut Vec<Sig>) -> Result<i64, Error> {
        // The entry.
        ptrace::to_syscall(tid, None).map_err(|e| os("syscall", tid, e))?;
        self.wait_for(tid, Stop::Syscall, held)?;
        // The return.
        ptrace::to_syscall(tid, None).map_err(|e| os("syscall", tid, e))?;
        #[cfg(test)]
        self.panics_at.reach(crate::group::Point::Call);
        self.wait_for(tid, Stop::Syscall, held)?;
        let result = ptrace::regs(tid).map_err(|e| os("getregs", tid, e))?.result();
        // Back to rest: only from there does the kernel restart the thread's own system call.
        ptrace::interrupt(tid).and_then(|()| ptrace::cont(tid, None)).map_err(|e| os("cont", tid, e))?;
        self.wait_for(tid, Stop::Rest, held)?;
        Ok(result)
    }

    /// Waits for one kind of stop, and continues from all others. Signals that no mask blocks (SIGSTOP) are
    /// held.
    fn wait_for(&mut self, tid: Tid, wanted: Stop, held: &mut Vec<Sig>) -> Result<(), Error> {
        let leader = tid.0 == self.process.pid().0;
        for looks in 1u32.. {
            match ptrace::look(tid).map_err(|e| os("waitid", tid, e))? {
                Wait::Stopped(stop) if stop == wanted => return Ok(()),
                Wait::Stopped(stop) => {
                    if let Stop::Signal(sig) = stop {
                        held.push(sig);
                    }
                    // Any stop consumes a pending interruption.
                    let on = match wanted {
                        Stop::Rest => ptrace::interrupt(tid).and_then(|()| ptrace::cont(tid, None)),
                        _ => ptrace::to_syscall(tid, None),
                    };
                    on.map_err(|e| os("cont", tid, e))?;
                }
                Wait::Ended | Wait::NotOurs => {
                    self.forget(tid);
                    return Err(Error::ThreadGone(tid));
                }
                Wait::Running => {
                    // The kernel reports the end of a first thread after the end of all others, which are
                    // stopped by this tracer.
                    if leader
                        && looks % 1000 == 0
                        && self.process.thread_status(tid).is_ok_and(|s| s.is_ending())
                    {
                        return Err(Error::ThreadGone(tid));
                    }
                    lend::wait(tid, if looks < 1000 { NAP } else { NAP * 10 });
                }
            }
        }
        Err(Error::ThreadGone(tid))
    }

    /// Writes over any protection through one of the threads at rest.
    pub(crate) fn poke(&mut self, at: Avma, bytes: &[u8]) -> Result<(), Error> {
        let pid = self.process.pid();
        let (tid, _) = self.resting().next().ok_or(Error::NoThread(pid))?;
        let fail = |source| Error::Unwritable { at, len: bytes.len(), source };
        // Only whole words can be written: the bytes around are written unchanged. All threads are stopped,
        // or the memory is whet's own.
        let first = at.align_down(8);
        let end = at.add(bytes.len() as u64);
        let lead = usize::try_from(at.distance(first)).unwrap_or(0);
        let words = (lead + bytes.len()).div_ceil(8);
        let mut all = vec![0; words * 8];
        let whole = AvmaRange::with_len(first, all.len() as u64);
        self.process.read(whole.start, &mut all)?;
        debug_assert!(end <= whole.end);
        all[lead..lead + bytes.len()].copy_from_slice(bytes);
        for (i, word) in all.as_chunks::<8>().0.iter().enumerate() {
            ptrace::poke(tid, first.add(i as u64 * 8), u64::from_le_bytes(*word)).map_err(fail)?;
        }
        Ok(())
    }
}

fn os(what: &'static str, tid: Tid, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::ESRCH) => Error::ThreadGone(tid),
        _ => Error::Os { what, tid, source },
    }
}

/// Returns the registers with which a thread interrupted inside a restartable sequence (rseq) restarts it.
/// The kernel checks the instruction pointer when the thread resumes, and would see that of the remote call.
fn leave_rseq(process: &Process, tid: Tid, mut regs: Regs) -> Regs {
    let abort = || {
        let area = ptrace::rseq_area(tid)?;
        // struct rseq: cpu_id_start, cpu_id, then the current sequence's descriptor.
        let descriptor = Avma(process.u64(area.add(8)).ok().filter(|&d| d != 0)?);
        // struct rseq_cs: version, flags, start, length, abort handler.
        let start = Avma(process.u64(descriptor.add(8)).ok()?);
        let len = process.u64(descriptor.add(16)).ok()?;
        let abort = process.u64(descriptor.add(24)).ok()?;
        AvmaRange::with_len(start, len).contains(regs.ip()).then_some(abort)
    };
    if let Some(abort) = abort() {
        regs.0.rip = abort;
    }
    regs
}

/// One stopped thread of the target, for running system calls. The other threads run.
#[derive(Debug)]
pub struct Remote<'p> {
    process: &'p Process,
    tracer: &'p Tracer,
    tid: Tid,
    gadgets: Gadgets,
}

impl Remote<'_> {
    /// Provides room for `threads` threads to finish calls that stops end early
    /// ([`Process::unlisted_finishing_code`]), as far as the target can map it.
    ///
    /// # Errors
    /// [`Error`] if the tracing thread has ended.
    pub fn make_finishing_code(&mut self, threads: usize) -> Result<(), Error> {
        self.tracer.call(move |group| group.make_areas_for(threads))
    }

    /// Returns the process.
    #[must_use]
    pub fn process(&self) -> &Process {
        self.process
    }

    /// Runs one system call. It must not wait, nor create or end threads or programs.
    ///
    /// # Errors
    /// [`Error::Remote`] if the call fails; other errors if it could not be made.
    pub fn syscall(&mut self, nr: i64, args: [u64; 6]) -> Result<i64, Error> {
        let (tid, gadgets) = (self.tid, self.gadgets);
        self.tracer.run(move |group| group.syscall(tid, gadgets, nr, args))
    }

    /// Maps private anonymous memory: `mmap(at, len, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0)`. `at`
    /// is a hint, unless `flags` contains `MAP_FIXED_NOREPLACE`.
    ///
    /// # Errors
    /// As [`Remote::syscall`].
    pub fn mmap(&mut self, at: Option<Avma>, len: u64, prot: i32, flags: i32) -> Result<Avma, Error> {
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let arg = |i: i32| i64::from(i).cast_unsigned();
        let at = at.map_or(0, |a| a.0);
        let r = self.syscall(libc::SYS_mmap, [at, len, arg(prot), arg(flags), arg(-1), 0])?;
        Ok(Avma(r.cast_unsigned()))
    }

    /// Unmaps memory.
    ///
    /// # Errors
    /// As [`Remote::syscall`].
    pub fn munmap(&mut self, at: Avma, len: u64) -> Result<(), Error> {
        self.syscall(libc::SYS_munmap, [at.0, len, 0, 0, 0, 0]).map(|_| ())
    }

    /// Writes over any protection, even if the kernel forbids it through `/proc/PID/mem`. The bytes around,
    /// up to whole words, must not change meanwhile.
    ///
    /// # Errors
    /// [`Error::Unwritable`].
    pub fn write_text(&mut self, at: Avma, bytes: &[u8]) -> Result<(), Error> {
        write_text(self.process, self.tracer, at, bytes)
    }
}

/// Searches the target's code for what system calls need, so that a stop need not wait for the search.
///
/// # Errors
/// [`Error::NoSyscallInstruction`], and the errors of reading the process.
pub fn prepare_syscalls(process: &Process) -> Result<(), Error> {
    Gadgets::of(process).map(drop).map_err(|e| process.cause(e))
}

/// How long one thread gets to stop before the next is tried as well.
const EACH: Duration = Duration::from_millis(20);
/// How long all of them together get: on an overloaded machine, a thread waits long for its CPU.
const DEADLINE: Duration = Duration::from_secs(5);

/// Stops one thread while `f` runs, so that `f` can run system calls on it. All other threads run on.
///
/// # Errors
/// Errors of `f`; [`Error::NoThread`] if no thread comes to a stop, [`Error::Gone`],
/// [`Error::AlreadyTraced`].
pub fn with_one_stopped<R>(
    process: &Process,
    f: impl FnOnce(&mut Remote<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    timed_with_one_stopped(process, f).map(|(result, _)| result)
}

/// As [`with_one_stopped`]; also returns how long the thread was stopped, from its interruption to its
/// release.
///
/// # Errors
/// As [`with_one_stopped`].
pub fn timed_with_one_stopped<R>(
    process: &Process,
    f: impl FnOnce(&mut Remote<'_>) -> Result<R, Error>,
) -> Result<(R, Duration), Error> {
    let gadgets = Gadgets::of(process).map_err(|e| process.cause(e))?;
    let _raised = Raised::own();
    let tracer = Tracer::start(Group::new(process, false))?;
    let tid = tracer.run(|group| group.stop_one(EACH, DEADLINE))?;
    let result = f(&mut Remote { process, tracer: &tracer, tid, gadgets }).map_err(|e| process.cause(e));
    let report = tracer.call(Group::release)?;
    Ok((result?, report.stopped))
}
