//! System calls run by the target itself.
//!
//! A thread at rest gets other registers, runs one `syscall` instruction that is somewhere in the target's code
//! anyway, between two stops, and gets its registers back. Its floating-point state, its shadow stack and its
//! sequence of signals stay as they are: all signals are blocked meanwhile.
//!
//! The way home: should we be killed in between, the thread must get back by itself. So before anything else a
//! signal frame with its true state is laid below its red zone, where a handler's would be, and the `syscall` that
//! is used is one followed by `ret`, which leads to the C library's `rt_sigreturn`. At every instant the thread either
//! has its own registers and signal mask or is on that way.
// INVARIANT(home): registers leave first and come back last; the signal mask is changed only while they are away.

use crate::group::{Group, NAP};
use crate::home::{Home, Place};
use crate::lend;
use crate::priority::Raised;
use crate::ptrace::{self, OPTIONS, SUSPEND_SECCOMP, Stop, Wait};
use crate::restart::SYSCALL;
use crate::shared::Survey;
use crate::slots;
use crate::stop::write_text;
use crate::tracer::Tracer;
use crate::{Error, Process, Regs, Sig, Tid};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use std::io;
use std::time::Duration;

/// Places in the target's code that are of use to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gadgets {
    /// A `syscall` instruction, followed by `ret` if `home` is set.
    pub(crate) syscall: Avma,
    /// What calls `rt_sigreturn`.
    pub(crate) home: Option<WayHome>,
}

/// Code of the target that calls `rt_sigreturn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WayHome {
    /// `mov $15, %rax; syscall`: the return from a signal handler.
    Restorer(Avma),
    /// `pop %rax; ret`, then any `syscall`. A static program without signal handlers has no restorer; but each `_init`
    /// and `_fini` of musl's ends so.
    Pop(Avma),
}

impl WayHome {
    /// Words that [`Gadgets::words`] returns at most.
    pub(crate) const MOST_WORDS: u64 = 3;
}

const SYSCALL_RET: [u8; 3] = [0x0f, 0x05, 0xc3];
/// As `__restore_rt` is written in glibc and musl.
const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// `pop %rax; ret`.
const POP_RET: [u8; 2] = [0x58, 0xc3];
/// The number of `rt_sigreturn`.
const RT_SIGRETURN: u64 = 15;

impl Gadgets {
    /// Those of a process; looked for once.
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
        match self.home {
            Some(WayHome::Restorer(at)) => is(self.syscall, &SYSCALL_RET) && is(at, &SIGRETURN),
            Some(WayHome::Pop(at)) => is(self.syscall, &SYSCALL_RET) && is(at, &POP_RET),
            None => is(self.syscall, &SYSCALL),
        }
    }

    /// Returns the words by which a `ret` begins the way home: addresses for `ret`, and what is popped. The last lies where
    /// `rt_sigreturn` expects the return address of a signal handler. Empty where there is no way.
    pub(crate) fn words(&self) -> Vec<u64> {
        match self.home {
            Some(WayHome::Restorer(at)) => vec![at.0],
            Some(WayHome::Pop(at)) => vec![at.0, RT_SIGRETURN, self.syscall.0],
            None => Vec::new(),
        }
    }

    fn find(process: &Process) -> Result<Self, Error> {
        let maps = process.maps_text()?;
        // The C library has all of it; where it is linked in, the program does. The vdso, which is small, has `syscall`.
        let rank = |line: &str| (!line.ends_with("[vdso]"), !line.contains("/libc"), !line.contains("/ld-"));
        let mut code: Vec<&str> =
            maps.lines().filter(|l| l.split(' ').nth(1).is_some_and(|p| p.starts_with("r-x"))).collect();
        code.sort_by_key(|l| rank(l));
        let (mut plain, mut with_ret, mut home, mut pop) = (None, None, None, None);
        for range in code.into_iter().filter_map(crate::process::mapping_range) {
            scan(process, range, |at, bytes| {
                let starts = |want: &[u8]| bytes.starts_with(want).then_some(at);
                plain = plain.or_else(|| starts(&SYSCALL));
                with_ret = with_ret.or_else(|| starts(&SYSCALL_RET));
                home = home.or_else(|| starts(&SIGRETURN));
                pop = pop.or_else(|| starts(&POP_RET));
            });
            if with_ret.is_some() && home.is_some() {
                break;
            }
        }
        let home = home.map(WayHome::Restorer).or_else(|| pop.map(WayHome::Pop));
        match (with_ret, home) {
            (Some(syscall), Some(_)) => Ok(Self { syscall, home }),
            _ => Ok(Self { syscall: plain.ok_or(Error::NoSyscallInstruction(process.pid()))?, home: None }),
        }
    }
}

/// Shows `see` every place of a range where a pattern may begin.
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

impl Group {
    /// Runs one system call on the first thread at rest that is fit for it.
    pub(crate) fn syscall_anywhere(
        &mut self,
        gadgets: Gadgets,
        nr: i64,
        args: [u64; 6],
    ) -> Result<i64, Error> {
        let (mut dispatching, mut unfit) = (false, false);
        let resting: Vec<(Tid, Regs)> = self.resting().collect();
        for (tid, regs) in resting {
            if ptrace::dispatches_syscalls(tid) {
                dispatching = true;
            } else if let Some(place) = Place::of(&self.process, tid, &regs) {
                return self.syscall_at(tid, gadgets, place, nr, args);
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
        // As long as the thread rests its place stays right; to find it takes the text of all mappings.
        let place = match self.place.take().filter(|(of, _)| *of == tid) {
            Some((_, place)) => place,
            None => self.place(tid)?,
        };
        self.syscall_at(tid, gadgets, place, nr, args)
    }

    /// Where the way home of a thread at rest goes.
    pub(crate) fn place(&self, tid: Tid) -> Result<Place, Error> {
        Place::of(&self.process, tid, &self.regs(tid)?).ok_or(Error::NoThread(self.process.pid()))
    }

    /// The same with a place for its way home, after making a shelter where that is dear.
    fn syscall_at(
        &mut self,
        tid: Tid,
        gadgets: Gadgets,
        mut place: Place,
        nr: i64,
        args: [u64; 6],
    ) -> Result<i64, Error> {
        if let Some(pages) = place.dear {
            self.make_shelter(tid, gadgets, &place, pages)?;
            place = self.place(tid)?;
        }
        let result = self.one_syscall(tid, gadgets, &place, nr, args);
        self.place = Some((tid, place));
        result
    }

    /// The same, with whatever place there is.
    pub(crate) fn one_syscall(
        &mut self,
        tid: Tid,
        gadgets: Gadgets,
        place: &Place,
        nr: i64,
        args: [u64; 6],
    ) -> Result<i64, Error> {
        // Threads that came too late to be chosen go on.
        self.pump()?;
        let saved = leave_rseq(&self.process, tid, self.regs(tid)?);
        let mask = ptrace::sigmask(tid).map_err(|e| os("getsigmask", tid, e))?;
        let seccomp = self.process.thread_status(tid)?.seccomp;
        if seccomp != 0 {
            let set = ptrace::set_options(tid, OPTIONS | SUSPEND_SECCOMP);
            set.map_err(|e| Error::SeccompFilter { pid: self.process.pid(), why: e.to_string() })?;
        }
        // No way home, no journey: else our death in between would be the target's.
        let words = gadgets.words();
        if words.is_empty() {
            return Err(Error::NoWayHome(self.process.pid()));
        }
        let home = Home::lay(&self.process, place, &saved, mask, &words);
        let home = home.ok_or(Error::NoThread(self.process.pid()))?;

        let mut away = saved;
        let r = &mut away.0;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = args;
        r.rax = nr.cast_unsigned();
        // Not in a system call, for the kernel: nothing to restart.
        r.orig_rax = u64::MAX;
        r.rip = gadgets.syscall.0;
        r.rsp = home.sp().0;
        let mut held = Vec::new();
        let result = ptrace::set_regs(tid, &away)
            .and_then(|()| ptrace::set_sigmask(tid, u64::MAX))
            .map_err(|e| os("setregs", tid, e))
            .and_then(|()| self.run_syscall(tid, &mut held));
        // A thread that was killed has nothing to get back; for any other each step is tried, whatever went before.
        let mask_back = ptrace::set_sigmask(tid, mask).map_err(|e| os("setsigmask", tid, e));
        let regs_back = self.set_regs(tid, &saved);
        home.lift(&self.process);
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
        match i32::try_from(result) {
            Ok(e @ -4095..=-1) => Err(Error::Remote { nr, errno: -e }),
            _ => Ok(result),
        }
    }

    /// From rest through one system call and back to rest; its result.
    fn run_syscall(&mut self, tid: Tid, held: &mut Vec<Sig>) -> Result<i64, Error> {
        // The entry.
        ptrace::to_syscall(tid, None).map_err(|e| os("syscall", tid, e))?;
        self.wait_for(tid, Stop::Syscall, held)?;
        // The return.
        ptrace::to_syscall(tid, None).map_err(|e| os("syscall", tid, e))?;
        self.wait_for(tid, Stop::Syscall, held)?;
        let result = ptrace::regs(tid).map_err(|e| os("getregs", tid, e))?.result();
        // Back to rest: only from there does the kernel restart what the thread itself was in.
        ptrace::interrupt(tid).and_then(|()| ptrace::cont(tid, None)).map_err(|e| os("cont", tid, e))?;
        self.wait_for(tid, Stop::Rest, held)?;
        Ok(result)
    }

    /// Waits for one kind of stop, going on from all others. Signals that no mask keeps back (SIGSTOP) are held.
    fn wait_for(&mut self, tid: Tid, wanted: Stop, held: &mut Vec<Sig>) -> Result<(), Error> {
        let leader = tid.0 == self.process.pid().0;
        for looks in 1u32.. {
            match ptrace::look(tid).map_err(|e| os("waitid", tid, e))? {
                Wait::Stopped(stop) if stop == wanted => return Ok(()),
                Wait::Stopped(stop) => {
                    if let Stop::Signal(sig) = stop {
                        held.push(sig);
                    }
                    // Any stop takes a pending interruption along.
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
                    // The end of a first thread is reported after that of all others, which wait for us.
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
        // Whole words only: the bytes around are written as they are. The world stands still, or they are our own.
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

/// A thread that was interrupted inside a restartable sequence (rseq) starts it anew: the kernel looks at the
/// instruction pointer when the thread goes on, and must not be deceived by ours.
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

/// One stopped thread of the target, to run system calls on. The other threads run.
#[derive(Debug)]
pub struct Remote<'p> {
    process: &'p Process,
    tracer: &'p Tracer,
    tid: Tid,
    gadgets: Gadgets,
}

impl Remote<'_> {
    /// Provides room for so many threads to finish calls that stops end early ([`Process::finishing_code`]), as far as the target can
    /// map it.
    ///
    /// # Errors
    /// [`Error`] where the tracing thread is gone.
    pub fn make_finishing_code(&mut self, threads: usize) -> Result<(), Error> {
        self.tracer.ask(move |group| group.make_areas(threads / slots::IN_AN_AREA + 1))
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        self.process
    }

    /// Runs one system call. Give no call that may wait, nor one that makes or ends threads or programs.
    ///
    /// # Errors
    /// [`Error::Remote`] where the call fails; else that it could not be made.
    pub fn syscall(&mut self, nr: i64, args: [u64; 6]) -> Result<i64, Error> {
        let (tid, gadgets) = (self.tid, self.gadgets);
        self.tracer.run(move |group| group.syscall(tid, gadgets, nr, args))
    }

    /// Maps private anonymous memory: `mmap(at, len, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0)`. Give
    /// `MAP_FIXED_NOREPLACE` in `flags` where it must lie at `at`, which else is a hint.
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

    /// Writes over any protection, also where the kernel keeps `/proc/PID/mem` from doing so. The bytes around, up to
    /// whole words, must not change meanwhile.
    ///
    /// # Errors
    /// [`Error::Unwritable`].
    pub fn write_text(&mut self, at: Avma, bytes: &[u8]) -> Result<(), Error> {
        write_text(self.process, self.tracer, at, bytes)
    }
}

/// How long one thread gets to stop before the next is tried too.
const EACH: Duration = Duration::from_millis(20);
/// How long all of them together get: on a machine with more to do than it can, a thread waits long for its CPU.
const DEADLINE: Duration = Duration::from_secs(5);

/// Stops one thread, for as long as `f` runs, to have system calls run on it. All other threads run on.
///
/// # Errors
/// Those of `f`; [`Error::NoThread`] where no thread comes to a stop, [`Error::Gone`], [`Error::AlreadyTraced`].
pub fn with_one_stopped<R>(
    process: &Process,
    f: impl FnOnce(&mut Remote<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    timed_with_one_stopped(process, f).map(|(result, _)| result)
}

/// As [`with_one_stopped`]; returns for how long the thread was stopped as well, from its interruption to its release.
///
/// # Errors
/// As [`with_one_stopped`].
pub fn timed_with_one_stopped<R>(
    process: &Process,
    f: impl FnOnce(&mut Remote<'_>) -> Result<R, Error>,
) -> Result<(R, Duration), Error> {
    let gadgets = Gadgets::of(process).map_err(|e| process.cause(e))?;
    let _raised = Raised::own();
    let tracer = Tracer::start(Group::new(process, Survey::default()))?;
    let tid = tracer.run(|group| group.stop_one(EACH, DEADLINE))?;
    let result = f(&mut Remote { process, tracer: &tracer, tid, gadgets }).map_err(|e| process.cause(e));
    let report = tracer.ask(Group::release)?;
    Ok((result?, report.stopped))
}
