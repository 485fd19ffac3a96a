//! `whet-fleet`: moves the fleet's objects between a spool folder and an object store.
//!
//! The daemon has no network; this program has no capabilities and no access to other processes. They share
//! the spool folder alone. All rules are in the crate `fleet`; this crate reads and writes:
//! - [`sync()`] is the host's part: it gives the host's profiles and votes, and takes aggregates.
//! - [`merge()`] is the merger's part: it folds, signs, and advances the waves.
//! - [`Remote`] is the object store, [`Spool`] the spool folder, [`Memory`] what a host remembers.
//!
//! Whatever fails, files of earlier runs stay as they are: an outage changes nothing.
#![forbid(unsafe_code)]

pub mod cli;
mod config;
mod error;
mod files;
mod keys;
mod memory;
mod merge;
mod operator;
mod pack;
mod remote;
mod spool;
mod status;
mod sync;

pub use config::{CONFIG_FILE, CONFIG_VARIABLE, Config};
pub use error::{Error, Exit, Trouble};
pub use keys::SigningKey;
pub use memory::{Memory, ProgramMemory};
pub use merge::{Merged, Merger, merge};
pub use pack::{pack, unpack};
pub use remote::{Changed, Listed, Remote};
pub use spool::{FolderSpool, Spool};
pub use sync::{Host, Synced, sync};
