//! A fleet: hosts start warm from the profiles of other hosts.
//!
//! Hosts contribute profiles to an object store. A merger folds the contributions of a build into one
//! *aggregate*, signs it, and offers it to the hosts in waves. This crate holds all rules: names in the store,
//! signed documents, limits, the fold, votes and waves. The input is bytes and numbers, the output is bytes and
//! decisions. It touches no network, no file and no clock. `fleet_sync` moves the bytes; the daemon applies
//! the same rules to the aggregates that it accepts.
//!
//! **Trust.** A profile decides layout, never correctness. A wrong profile costs speed, and memory up to the
//! cap. The rules bound even that:
//! - A host accepts only aggregates with a signature by a key of its own configuration ([`Keys`]).
//! - A host counts once in an aggregate, and a small share of hosts cannot decide the weight of any function
//!   ([`fold()`]).
//! - The clock of a host or a merger decides nothing. Ages follow from the store's own times
//!   ([`Contributed::is_dated_right`]), and waves advance by the mergers' steps ([`Head`]).
//! - An aggregate of another build of a program serves a build without one only if it is in force on all hosts
//!   of its own build ([`Newest`]).
//! - Hosts whose comparison finds harm vote against an aggregate; enough votes withdraw it ([`Votes`]).
#![forbid(unsafe_code)]

mod age;
mod contribution;
mod document;
mod error;
mod fold;
mod head;
mod names;
mod newest;
mod policy;
mod sample;
mod spool;
mod versioned;
mod votes;

pub use contribution::{CONTRIBUTION_LIMIT, prepare, read};
pub use document::{Keys, Purpose, Signed, seal};
pub use error::Refused;
pub use fold::{Aggregate, Contributed, Folded, LOST_DAYS, fold};
pub use head::{Head, Offer, Step, advance};
pub use names::{Build, Class, Day, Digest, HostId, Key, Program};
pub use newest::{Name, Newest, read_former};
pub use policy::Policy;
pub use profile::Profile;
pub use sample::{Rank, SAMPLE, by_rank, should_contribute};
pub use spool::{BuildReport, HostReport, Slot, Taken, Vote};
pub use votes::{Verdict, Votes};
