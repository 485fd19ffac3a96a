//! Checks whether the address space for clones has room for more of them.

use crate::base::options::MEMORY_CAP;
use crate::{Error, OptimizeOptions};
use splice::{Cache, Installed, MOST_REGIONS};

/// Counting may use 1/`FOR_COUNTING` of the places for code caches, and of the address space for clones.
const FOR_COUNTING: usize = 2;

/// Returns whether a generation as large as the earlier ones may find no room.
pub(crate) fn is_full(installed: &Installed, options: &OptimizeOptions) -> bool {
    let sizes = installed.whole_generations().into_iter().map(|(_, caches)| (bytes(&caches), caches.len()));
    let (largest, caches) = sizes.fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
    let cap = options.memory_cap.unwrap_or(MEMORY_CAP).min(MEMORY_CAP);
    let room = cap.saturating_sub(installed.mapped_bytes());
    caches > 0 && (room < largest + largest / 4 || !installed.anchor.has_room_for(caches))
}

/// Returns whether counting clones have used their share of the room.
pub(crate) fn is_full_of_counting(installed: &Installed) -> bool {
    let counting: Vec<&Cache> = installed.caches.iter().filter(|c| c.header.counting).collect();
    bytes(&counting) >= MEMORY_CAP / FOR_COUNTING as u64 || counting.len() >= MOST_REGIONS / FOR_COUNTING
}

/// Returns whether an error means that there is no room.
pub(crate) fn no_room(e: &Error) -> bool {
    matches!(e, Error::MemoryCap { .. } | Error::Splice(splice::Error::TooManyCaches(_)))
}

fn bytes(caches: &[&Cache]) -> u64 {
    caches.iter().map(|c| c.header.text.len() + c.header.data.len()).sum()
}
