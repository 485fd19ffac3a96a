//! Execution counts of blocks and edges.
//!
//! Counts come from one of three sources: samples, made consistent by flow inference; the CPU's records of
//! taken branches; or exact counters, as few as determine all counts.
//!
//! The input is control-flow graphs, and sampled instruction addresses, branch stacks, or the values of the
//! counters of a [`CounterPlan`]. The output is counts of blocks and edges in which as much flows into each
//! block as out of it, and the choice of what is hot. This crate touches no process and no clock; the same
//! input always gives the same counts. A [`Profile`] keeps counts in files.
#![forbid(unsafe_code)]

mod branch_flow;
mod branch_stacks;
mod call_graph;
mod choose;
mod counters;
mod counts;
mod file;
mod flow_graph;
mod links;
mod mend;
mod min_cost_flow;
mod samples;
#[cfg(test)]
mod test_cfg;

pub use branch_flow::{BranchProfile, Rejected};
pub use branch_stacks::{BranchStacks, Run, Taken};
pub use call_graph::{CallCount, CallGraph, CallNode, EstimatedStack};
pub use choose::{Coverage, choose, hot_blocks};
pub use counters::{CounterPlan, Solved};
pub use counts::{BlockCounts, Counts, infer};
pub use file::{
    Binding, BlockProfile, BuildId, Fdata, FunctionKey, FunctionProfile, Looks, ModuleProfile, Origin,
    PROFILE_VERSION, Place, Profile, ProfileError, SiteProfile, fdata, hash, shape,
};
pub use samples::{BlockIndex, BlockSamples, WEIGHT_SCALE, weights};
