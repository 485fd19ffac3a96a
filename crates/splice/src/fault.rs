//! Faults that tests request: death at numbered points, places that are taken, journals of a later version, and
//! pages and lists that are full sooner.
//!
//! Every step that changes the target passes a point. With `WHET_FAULT=n` in the environment the n-th passed
//! point kills whet as `kill -9` would. So a test can try all points and check the remaining state.

use crate::journal::{RECORD_LEN, VERSION};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

static PASSED: AtomicU64 = AtomicU64::new(0);
static FATAL: OnceLock<Option<u64>> = OnceLock::new();

/// Passes a numbered point; kills whet at the requested one.
pub fn point() {
    let fatal = FATAL.get_or_init(|| std::env::var("WHET_FAULT").ok().and_then(|n| n.parse().ok()));
    if fatal.is_some_and(|n| PASSED.fetch_add(1, Ordering::Relaxed) + 1 == n) {
        tracee::kill_self();
    }
}

/// Returns whether to act as if something else had been mapped at the place of a mapping. `WHET_TAKEN=i,k` names
/// these mappings by their numbers, counted from 1.
pub fn is_taken() -> bool {
    static MAPPINGS: AtomicU64 = AtomicU64::new(0);
    static TAKEN: OnceLock<Vec<u64>> = OnceLock::new();
    let number = MAPPINGS.fetch_add(1, Ordering::Relaxed) + 1;
    let taken = TAKEN.get_or_init(|| {
        let wanted = std::env::var("WHET_TAKEN").unwrap_or_default();
        wanted.split(',').filter_map(|n| n.parse().ok()).collect()
    });
    taken.contains(&number)
}

/// If `WHET_JOURNAL_VERSION` is set, changes a journal and its records to a form that a whet of that version
/// might write. All parts that are not frozen differ.
pub fn write_as_later(header: &mut [u8], records: &mut [u8]) {
    let version = std::env::var("WHET_JOURNAL_VERSION").ok().and_then(|n| n.parse::<u32>().ok());
    let Some(version) = version.filter(|v| *v > VERSION) else { return };
    header[8..12].copy_from_slice(&version.to_le_bytes());
    // The two tables, and the bytes behind the frozen part.
    header[104..136].fill(0xa5);
    header[148..].fill(0xa5);
    for record in records.as_chunks_mut::<RECORD_LEN>().0 {
        record[8] += 100;
        record[10..16].fill(0xa5);
    }
}

/// Returns how many regions a page of the list accepts, if `WHET_PAGE_ROOM` is set.
pub fn page_room() -> Option<u64> {
    std::env::var("WHET_PAGE_ROOM").ok().and_then(|n| n.parse().ok())
}

/// Returns how many regions the list accepts, if `WHET_LIST_ROOM` is set.
pub fn list_room() -> Option<usize> {
    std::env::var("WHET_LIST_ROOM").ok().and_then(|n| n.parse().ok())
}
