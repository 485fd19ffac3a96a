//! The rest of a system call that a stop has ended early, and how a slot finishes it.
//!
//! Two kinds of calls end early by an interruption, and the kernel does not restart them as they were:
//! - A transfer that has moved a part returns the size of that part. The slot moves the rest, and the program
//!   gets the sum. If an error or anything else ends the call after a part, the program gets the size of the
//!   part.
//! - A wait with a timeout returns `EINTR`; restarted, it would wait for the whole time again. The slot waits
//!   for the remaining time, counted from the first stop. A socket's own timeout (`SO_RCVTIMEO`,
//!   `SO_SNDTIMEO`) is not an argument: there the slot waits by `ppoll`. Then the program's own call is made,
//!   or reported as timed out.
//!
//! The slot holds all state of an interrupted call. So a later stop, by any whet, finds how much was moved
//! and when the timeout ends.

use crate::open_file::{self, Kind, Socket};
use crate::pieces::{MOST, Message, Pieces};
use crate::ptrace;
use crate::restart::{ERESTARTNOHAND, SYSCALL, may_restart};
use crate::slots::{self, Slot};
use crate::{Process, Regs, Tid};
use addr::{Addr, Avma, AvmaRange, ReadMemory};

/// The unfinished part of a call.
#[derive(Debug, Clone)]
pub(crate) struct Rest {
    call: Call,
    state: State,
    /// The slot in which the thread is already.
    slot: Option<Slot>,
    /// Its descriptor now means another file, so the call ends with what it has moved.
    ends: bool,
    /// The registers when the thread came to rest.
    regs: Regs,
}

/// A system call in the form in which a slot makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Call {
    nr: i64,
    args: [u64; 6],
    /// The index of the argument that points to an iovec array, and its entries.
    pieces: Option<(usize, Pieces)>,
    /// The index of the argument that points to a message header; then the pieces are the message's.
    message: Option<(usize, Message)>,
    /// The descriptor and the events of the `struct pollfd` that the first argument points to.
    poll: Option<(u64, i16)>,
}

/// The words of a slot: see [`slots`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    moved: u64,
    pass: bool,
    again: u64,
    expired: i64,
    back: Avma,
    nr: i64,
    args: [u64; 6],
    deadline: u64,
    /// A value that identifies the files of its descriptors, if something has been moved.
    files: u64,
}

/// How a call takes its timeout.
#[derive(Clone, Copy)]
enum Time {
    /// An argument is the number of milliseconds; negative means no timeout.
    Millis(usize),
    /// An argument points to a `struct timespec`; null means no timeout.
    Nanos(usize),
    /// An argument points to a `struct timeval`; null means no timeout.
    Micros(usize),
    /// `io_uring_enter`: an argument points to words; the last word points to a `struct timespec`.
    Ring,
}

/// The direction to which a timeout of a socket applies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Receive,
    Send,
}

impl Rest {
    /// Returns the rest of the call that a thread at rest is in. Returns `None` if its registers are right as
    /// they are, or if the kernel restarts the call correctly.
    pub(crate) fn of(process: &Process, tid: Tid, regs: &Regs) -> Option<Self> {
        let nr = regs.syscall()?;
        let interrupted = regs.waited();
        if regs.result() <= 0 && !interrupted {
            return None;
        }
        let slot = Slot::of(process, regs.ip());
        let rest = match slot {
            Some(slot) => Self::of_slot(process, slot, regs, interrupted)?,
            // The kernel restarts such a call as it was.
            None if matches!(regs.error(), Some(512 | 513 | 516)) => return None,
            None => {
                let mut insn = [0; 2];
                process.read(regs.ip().sub(2), &mut insn).ok()?;
                if insn != SYSCALL {
                    return None;
                }
                let filtered = || process.thread_status(tid).map_or(true, |s| s.seccomp != 0);
                if interrupted {
                    Self::of_wait(process, nr, regs, filtered)?
                } else {
                    Self::of_transfer(process, nr, regs, filtered)?
                }
            }
        };
        // With system call dispatch, the thread may make system calls only at places that the program has
        // named.
        (!ptrace::dispatches_syscalls(tid)).then_some(rest)
    }

    /// The rest for a thread whose call a slot is finishing.
    fn of_slot(process: &Process, slot: Slot, regs: &Regs, interrupted: bool) -> Option<Self> {
        if ![slot.behind(), slot.once()].contains(&regs.ip()) {
            return None;
        }
        let nr = regs.syscall()?;
        let mut state = State::read(process, slot)?;
        let mut call = Call::plain(nr, args(regs));
        if !interrupted {
            // A wait that returns a result is complete.
            let moved = u64::try_from(regs.result()).ok().filter(|_| !state.pass)?;
            call = call.after(process, moved)?;
            state.moved = state.moved.checked_add(moved)?;
        } else if nr == libc::SYS_ppoll && state.again != 0 {
            call.poll = Some((process.u64(slot.words().add(slots::POLL)).ok()?, 0));
        } else if !state.pass {
            call = call.after(process, 0)?;
        }
        let ends = !state.pass && state.files != files(process, &call);
        Some(Self { call, state, slot: Some(slot), ends, regs: *regs })
    }

    /// The rest of a transfer that has moved a part and would have moved more.
    fn of_transfer(process: &Process, nr: i64, regs: &Regs, filtered: impl Fn() -> bool) -> Option<Self> {
        let moved = u64::try_from(regs.result()).ok()?;
        let given = args(regs);
        let mut call = Call::plain(nr, given).after(process, moved)?;
        let mut state = State::new(nr, regs);
        (state.moved, state.pass) = (moved, false);
        let socket = match transfer_file(nr, &given) {
            None => None,
            Some(file) => match open_file::kind(process, file.fd) {
                Kind::Socket => Some(open_file::socket(process, file.fd)),
                // A splice into a pipe ends when the pipe is full.
                Kind::Pipe | Kind::Terminal if !file.receives && nr != libc::SYS_splice => None,
                Kind::Random if nr == libc::SYS_read => None,
                _ => return None,
            },
        };
        let mut time_ns = time(nr).and_then(|t| t.read(process, &given));
        if let Some(socket) = socket {
            if nr == libc::SYS_read {
                return None;
            }
            let receives = transfer_file(nr, &given)?.receives;
            match socket {
                Some(s) if !s.stream => return None,
                // The rest could bring descriptors, and a slot has no room for them.
                Some(s)
                    if nr == libc::SYS_recvmsg
                        && s.domain == libc::AF_UNIX
                        && Message::takes_control(process, Avma(given[1])) =>
                {
                    return None;
                }
                Some(s) => {
                    time_ns = Some(if receives { s.receive_ns } else { s.send_ns }).filter(|&t| t != 0);
                    if !receives {
                        // The program's next call gives the signal of a closed peer.
                        call = call.without_signal(filtered);
                    }
                }
                // A datagram shorter than the buffer looks the same.
                None if receives => return None,
                None => {}
            }
        }
        state.deadline = time_ns.map_or(0, deadline);
        state.files = files(process, &call);
        Some(Self { call, state, slot: None, ends: false, regs: *regs })
    }

    /// The rest of a wait that would begin with its whole time again.
    fn of_wait(process: &Process, nr: i64, regs: &Regs, filtered: impl FnOnce() -> bool) -> Option<Self> {
        let given = args(regs);
        // These calls return EINTR if the kernel could not write the remaining time.
        let kept = matches!(nr, libc::SYS_select | libc::SYS_pselect6 | libc::SYS_ppoll);
        match regs.error() {
            Some(libc::EINTR) if kept || may_restart(process, nr, regs) => {}
            Some(ERESTARTNOHAND) if !kept && (nr == SYS_IO_PGETEVENTS || may_restart(process, nr, regs)) => {}
            _ => return None,
        }
        let mut state = State::new(nr, regs);
        if let Some(time) = time(nr) {
            state.deadline = deadline(time.read(process, &given)?);
            return Some(Self { call: Call::plain(nr, given), state, slot: None, ends: false, regs: *regs });
        }
        let (fd, side) = socket_wait(process, nr, &given)?;
        let socket = open_file::socket(process, fd)?;
        let time_ns = if side == Side::Receive { socket.receive_ns } else { socket.send_ns };
        if time_ns == 0 {
            return None;
        }
        state.deadline = deadline(time_ns);
        let waits_by_poll = can_poll(nr, side, &socket) && !filtered();
        let in_progress = nr == libc::SYS_connect && socket.domain != libc::AF_UNIX;
        state.expired = -i64::from(if in_progress { libc::EINPROGRESS } else { libc::EAGAIN });
        let mut call = Call::plain(nr, given);
        if waits_by_poll {
            state.again = state.back.sub(2).0;
            let events = if side == Side::Receive { libc::POLLIN } else { libc::POLLOUT };
            call = Call::plain(libc::SYS_ppoll, [0, 1, 0, 0, 8, 0]);
            call.poll = Some((fd & 0xffff_ffff, events));
        }
        Some(Self { call, state, slot: None, ends: false, regs: *regs })
    }

    /// Returns whether the call ends here with what it has moved.
    pub(crate) fn ends(&self) -> bool {
        self.ends
    }

    /// Returns the slot in which the thread is already.
    pub(crate) fn slot(&self) -> Option<Slot> {
        self.slot
    }

    /// Returns how many pieces of memory its slot must have room for.
    pub(crate) fn pieces(&self) -> usize {
        self.call.pieces.as_ref().map_or(0, |(_, pieces)| pieces.count())
    }

    /// Returns whether something has been moved, so that the next wake-up of the thread ends the call.
    pub(crate) fn moves(&self) -> bool {
        !self.state.pass
    }

    /// Returns the program's registers behind a call that ends with what it has moved.
    pub(crate) fn part(&self) -> Regs {
        let mut regs = self.regs;
        set_args(&mut regs, &self.state.args);
        regs.0.rip = self.state.back.0;
        regs.0.rax = self.state.moved;
        regs.0.orig_rax = u64::MAX;
        regs
    }

    /// Writes the words of a slot. Returns the registers with which the thread continues in it. The kernel
    /// makes the call, unless a signal handler is to run: then the call fails.
    pub(crate) fn enter(&self, process: &Process, slot: Slot) -> Option<Regs> {
        let at = |offset| slot.words().add(offset);
        let mut words = self.state.bytes();
        let mut args = self.call.args;
        let now = now_ns();
        let left = self.state.deadline.saturating_sub(now);
        let mut regs = self.regs;
        match time(self.call.nr) {
            Some(time) if self.state.deadline != 0 => {
                let (index, value, bytes) = time.of(left);
                put(&mut words, slots::TIME, &bytes);
                if matches!(time, Time::Ring) {
                    let ring = AvmaRange::with_len(Avma(args[index]), RING_LEN - 8);
                    put(&mut words, slots::MESSAGE, &process.bytes(ring).ok()?);
                    put(&mut words, slots::MESSAGE + RING_TIME, &at(slots::TIME).0.to_le_bytes());
                    args[index] = at(slots::MESSAGE).0;
                } else {
                    args[index] = value.unwrap_or(at(slots::TIME).0);
                }
            }
            None if self.state.deadline != 0 && left == 0 && self.slot.is_some() => {
                // The kernel has no timeout for this call, and its time is over.
                process.write(slot.words(), &words).ok()?;
                regs.0.rip = slot.once().0;
                regs.0.rax = if self.state.pass { self.state.expired.cast_unsigned() } else { 0 };
                regs.0.orig_rax = u64::MAX;
                return Some(regs);
            }
            _ => {}
        }
        if let Some((fd, events)) = self.call.poll {
            args[0] = at(slots::POLL).0;
            // `struct pollfd`; one already in use is copied unchanged.
            let word = if events == 0 { fd } else { fd | u64::from(events.cast_unsigned()) << 32 };
            put(&mut words, slots::POLL, &word.to_le_bytes());
        }
        if let Some((index, pieces)) = &self.call.pieces {
            if pieces.count() as u64 > slot.room() {
                return None;
            }
            match &self.call.message {
                Some((index, message)) => {
                    args[*index] = at(slots::MESSAGE).0;
                    let head = message.bytes(at(slots::VECTOR), pieces.count(), at(slots::CONTROL));
                    put(&mut words, slots::MESSAGE, &head);
                    put(&mut words, slots::CONTROL, &message.control);
                }
                None => args[*index] = at(slots::VECTOR).0,
            }
            put(&mut words, slots::VECTOR, &pieces.bytes());
        }
        process.write(slot.words(), &words).ok()?;
        set_args(&mut regs, &args);
        regs.0.rip = slot.behind().0;
        regs.0.rax = i64::from(-ERESTARTNOHAND).cast_unsigned();
        regs.0.orig_rax = self.call.nr.cast_unsigned();
        Some(regs)
    }
}

impl Call {
    fn plain(nr: i64, args: [u64; 6]) -> Self {
        Self { nr, args, pieces: None, message: None, poll: None }
    }

    /// Returns the same call for what is left after `moved` bytes (or events). Returns `None` if nothing is
    /// left, or if the short result does not come from an interruption.
    fn after(self, process: &Process, moved: u64) -> Option<Self> {
        let Self { nr, args: [mut rdi, mut rsi, mut rdx, mut r10, mut r8, mut r9], .. } = self;
        let less = |asked: &mut u64| {
            *asked = (*asked).min(MOST).checked_sub(moved).filter(|&left| left != 0)?;
            Some(())
        };
        let (mut pieces, mut message) = (None, None);
        match nr {
            libc::SYS_write | libc::SYS_read => {
                less(&mut rdx)?;
                rsi = rsi.wrapping_add(moved);
            }
            libc::SYS_sendto if low_half(r10) & libc::MSG_ZEROCOPY == 0 => {
                less(&mut rdx)?;
                rsi = rsi.wrapping_add(moved);
            }
            libc::SYS_recvfrom if waits_for_all(r10) => {
                less(&mut rdx)?;
                rsi = rsi.wrapping_add(moved);
            }
            libc::SYS_getrandom => {
                less(&mut rsi)?;
                rdi = rdi.wrapping_add(moved);
            }
            libc::SYS_sendfile => less(&mut r10)?,
            libc::SYS_splice => {
                less(&mut r8)?;
                // The original call would have ended on an empty pipe as well.
                r9 |= u64::from(libc::SPLICE_F_NONBLOCK);
            }
            libc::SYS_io_getevents => {
                rsi = rsi.checked_sub(moved).filter(|&left| left.cast_signed() > 0)?;
                rdx = rdx.checked_sub(moved)?;
                r10 = r10.wrapping_add(moved.checked_mul(IO_EVENT)?);
            }
            // Only a call that has submitted all waits, and its wait has no result of its own. For a wait for
            // several completions see `restart::waits_for_several`.
            libc::SYS_io_uring_enter
                if r10 & RING_WAITS != 0
                    && rdx & 0xffff_ffff == 1
                    && low_half(rsi) == i32::try_from(moved).ok()?
                    && is_waiting(process, rdi, rdx, r10) =>
            {
                rsi = 0;
            }
            libc::SYS_writev => pieces = Some((1, Pieces::read(process, Avma(rsi), rdx)?)),
            // With an offset, the file is of no kind that a transfer waits for.
            libc::SYS_pwritev2 if r10 == u64::MAX => {
                pieces = Some((1, Pieces::read(process, Avma(rsi), rdx)?));
            }
            libc::SYS_sendmsg if low_half(rdx) & libc::MSG_ZEROCOPY == 0 => {
                let (head, all) = Message::read(process, Avma(rsi), true, slots::CONTROL_LEN)?;
                (message, pieces) = (Some((1, head)), Some((1, all)));
            }
            libc::SYS_recvmsg if waits_for_all(rdx) => {
                let (head, all) = Message::read(process, Avma(rsi), false, slots::CONTROL_LEN)?;
                (message, pieces) = (Some((1, head)), Some((1, all)));
            }
            _ => return None,
        }
        if let Some((_, all)) = &mut pieces {
            if moved >= all.total()? {
                return None;
            }
            *all = all.after(moved);
            if message.is_none() {
                rdx = all.count() as u64;
            }
        }
        Some(Self { nr, args: [rdi, rsi, rdx, r10, r8, r9], pieces, message, poll: None })
    }

    /// Returns the same send to a socket, without SIGPIPE: the kernel sends no SIGPIPE after a part. If
    /// system calls are filtered, `write` and `writev` stay as they are.
    fn without_signal(self, filtered: impl Fn() -> bool) -> Self {
        let [fd, at, len, flags, ..] = self.args;
        let quiet = u64::from(libc::MSG_NOSIGNAL.cast_unsigned());
        match self.nr {
            libc::SYS_sendto => {
                let [.., to, to_len] = self.args;
                Self { args: [fd, at, len, flags | quiet, to, to_len], ..self }
            }
            libc::SYS_sendmsg => Self { args: [fd, at, len | quiet, flags, 0, 0], ..self },
            libc::SYS_write | libc::SYS_writev if filtered() => self,
            libc::SYS_write => Self { nr: libc::SYS_sendto, args: [fd, at, len, quiet, 0, 0], ..self },
            libc::SYS_writev => {
                let message = Some((1, Message::default()));
                Self { nr: libc::SYS_sendmsg, args: [fd, at, quiet, 0, 0, 0], message, ..self }
            }
            _ => self,
        }
    }
}

/// The size of `struct io_event`. Bytes.
const IO_EVENT: u64 = 32;
/// The argument that points to `struct io_uring_getevents_arg`, the size of that structure, and the offset of
/// its pointer to the timeout. Bytes.
const RING_ARG: usize = 4;
const RING_LEN: u64 = 24;
const RING_TIME: u64 = 16;
/// `IORING_ENTER_GETEVENTS`.
const RING_WAITS: u64 = 1;
/// `IORING_ENTER_EXT_ARG`, `IORING_ENTER_REGISTERED_RING`, `IORING_ENTER_ABS_TIMER`, `IORING_ENTER_EXT_ARG_REG`.
const RING_EXTENDED: u64 = 1 << 3;
const RING_REGISTERED: u64 = 1 << 4;
const RING_ABSOLUTE: u64 = 1 << 5;
const RING_EXTENDED_REGISTERED: u64 = 1 << 6;
/// Linux, arch/x86/entry/syscalls/syscall_64.tbl.
const SYS_IO_PGETEVENTS: i64 = 333;

/// Returns the low 32 bits of an argument.
fn low_half(argument: u64) -> i32 {
    let [a, b, c, d, ..] = argument.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// Returns whether a receiving call returns less than requested only at the end of the stream, by an error or
/// a signal.
fn waits_for_all(flags: u64) -> bool {
    let flags = low_half(flags);
    flags & libc::MSG_WAITALL != 0
        && flags & (libc::MSG_PEEK | libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_TRUNC) == 0
}

/// Returns whether fewer than `wanted` completions lie in the queue of an io_uring.
fn is_waiting(process: &Process, fd: u64, wanted: u64, flags: u64) -> bool {
    let found = (flags & RING_REGISTERED == 0).then(|| open_file::completions(process, fd)).flatten();
    found.is_some_and(|found| u64::from(found) < wanted & 0xffff_ffff)
}

/// The file for whose space or bytes a transfer waits.
struct Transfer {
    fd: u64,
    receives: bool,
}

/// Returns a value that identifies the files of a transfer's descriptors; it changes if another file takes
/// their place.
fn files(process: &Process, call: &Call) -> u64 {
    let [first, second, third, ..] = call.args;
    let [in_and_out, out] = match call.nr {
        libc::SYS_getrandom | libc::SYS_io_getevents => return 0,
        libc::SYS_sendfile => [second, first],
        libc::SYS_splice => [first, third],
        _ => [first, first],
    };
    open_file::identity(process, in_and_out).rotate_left(1) ^ open_file::identity(process, out)
}

/// Returns whether a call moves data and may return after a part of it.
pub(crate) fn is_transfer(nr: i64) -> bool {
    matches!(
        nr,
        libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_preadv2
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_pwritev2
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_sendfile
            | libc::SYS_splice
            | libc::SYS_vmsplice
            | libc::SYS_tee
    )
}

/// Returns the file for which a call waits; `None` for calls without a file.
fn transfer_file(nr: i64, args: &[u64; 6]) -> Option<Transfer> {
    let (fd, receives) = match nr {
        libc::SYS_read | libc::SYS_recvfrom | libc::SYS_recvmsg => (args[0], true),
        libc::SYS_splice => (args[2], false),
        libc::SYS_getrandom | libc::SYS_io_getevents | libc::SYS_io_uring_enter => return None,
        _ => (args[0], false),
    };
    Some(Transfer { fd, receives })
}

/// Returns the socket whose own timeout applies to a wait.
fn socket_wait(process: &Process, nr: i64, args: &[u64; 6]) -> Option<(u64, Side)> {
    Some(match nr {
        libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_preadv2 => (args[0], Side::Receive),
        libc::SYS_connect
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwritev2
        | libc::SYS_sendfile => (args[0], Side::Send),
        libc::SYS_splice if open_file::kind(process, args[0]) == Kind::Socket => (args[0], Side::Receive),
        libc::SYS_splice => (args[2], Side::Send),
        _ => return None,
    })
}

/// Returns whether `poll` can wait for the same event as the call.
fn can_poll(nr: i64, side: Side, socket: &Socket) -> bool {
    match nr {
        libc::SYS_sendfile | libc::SYS_splice => false,
        libc::SYS_connect => [libc::AF_INET, libc::AF_INET6].contains(&socket.domain),
        _ => side == Side::Receive || socket.stream,
    }
}

/// Returns how a call takes its timeout, if it has one.
fn time(nr: i64) -> Option<Time> {
    Some(match nr {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => Time::Millis(3),
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => Time::Nanos(3),
        libc::SYS_rt_sigtimedwait | libc::SYS_ppoll => Time::Nanos(2),
        libc::SYS_io_getevents | SYS_IO_PGETEVENTS | libc::SYS_pselect6 => Time::Nanos(4),
        libc::SYS_select => Time::Micros(4),
        libc::SYS_io_uring_enter => Time::Ring,
        _ => return None,
    })
}

impl Time {
    /// Returns the timeout of a call in nanoseconds; `None` if the call has no timeout.
    fn read(self, process: &Process, args: &[u64; 6]) -> Option<u64> {
        let (at, scale) = match self {
            Self::Millis(i) => {
                return u64::try_from(low_half(args[i])).ok().map(|ms| ms * 1_000_000);
            }
            Self::Nanos(i) => (args[i], 1),
            Self::Micros(i) => (args[i], 1000),
            // The flags must mean such words, and neither registered memory nor an absolute time, which stays
            // right.
            Self::Ring => {
                let other = RING_ABSOLUTE | RING_EXTENDED_REGISTERED;
                if args[3] & (RING_EXTENDED | other) != RING_EXTENDED {
                    return None;
                }
                (process.u64(Avma(args[RING_ARG]).add(RING_TIME)).ok()?, 1)
            }
        };
        let at = Some(Avma(at)).filter(|at| at.0 != 0)?;
        let [seconds, part] = [process.u64(at).ok()?, process.u64(at.add(8)).ok()?];
        seconds.checked_mul(1_000_000_000)?.checked_add(part.checked_mul(scale)?)
    }

    /// Returns the argument for at least `ns` nanoseconds: its index, its value (`None` if it points to the
    /// bytes), and the bytes.
    fn of(self, ns: u64) -> (usize, Option<u64>, Vec<u8>) {
        let pair = |part: u64| [(ns / 1_000_000_000).to_le_bytes(), part.to_le_bytes()].concat();
        match self {
            Self::Millis(i) => (i, Some(ns.div_ceil(1_000_000)), Vec::new()),
            Self::Nanos(i) => (i, None, pair(ns % 1_000_000_000)),
            Self::Ring => (RING_ARG, None, pair(ns % 1_000_000_000)),
            // The kernel accepts a million microseconds as a second.
            Self::Micros(i) => (i, None, pair((ns % 1_000_000_000).div_ceil(1000))),
        }
    }
}

impl State {
    fn new(nr: i64, regs: &Regs) -> Self {
        Self {
            moved: 0,
            pass: true,
            again: 0,
            expired: 0,
            back: regs.ip(),
            nr,
            args: args(regs),
            deadline: 0,
            files: 0,
        }
    }

    fn read(process: &Process, slot: Slot) -> Option<Self> {
        let word = |offset| process.u64(slot.words().add(offset)).ok();
        let mut args = [0; 6];
        for (i, arg) in args.iter_mut().enumerate() {
            *arg = word(slots::ARGS + 8 * i as u64)?;
        }
        Some(Self {
            moved: word(slots::MOVED)?,
            pass: word(slots::PASS)? != 0,
            again: word(slots::AGAIN)?,
            expired: word(slots::EXPIRED)?.cast_signed(),
            back: Avma(word(slots::BACK)?),
            nr: word(slots::NUMBER)?.cast_signed(),
            args,
            deadline: word(slots::DEADLINE)?,
            files: word(slots::FILES)?,
        })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut words = [0; slots::WORDS];
        words[0] = self.moved;
        words[1] = u64::from(self.pass);
        words[2] = self.again;
        words[3] = self.expired.cast_unsigned();
        words[4] = self.back.0;
        words[5] = self.nr.cast_unsigned();
        words[6..12].copy_from_slice(&self.args);
        words[12] = self.deadline;
        words[13] = self.files;
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }
}

/// Writes bytes at an offset of a slot's words.
fn put(words: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let from = usize::try_from(offset).unwrap_or(0);
    words.resize(words.len().max(from + bytes.len()), 0);
    words[from..from + bytes.len()].copy_from_slice(bytes);
}

/// Returns the arguments of a system call.
pub(crate) fn args(regs: &Regs) -> [u64; 6] {
    let r = &regs.0;
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]
}

fn set_args(regs: &mut Regs, args: &[u64; 6]) {
    let r = &mut regs.0;
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = *args;
}

fn deadline(time_ns: u64) -> u64 {
    now_ns().saturating_add(time_ns)
}

/// Reads `CLOCK_MONOTONIC`. It is the same for all processes outside time namespaces, and only differences
/// count.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
