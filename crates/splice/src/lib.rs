//! Puts clones into a process, and redirects execution away from them again.
//!
//! The caller passes finished bytes, their addresses and the list of redirects. `splice` writes them into a
//! process, and can undo the redirects. It records its changes in the target itself. An *anchor* (one per
//! process) lists the code caches and answers unwinders. A *journal* per code cache lists every changed byte.
//!
//! The order of an installation makes every prefix of it a correct program:
//! 1. the anchor, the code caches and their journals are mapped and filled; nothing refers to them yet;
//! 2. the caches' unwind tables are published in the anchor;
//! 3. with all threads stopped, the unwinder's lookup is redirected to the anchor, by a pointer or by calls
//!    of `dl_iterate_phdr`. Then redirects are written, each inside one page by one write, each valid alone;
//! 4. the journal is marked as applied.
#![forbid(unsafe_code)]

mod anchor;
mod code_file;
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
mod mapping;
mod mark;
mod module_list;
mod page;
mod placement;
mod quiet;
mod recount;
mod reinstate;
mod toggle;
mod write;

pub use anchor::{Anchor, Hook, MAX_REGIONS, Region};
pub use code_file::CodeFile;
pub use counter_sites::CounterSites;
pub use counters::{CounterArea, counter_words, counters, release_counters};
pub use discover::{Cache, Installed, discover};
pub use error::Error;
pub use finishing::admit as admit_finishing_code;
pub use first_stop::FirstStop;
pub use huge::{offered as huge_pages_offered, recover_pending, setting as huge_pages_setting};
pub use install::{BLOB_OFFSET, CachePlan, HUGE, InstallReport, InstallTimes, Plan, huge_wanted, install};
pub use journal::{Header, Record, RedirectKind, State, parse_header, parse_records};
pub use list::MOST_REGIONS;
pub use lookup::{FindObject, decode_stub};
pub use mark::{forget_unloaded, mark_modules};
pub use placement::{Limit, NoRoom, Request, place};
pub use quiet::{Ended, end_counting};
pub use recount::{Recount, count_again};
pub use reinstate::reinstate;
pub use toggle::{Policy, ToggleReport, overrule, put_in_force, redo, undo};
