//! What is cloned, and how it is laid out. Pure.

pub(crate) mod block_order;
pub(crate) mod calls;
pub(crate) mod candidate;
pub(crate) mod candidates;
pub(crate) mod estimate;
pub(crate) mod function_order;
pub(crate) mod inlining;
pub(crate) mod laid_out;
pub(crate) mod lay_out;
pub(crate) mod loop_copies;
pub(crate) mod loops;
pub(crate) mod rare;
pub(crate) mod samples;
pub(crate) mod shuffle;
pub(crate) mod sites;
pub(crate) mod split;
pub(crate) mod stacks;
pub(crate) mod targets;
#[cfg(test)]
pub(crate) mod test_candidate;
pub(crate) mod through_redirects;
