//! The answer of `huge-pages`.

use image::Mapping;
use serde::Serialize;
use std::fmt;

/// The answer of `huge-pages`.
#[derive(Clone, Debug, Serialize)]
pub struct HugePagesReport {
    /// The process that was named.
    pub pid: i32,
    /// Its program.
    pub exe: String,
    /// True if nothing was moved, on request.
    pub dry_run: bool,
    /// True if a signal ended the command. What was moved stays.
    pub interrupted: bool,
    /// How long it took. Seconds.
    pub seconds: f64,
    /// Its large mappings of shared memory.
    pub mappings: Vec<SharedMapping>,
}

/// A mapping of shared memory. All sizes are in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct SharedMapping {
    /// Where it begins: a process address.
    pub at: String,
    /// The kernel's name of it.
    pub name: String,
    /// Its size.
    pub size: u64,
    /// True if it consists of reserved huge pages; it is left alone, and no figures are given.
    pub reserved: bool,
    /// How much of it has pages, in memory or in swap space.
    pub in_use: u64,
    /// How much lies in 2 MiB that nearly all have pages, and can be in huge pages.
    pub dense: u64,
    /// How much this command has moved, or found in huge pages as it was about to. 0 in a dry run.
    pub huge: u64,
    /// How much memory the huge pages take more than the small ones did.
    pub added: u64,
    /// The processes through which the kernel was asked.
    pub through: Vec<i32>,
    /// Why not all that is dense was moved.
    pub left: Option<NotMoved>,
}

impl SharedMapping {
    /// Returns what is known of a mapping by itself.
    pub(super) fn new(mapping: &Mapping) -> Self {
        Self {
            at: mapping.range.start.to_string(),
            name: mapping.path.clone().unwrap_or_default(),
            size: mapping.range.len(),
            reserved: false,
            in_use: 0,
            dense: 0,
            huge: 0,
            added: 0,
            through: Vec::new(),
            left: None,
        }
    }
}

/// Why memory was not moved.
#[derive(Clone, Debug, Serialize)]
pub struct NotMoved {
    /// A stable name of the reason.
    pub code: &'static str,
    /// The reason.
    pub why: String,
    /// Whether the same command may move it later.
    pub passes: bool,
}

impl NotMoved {
    pub(super) fn lasting(code: &'static str, why: &str) -> Self {
        Self { code, why: why.to_owned(), passes: false }
    }

    pub(super) fn passing(code: &'static str, why: &str) -> Self {
        Self { code, why: why.to_owned(), passes: true }
    }
}

/// How far the work is.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    /// Huge pages so far.
    pub(super) moved: usize,
    /// Huge pages in all.
    pub(super) of: usize,
}

impl fmt::Display for Moving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "moving shared memory: {} of {} huge pages", self.moved, self.of)
    }
}
