//! Analysis of a function: decoding, basic blocks, jump tables, liveness.
//!
//! Input: a function's bytes, its unwind rows and a reader for constant data. Output: a control-flow graph,
//! or a [`Refusal`]. Every instruction in the graph is known, and everything unproven is an *outside*
//! destination. Control that leaves the graph continues at its original address. So the graph may be
//! incomplete, but it is never wrong about an instruction that is in it.
#![forbid(unsafe_code)]

mod analyse;
mod cfg;
mod cycles;
mod decode;
mod explore;
mod extents;
mod gpr;
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
pub use gpr::Gpr;
pub use liveness::{Live, Liveness, Question, STATUS_FLAGS};
pub use point::{CountBy, Point, Spot};
pub use ranges::Ranges;
pub use redirect_sites::{RedirectSite, RedirectSites, SiteForm, countable_sites, redirect_sites};
pub use refusal::Refusal;
pub use stackcheck::stack_check;
pub use sweep::{Branches, DirectCall, Piece, sweep, sweep_part};
pub use text::{ParseError, parse};
pub use verify::{Place, Rule, Violation, verify};
