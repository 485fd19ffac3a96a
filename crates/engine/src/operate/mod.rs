//! What a target holds now; undo and redo.

pub(crate) mod control;
pub(crate) mod status;
pub(crate) mod switch;
pub(crate) mod verify;
pub(crate) mod watcher;
