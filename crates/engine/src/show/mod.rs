//! Reports about a target for people.

pub(crate) mod anatomy;
pub(crate) mod debug_names;
pub(crate) mod debuginfod;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod fetch;
pub(crate) mod fit;
pub(crate) mod flame;
pub(crate) mod heat;
pub(crate) mod overview;
pub(crate) mod reason;
mod sample;
