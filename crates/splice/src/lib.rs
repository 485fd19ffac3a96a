//! How do clones get into a process, and out of its way again?
//!
//! You give finished bytes, their addresses and the list of redirects; it gives a process that runs them, and takes
//! them out again. What it did is written down in the target itself: an *anchor* (one per process) that lists the
//! code caches and answers the unwinder's question, and a *journal* per code cache that lists every changed byte.
//!
//! The order of an installation is what makes every prefix of it a right program:
//! 1. the anchor, the code caches and their journals are mapped and filled; nothing refers to them yet;
//! 2. the caches' unwind tables are published in the anchor;
//! 3. with the world stopped, the unwinder's lookup is led through the anchor (by a pointer, or by the entry of
//!    `dl_iterate_phdr`), then redirects are written, each inside one page by one write, each valid alone;
//! 4. the journal is marked as applied.
#![forbid(unsafe_code)]

mod anchor;
mod counter_sites;
mod counters;
mod discover;
mod error;
mod fault;
mod finishing;
mod first_stop;
mod frozen;
mod huge;
mod install;
mod journal;
mod list;
mod lookup;
mod mark;
mod module_list;
mod page;
mod placement;
mod quiet;
mod recount;
mod reinstate;
mod toggle;

pub use anchor::{Anchor, Hook, MAX_REGIONS, Region};
pub use counter_sites::CounterSites;
pub use counters::{CounterArea, counter_words, counters, release_counters};
pub use discover::{Cache, Installed, discover};
pub use error::Error;
pub use finishing::admit as admit_finishing_code;
pub use first_stop::FirstStop;
pub use huge::{offered as huge_pages_offered, recover_pending, setting as huge_pages_setting};
pub use install::{BLOB_OFFSET, CachePlan, EEXIST, InstallReport, Plan, huge_wanted, install};
pub use journal::{Header, Record, RedirectKind, State, parse_header, parse_records};
pub use list::MOST_REGIONS;
pub use lookup::{FindObject, decode_stub};
pub use mark::{forget_unloaded, mark_modules};
pub use placement::{Hole, NoRoom, Request, place};
pub use quiet::{Ended, end_counting};
pub use recount::{Recount, count_again};
pub use reinstate::reinstate;
pub use toggle::{Policy, ToggleReport, overrule, redo, undo};
