//! How one whet holds one target: opens it, locks it, and restores its state after a failure.

pub(crate) mod claim;
pub(crate) mod lock;
pub(crate) mod pristine;
pub(crate) mod restore;
pub(crate) mod sign;
pub(crate) mod state;
pub(crate) mod target;
