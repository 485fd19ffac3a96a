//! `optimize`: all steps in order.

pub(crate) mod family;
pub(crate) mod figures;
pub(crate) mod optimize;
pub(crate) mod report;
pub(crate) mod reuse;
