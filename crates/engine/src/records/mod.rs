//! What a rebuild writes down: its figures, the notes in the target, profiles in files.

pub(crate) mod dyno;
pub(crate) mod notes;
pub(crate) mod originals;
pub(crate) mod profile_store;
pub(crate) mod shares;
