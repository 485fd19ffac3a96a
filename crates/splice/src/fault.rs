//! Numbered points at which a test lets whet die.
//!
//! Every step that changes the target passes one. With `WHET_FAULT=n` in the environment the n-th passed point
//! kills whet as `kill -9` would, so a test can walk through all of them and look at what is left.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

static PASSED: AtomicU64 = AtomicU64::new(0);
static FATAL: OnceLock<Option<u64>> = OnceLock::new();

/// Passes a point.
pub fn point() {
    let fatal = FATAL.get_or_init(|| std::env::var("WHET_FAULT").ok().and_then(|n| n.parse().ok()));
    if fatal.is_some_and(|n| PASSED.fetch_add(1, Ordering::Relaxed) + 1 == n) {
        tracee::kill_self();
    }
}
