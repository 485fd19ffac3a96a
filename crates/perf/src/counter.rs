//! Counts events of all threads of a process, without samples.

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

/// The events that can be counted. The CPU's events count only user mode, and need a PMU.
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
    /// Branches that the CPU predicted wrongly.
    BranchMisses,
    /// Fetches that the first-level instruction cache did not hold.
    InstructionCacheMisses,
    /// Fetches whose page the instruction TLB did not hold.
    InstructionTlbMisses,
    /// Cycles in which the fetch front end delivered no instruction.
    FrontEndStalls,
}

/// A count up to now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// The number of events.
    pub counted: u64,
    /// Nanoseconds of the threads' CPU time in which the event should have been counted.
    pub enabled_ns: u64,
    /// The part of them in which it was counted: less if the CPU has too few counters and events take turns.
    pub running_ns: u64,
}

/// A running count of one process. It ends when dropped.
#[derive(Debug)]
pub struct Counter {
    events: Vec<File>,
}

/// How often a listing of threads may change before it is used as it is.
const ATTEMPTS: u32 = 5;

impl Counter {
    /// Starts counting in all threads of process `pid`, present and future. Child processes are left out
    /// (before Linux 5.13 they are counted as well).
    ///
    /// The count is exact if no thread was created while this call opened events, which it ensures in a few
    /// attempts. In a process that creates threads all the time, such a thread may be left out. Threads
    /// created later are counted.
    ///
    /// # Errors Any of [`Error`]; no event stays open then. [`Error::Unavailable`] if the CPU or the kernel
    /// has no such event.
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
            // A thread is new. Whether it has inherited an event cannot be determined, so all are opened
            // again.
            listed = now;
        }
        let events = open_all(&listed, &mut attr)?;
        if events.is_empty() { Err(Error::Gone { pid }) } else { Ok(Self { events }) }
    }

    /// Returns the count so far, of all threads together, including ended ones.
    ///
    /// # Errors
    /// [`Error::Control`] if the kernel refuses.
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

/// Opens an event for each thread. A thread that has ended meanwhile is no error.
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
        // The kernel cannot leave child processes out.
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
    // A tracepoint lies in the kernel: without the kernel it would never be counted.
    if what != Counted::SystemCalls {
        attr.set_exclude_kernel(1);
        attr.set_exclude_hv(1);
    }
    Ok(attr)
}
