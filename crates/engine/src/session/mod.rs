//! One target in the hands of one whet: opened, locked, claimed, brought back to the state it was in.

pub(crate) mod claim;
pub(crate) mod lock;
pub(crate) mod pristine;
pub(crate) mod restore;
pub(crate) mod sign;
pub(crate) mod state;
pub(crate) mod target;
