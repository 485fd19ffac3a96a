//! What does this function do: decoding, basic blocks, jump tables, liveness.
//!
//! You give a function's bytes, its unwind rows and a reader for constant data; it gives a control-flow graph in
//! which every instruction is known and everything that is not proven is an *outside* destination, or it gives a
//! [`Refusal`]. Control that leaves the graph goes on at its original address, so the graph may be incomplete; it
//! may never be wrong about an instruction that is in it.
#![forbid(unsafe_code)]

mod analyse;
mod cfg;
mod cycles;
mod decode;
mod explore;
mod extents;
mod graph;
mod liveness;
mod point;
mod ranges;
mod redirect_sites;
mod refusal;
mod stackcheck;
mod sweep;
mod table;
mod text;
mod verify;

pub use analyse::{Callee, CalleeKind, Input, Part, analyse};
pub use cfg::*;
pub use cycles::in_cycles;
pub use extents::{Extent, Extents, MergeInput, merge};
pub use liveness::{Live, Liveness, Question, STATUS_FLAGS};
pub use point::{CountBy, Point, Spot};
pub use ranges::Ranges;
pub use redirect_sites::{RedirectSite, RedirectSites, SiteForm, countable_sites, redirect_sites};
pub use refusal::Refusal;
pub use stackcheck::stack_check;
pub use sweep::{Branches, DirectCall, Piece, sweep, sweep_part};
pub use text::{ParseError, parse};
pub use verify::{Place, Rule, Violation, verify};
