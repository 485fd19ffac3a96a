//! What is cloned, and how it is laid out. Pure.

pub(crate) mod calls;
pub(crate) mod candidate;
pub(crate) mod candidates;
pub(crate) mod function_order;
pub(crate) mod late_bound;
pub(crate) mod loops;
pub(crate) mod samples;
pub(crate) mod seldom;
pub(crate) mod shortcuts;
pub(crate) mod shuffle;
pub(crate) mod split;
pub(crate) mod stacks;
pub(crate) mod targets;
#[cfg(test)]
pub(crate) mod test_candidate;
pub(crate) mod turns;
