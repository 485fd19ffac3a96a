//! Errors of changes to a process.

use addr::{Avma, AvmaRange};

/// The reason why an installation, undo or redo failed, wholly or in part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process could not be read, written or stopped.
    #[error(transparent)]
    Tracee(#[from] tracee::Error),
    /// Its threads did not stop in time; all of them were resumed.
    #[error(transparent)]
    Stop(#[from] tracee::StopError),
    /// Part of its memory is no longer mapped.
    #[error("the target's memory changed under whet: {0}")]
    Unreadable(#[from] addr::Unreadable),
    /// A journal or anchor that this version cannot read.
    #[error(
        "the journal at {at} cannot be read ({what}); use the version of whet that wrote it, or restart the target"
    )]
    Journal {
        /// Its address.
        at: Avma,
        /// The fault found.
        what: &'static str,
    },
    /// An installation of a later whet: this version can only undo it.
    #[error(
        "a newer whet has been at work (its journal has version {0}); this one can only show its status and undo it"
    )]
    NewerJournal(u32),
    /// The target has mapped something else where memory was to be mapped.
    #[error("the target has mapped something else at {0:?} meanwhile")]
    PlaceTaken(AvmaRange),
    /// The kernel did not map memory at the requested address.
    #[error("the target could not map {len} bytes at {at}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Map {
        /// Requested address.
        at: Avma,
        /// Requested size in bytes.
        len: u64,
        /// The kernel's error number.
        errno: i32,
    },
    /// The kernel refused a mapping by a limit or a rule.
    #[error("the target may not map {len} bytes at {at}: {}", std::io::Error::from_raw_os_error(*.errno))]
    MapDenied {
        /// Requested address.
        at: Avma,
        /// Requested size in bytes.
        len: u64,
        /// The kernel's error number.
        errno: i32,
    },
    /// The file of a code cache could not be made.
    #[error("a file for clones could not be made: {0}")]
    CodeFile(#[source] std::io::Error),
    /// No room for a code cache near its module.
    #[error(transparent)]
    NoRoom(#[from] crate::NoRoom),
    /// Written bytes did not read back.
    #[error(
        "bytes written to {range:?} did not read back; the kernel may forbid forced writes (proc_mem.force_override)"
    )]
    WriteLost {
        /// The range written.
        range: AvmaRange,
    },
    /// The list of code caches has no room for another cache.
    #[error("the target holds {0} code caches, and its list has no room for another")]
    TooManyCaches(usize),
    /// A redirect that cannot be written safely (it crosses a page, or has an impossible size).
    #[error("redirect at {0} is not one that can be written safely")]
    UnsoundRedirect(Avma),
    /// A redirect of an older whet, which would cover the first byte of an instruction.
    #[error(
        "the redirect at {0}, of an older whet, covers the start of an instruction; run `whet optimize` again"
    )]
    CoversInstruction(Avma),
    /// The unwinder's lookup does not have the expected value.
    #[error("the unwinder's lookup slot at {slot} holds {found:#x} where {expected:#x} was expected")]
    LookupChanged {
        /// The pointer in the dynamic loader's data.
        slot: Avma,
        /// Its value.
        found: u64,
        /// The expected value.
        expected: u64,
    },
    /// An unwinder's call of `dl_iterate_phdr` has changed.
    #[error("the unwinder's call of dl_iterate_phdr at {0} has changed; another program has patched it")]
    WalkChanged(Avma),
    /// A thread uses its GS base itself, so nothing can be counted through it.
    #[error("thread {tid} has a GS base of its own ({base:#x}): counters would meet its data")]
    GsBaseInUse {
        /// The thread.
        tid: i32,
        /// Its GS base.
        base: u64,
    },
    /// An older whet counted in the target, and its clones may still count.
    #[error("an older whet counted functions in it, and its clones and GS bases are in use for good")]
    CountsForGood,
    /// The target got no memory for counters.
    #[error("the target could not map {len} bytes for counters: {}", std::io::Error::from_raw_os_error(*.errno))]
    NoCounterMemory {
        /// Requested size in bytes.
        len: u64,
        /// The kernel's error number.
        errno: i32,
    },
    /// Another whet, perhaps with a /proc of its own, has added clones meanwhile.
    #[error("another whet is at work on the target")]
    NotAlone,
    /// The frame tables of the lookup routine itself could not be made.
    #[error(transparent)]
    Unwind(#[from] unwind::Error),
}
