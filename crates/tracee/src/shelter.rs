//! whet's memory in the target for return frames of threads whose stack has no room for a frame.
//!
//! The first frame of such a thread lies on untouched pages of the stack on which it was started. These pages
//! are few. So with this frame the thread maps a shelter, which stays. From the shelter it then returns the
//! pages to the untouched state. A later whet finds the shelter by its shape and its mark.

use crate::group::Group;
use crate::process::mapping_range;
use crate::remote::{Gadgets, SystemCall};
use crate::return_frame::Place;
use crate::{Error, Process, Tid};
use addr::{Addr, Avma, AvmaRange, ReadMemory};

/// Room for a frame with the largest floating-point state, and room below it. Bytes.
const LEN: u64 = 64 << 10;
/// The inaccessible guard on either side, so that the shelter is merged with no other mapping. Bytes.
const GUARD: u64 = 4096;
/// The first bytes of a shelter.
const MARK: [u8; 16] = *b"whet's shelter 1";

/// Finds the shelter that an earlier whet has made.
pub(crate) fn find(process: &Process, maps: &str) -> Option<AvmaRange> {
    shaped(maps)
        .into_iter()
        .find(|at| process.bytes(AvmaRange::with_len(at.start, 16)).is_ok_and(|b| b == MARK))
}

/// Returns the mappings with the shape of a shelter.
fn shaped(maps: &str) -> Vec<AvmaRange> {
    let parsed: Vec<(AvmaRange, &str)> =
        maps.lines().filter_map(|l| Some((mapping_range(l)?, l.split(' ').nth(1)?))).collect();
    parsed
        .windows(3)
        .filter(|w| w[1].0.len() == LEN && [w[0].1, w[1].1, w[2].1] == ["---p", "rw-p", "---p"])
        .filter(|w| w[0].0.end == w[1].0.start && w[1].0.end == w[2].0.start)
        .map(|w| w[1].0)
        .collect()
}

impl Group {
    /// Makes a thread map a shelter. Meanwhile its frame lies at `first`, in the formerly untouched `pages`.
    pub(crate) fn make_shelter(
        &mut self,
        tid: Tid,
        gadgets: Gadgets,
        first: &Place,
        pages: AvmaRange,
    ) -> Result<(), Error> {
        let arg = |i: i32| i64::from(i).cast_unsigned();
        let access = arg(libc::PROT_READ | libc::PROT_WRITE);
        let flags = arg(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let map = SystemCall(libc::SYS_mmap, [0, LEN + 2 * GUARD, access, flags, u64::MAX, 0]);
        let at = Avma(self.one_syscall(tid, gadgets, first, map)?.cast_unsigned());
        let shelter = AvmaRange::with_len(at.add(GUARD), LEN);
        self.process.write(shelter.start, &MARK)?;
        self.process.set_shelter(shelter);
        // From here on the thread's frames lie in the shelter. If one of these calls fails, a later whet
        // makes another.
        let place = self.place(tid)?;
        for guard in [at, shelter.end] {
            let none = SystemCall(libc::SYS_mprotect, [guard.0, GUARD, arg(libc::PROT_NONE), 0, 0, 0]);
            remote_only(self.one_syscall(tid, gadgets, &place, none))?;
        }
        let forget = [pages.start.0, pages.len(), arg(libc::MADV_DONTNEED), 0, 0, 0];
        remote_only(self.one_syscall(tid, gadgets, &place, SystemCall(libc::SYS_madvise, forget)))
    }
}

/// Ignores the failure of a call that the kernel refused.
fn remote_only(result: Result<i64, Error>) -> Result<(), Error> {
    match result {
        Ok(_) | Err(Error::Remote { .. }) => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_recognized_by_shape() {
        let maps = "1000-2000 ---p 0 00:00 0 \n2000-12000 rw-p 0 00:00 0 \n12000-13000 ---p 0 00:00 0 \n\
            13000-23000 rw-p 0 00:00 0 \n23000-24000 ---p 0 00:00 0 \n\
            30000-31000 ---p 0 00:00 0 \n31000-41000 r--p 0 00:00 0 \n41000-42000 ---p 0 00:00 0 \n\
            50000-51000 ---p 0 00:00 0 \n51000-61000 rw-p 0 00:00 0 \n62000-63000 ---p 0 00:00 0 \n";
        let found: Vec<u64> = shaped(maps).iter().map(|r| r.start.0).collect();
        assert_eq!(found, [0x2000, 0x13000]);
    }
}
