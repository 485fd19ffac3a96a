//! Counting, without samples, what all threads of a process do.

use crate::capability::paranoid;
use crate::error::Error;
use crate::event;
use crate::limit::RaisedFileLimit;
use crate::sampler::{open_error, threads};
use crate::tracefs;
use perf_event_open_sys::bindings::{self, perf_event_attr};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::{fs::File, io};

/// What can be counted. The CPU's events count user mode alone, and need a PMU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Counted {
    /// System calls, by the kernel's tracepoint at their entry.
    SystemCalls,
    /// The CPU clock, in nanoseconds of CPU time.
    TaskClock,
    /// Clock cycles.
    Cycles,
    /// Instructions that retired.
    Instructions,
    /// Branches that went where the CPU had not expected.
    BranchMisses,
    /// Fetches that the first-level instruction cache did not hold.
    InstructionCacheMisses,
    /// Fetches whose page the instruction TLB did not hold.
    InstructionTlbMisses,
    /// Cycles in which the front end delivered nothing.
    FrontEndStalls,
}

/// A count so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// What was counted.
    pub counted: u64,
    /// Nanoseconds of the threads' CPU time in which it was to be counted.
    pub enabled_ns: u64,
    /// Of those, in which it was: fewer where the CPU has not counters enough and they take turns.
    pub running_ns: u64,
}

/// A running count of one process. Ends when dropped.
#[derive(Debug)]
pub struct Counter {
    events: Vec<File>,
}

/// How often a listing of threads may change before it is taken as it is.
const ATTEMPTS: u32 = 5;

impl Counter {
    /// Begins to count in all threads of process `pid`, present and future; its child processes are left out (before
    /// Linux 5.13 they are counted as well).
    ///
    /// It is exact where no thread was born while this call opened events, as it makes sure of in a few attempts. In a
    /// process that never ceases to start threads, such a one may be left out; what is born later is counted.
    ///
    /// # Errors
    /// Any of [`Error`]; nothing is left open then. [`Error::Unavailable`] where the CPU or the kernel has no such event.
    pub fn open(pid: i32, what: Counted) -> Result<Self, Error> {
        let _limit = RaisedFileLimit::raise()
            .map_err(|source| Error::Control { action: "raise the file limit for", source })?;
        let mut attr = attributes(what)?;
        let mut listed = threads(pid)?;
        for _ in 0..ATTEMPTS {
            let events = open_all(&listed, &mut attr)?;
            let now = threads(pid)?;
            let is_complete = now.iter().all(|tid| listed.contains(tid));
            let counter = Self { events };
            if is_complete {
                return if counter.events.is_empty() { Err(Error::Gone { pid }) } else { Ok(counter) };
            }
            // A thread is new: whether it has inherited an event nobody can tell, so all are opened anew.
            listed = now;
        }
        let events = open_all(&listed, &mut attr)?;
        if events.is_empty() { Err(Error::Gone { pid }) } else { Ok(Self { events }) }
    }

    /// The count so far, of all threads together, those that have ended included.
    ///
    /// # Errors
    /// [`Error::Control`], should the kernel refuse.
    pub fn read(&mut self) -> Result<Count, Error> {
        let mut sum = Count::default();
        for event in &mut self.events {
            let mut bytes = [0; 24];
            event.read_exact(&mut bytes).map_err(|source| Error::Control { action: "read", source })?;
            let [counted, enabled, running] = [0, 8, 16].map(|at| word(&bytes, at));
            sum.counted = sum.counted.saturating_add(counted);
            sum.enabled_ns = sum.enabled_ns.saturating_add(enabled);
            sum.running_ns = sum.running_ns.saturating_add(running);
        }
        Ok(sum)
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

/// Opens an event for each thread. One that has ended meanwhile is no error.
fn open_all(tids: &[i32], attr: &mut perf_event_attr) -> Result<Vec<File>, Error> {
    let mut events = Vec::new();
    for &tid in tids {
        match open_inherited(tid, attr) {
            Ok(fd) => events.push(File::from(fd)),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
            Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {
                let limit = RaisedFileLimit::raise().map_or(0, |l| l.hard());
                return Err(Error::TooManyFiles { needed: tids.len(), limit });
            }
            Err(source) => return Err(open_error(tid, -1, source)),
        }
    }
    Ok(events)
}

fn open_inherited(tid: i32, attr: &mut perf_event_attr) -> io::Result<OwnedFd> {
    match event::open(attr, tid, -1) {
        // A kernel that does not know how to leave child processes out.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) && attr.inherit_thread() == 1 => {
            attr.set_inherit_thread(0);
            event::open(attr, tid, -1)
        }
        other => other,
    }
}

fn attributes(what: Counted) -> Result<perf_event_attr, Error> {
    use bindings as b;
    let cache = |id: b::perf_hw_cache_id| {
        u64::from(id)
            | u64::from(b::PERF_COUNT_HW_CACHE_OP_READ) << 8
            | u64::from(b::PERF_COUNT_HW_CACHE_RESULT_MISS) << 16
    };
    let (kind, config) = match what {
        Counted::SystemCalls => {
            let id = tracefs::tracepoint("raw_syscalls/sys_enter").map_err(|source| match source.kind() {
                io::ErrorKind::PermissionDenied => Error::Denied { paranoid: paranoid(), source },
                _ => Error::Unavailable(source),
            })?;
            (b::PERF_TYPE_TRACEPOINT, id)
        }
        Counted::TaskClock => (b::PERF_TYPE_SOFTWARE, b::PERF_COUNT_SW_TASK_CLOCK.into()),
        Counted::Cycles => (b::PERF_TYPE_HARDWARE, b::PERF_COUNT_HW_CPU_CYCLES.into()),
        Counted::Instructions => (b::PERF_TYPE_HARDWARE, b::PERF_COUNT_HW_INSTRUCTIONS.into()),
        Counted::BranchMisses => (b::PERF_TYPE_HARDWARE, b::PERF_COUNT_HW_BRANCH_MISSES.into()),
        Counted::InstructionCacheMisses => (b::PERF_TYPE_HW_CACHE, cache(b::PERF_COUNT_HW_CACHE_L1I)),
        Counted::InstructionTlbMisses => (b::PERF_TYPE_HW_CACHE, cache(b::PERF_COUNT_HW_CACHE_ITLB)),
        Counted::FrontEndStalls => (b::PERF_TYPE_HARDWARE, b::PERF_COUNT_HW_STALLED_CYCLES_FRONTEND.into()),
    };
    let mut attr = perf_event_attr {
        type_: kind,
        size: u32::try_from(size_of::<perf_event_attr>()).unwrap_or(b::PERF_ATTR_SIZE_VER0),
        config,
        read_format: (b::PERF_FORMAT_TOTAL_TIME_ENABLED | b::PERF_FORMAT_TOTAL_TIME_RUNNING).into(),
        ..perf_event_attr::default()
    };
    attr.set_inherit(1);
    attr.set_inherit_thread(1);
    // A tracepoint lies in the kernel: without the kernel it would never be passed.
    if what != Counted::SystemCalls {
        attr.set_exclude_kernel(1);
        attr.set_exclude_hv(1);
    }
    Ok(attr)
}
