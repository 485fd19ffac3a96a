//! What a rebuild records: figures, notes in the target, profiles in files.

pub(crate) mod dyno;
pub(crate) mod notes;
pub(crate) mod originals;
pub(crate) mod profile_store;
pub(crate) mod shares;
