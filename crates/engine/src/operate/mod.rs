//! What is in a target now, and taking it out or putting it in force again.

pub(crate) mod control;
pub(crate) mod status;
pub(crate) mod switch;
pub(crate) mod verify;
pub(crate) mod watcher;
