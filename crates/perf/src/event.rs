//! One kernel event: opens it and controls it.

use perf_event_open_sys as sys;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use sys::bindings::{self, perf_event_attr};

/// The event that triggers samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The CPU's cycle counter.
    Cycles,
    /// The kernel's CPU clock of a thread, a timer. It needs no performance counters, which most VMs lack.
    CpuClock,
    /// The CPU's counter of taken branches: the only event with which AMD's Zen 3 records branches.
    TakenBranches,
}

/// Cycles per second assumed for a rate in samples per second. It is close enough for CPUs of 2 to 5 GHz. A
/// fixed period gives all samples equal weight.
const ASSUMED_HZ: u64 = 3_000_000_000;
/// Taken branches per second assumed for a rate in samples per second: one in ten cycles.
const ASSUMED_BRANCHES: u64 = ASSUMED_HZ / 10;
/// AMD's number for retired taken branches (`AMD_FAM19H_BRS_EVENT`). On other CPUs the number means another
/// event, which records branches only if their cycle counter does.
const AMD_TAKEN_BRANCHES: u32 = 0xc4;
const NANOSECONDS: u64 = 1_000_000_000;

/// Describes an event for user code only: disabled, inherited by new threads, with times of CLOCK_MONOTONIC.
pub(crate) fn attributes(source: Source, hz: u32, sample_type: u64, watermark: u32) -> perf_event_attr {
    let mut attr = perf_event_attr {
        size: u32::try_from(size_of::<perf_event_attr>()).unwrap_or(bindings::PERF_ATTR_SIZE_VER0),
        sample_type,
        clockid: libc::CLOCK_MONOTONIC,
        ..perf_event_attr::default()
    };
    let (kind, config, unit) = match source {
        Source::Cycles => (bindings::PERF_TYPE_HARDWARE, bindings::PERF_COUNT_HW_CPU_CYCLES, ASSUMED_HZ),
        Source::CpuClock => (bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_CPU_CLOCK, NANOSECONDS),
        Source::TakenBranches => (bindings::PERF_TYPE_RAW, AMD_TAKEN_BRANCHES, ASSUMED_BRANCHES),
    };
    attr.type_ = kind;
    attr.config = config.into();
    attr.__bindgen_anon_1.sample_period = (unit / u64::from(hz.max(1))).max(1);
    attr.__bindgen_anon_2.wakeup_watermark = watermark;
    attr.set_watermark(1);
    attr.set_disabled(1);
    attr.set_inherit(1);
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    attr.set_use_clockid(1);
    attr
}

/// Adds the last taken branches of user code to each sample.
pub(crate) fn with_branches(mut attr: perf_event_attr) -> perf_event_attr {
    attr.sample_type |= crate::record::field::BRANCH_STACK;
    attr.branch_sample_type = (bindings::PERF_SAMPLE_BRANCH_USER | bindings::PERF_SAMPLE_BRANCH_ANY).into();
    attr
}

/// Opens an event for one thread (0: this one) on one CPU (-1: any).
pub(crate) fn open(attr: &perf_event_attr, tid: i32, cpu: i32) -> io::Result<OwnedFd> {
    let mut attr = *attr;
    // SAFETY: `attr` is an initialized description of its stated size and outlives the call; the event only
    // measures.
    let fd =
        unsafe { sys::perf_event_open(&raw mut attr, tid, cpu, -1, bindings::PERF_FLAG_FD_CLOEXEC.into()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn checked(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Starts an event and its inherited copies.
pub(crate) fn enable(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: an event's descriptor, and a request without memory operands.
    checked(unsafe { sys::ioctls::ENABLE(fd.as_raw_fd(), 0) })
}

/// Stops an event and its inherited copies.
pub(crate) fn disable(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: an event's descriptor, and a request without memory operands.
    checked(unsafe { sys::ioctls::DISABLE(fd.as_raw_fd(), 0) })
}

/// Makes an event write to the buffer of `owner`, an event on the same CPU.
pub(crate) fn write_to(fd: &OwnedFd, owner: &OwnedFd) -> io::Result<()> {
    // SAFETY: two descriptors of events, and a request without memory operands.
    checked(unsafe { sys::ioctls::SET_OUTPUT(fd.as_raw_fd(), owner.as_raw_fd()) })
}

/// Returns the id of the event in its samples.
pub(crate) fn id(fd: &OwnedFd) -> io::Result<u64> {
    let mut id = 0u64;
    // SAFETY: the kernel writes one u64 to the address of a local variable.
    checked(unsafe { sys::ioctls::ID(fd.as_raw_fd(), &raw mut id) })?;
    Ok(id)
}
