//! Maps memory into a process by its own system calls.

use crate::anchor::PAGE;
use crate::{Error, fault};
use addr::{Addr, Avma, AvmaRange};
use tracee::Stopped;

/// System call numbers and flags of x86-64 Linux.
pub(crate) mod nr {
    pub const MMAP: i64 = 9;
    pub const MPROTECT: i64 = 10;
    pub const MUNMAP: i64 = 11;
    /// `MAP_PRIVATE | MAP_FIXED_NOREPLACE` (Linux 4.17; a hint before, so the result is checked).
    pub const MAP_FLAGS: u64 = 0x02 | 0x10_0000;
    /// `MAP_ANONYMOUS`.
    pub const ANONYMOUS: u64 = 0x20;
}

/// Protections. Nothing is ever mapped writable.
pub(crate) mod prot {
    pub const READ: u64 = 1;
    pub const READ_EXEC: u64 = 1 | 4;
}

pub(crate) type Call<'a> = &'a mut dyn FnMut(i64, [u64; 6]) -> Result<i64, tracee::Error>;

/// Maps anonymous memory at an address that is free.
pub(crate) fn map(call: Call<'_>, at: Avma, len: u64, protection: u64) -> Result<(), Error> {
    map_from(call, at, len, protection, (u64::MAX, 0, nr::ANONYMOUS))
}

/// Maps memory at an address that is free: from a descriptor and an offset, with more flags.
pub(crate) fn map_from(
    call: Call<'_>,
    at: Avma,
    len: u64,
    protection: u64,
    (fd, offset, flags): (u64, u64, u64),
) -> Result<(), Error> {
    let failed = |errno: i32| match errno {
        EEXIST => Error::PlaceTaken(AvmaRange::with_len(at, len)),
        errno if DENIED.contains(&errno) => Error::MapDenied { at, len, errno },
        errno => Error::Map { at, len, errno },
    };
    if fault::is_taken() {
        return Err(failed(EEXIST));
    }
    match call(nr::MMAP, [at.0, len, protection, nr::MAP_FLAGS | flags, fd, offset]) {
        Ok(got) if got == at.0.cast_signed() => Ok(()),
        Ok(elsewhere) => {
            call(nr::MUNMAP, [elsewhere.cast_unsigned(), len, 0, 0, 0, 0])?;
            Err(failed(EEXIST))
        }
        Err(tracee::Error::Remote { errno, .. }) => Err(failed(errno)),
        Err(e) => Err(e.into()),
    }
}

/// Errors of a mapping that a limit or a rule forbids: `EPERM`, `EAGAIN`, `ENOMEM`, `EACCES` (mmap(2)).
const DENIED: [i32; 4] = [1, 11, 12, 13];

/// The error of a kernel with `MAP_FIXED_NOREPLACE` if the range is mapped already.
const EEXIST: i32 = 17;

/// Maps the two pages of an anchor.
pub(crate) fn map_anchor(stopped: &mut Stopped<'_>, at: Avma) -> Result<(), Error> {
    let mut call = |nr, args| stopped.syscall(nr, args);
    map(&mut call, at, 2 * PAGE, prot::READ_EXEC)?;
    if let Err(e) = call(nr::MPROTECT, [at.add(PAGE).0, PAGE, prot::READ, 0, 0, 0]) {
        call(nr::MUNMAP, [at.0, 2 * PAGE, 0, 0, 0, 0])?;
        return Err(e.into());
    }
    Ok(())
}
