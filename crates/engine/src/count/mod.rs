//! How often code runs: samples, and counting clones.

pub(crate) mod counting;
pub(crate) mod forked;
pub(crate) mod gs_watch;
pub(crate) mod instrument;
pub(crate) mod member;
pub(crate) mod prepare;
pub(crate) mod recount;
pub(crate) mod rounds;
pub(crate) mod sampling;
pub(crate) mod source;
