//! The modules of a process by build id.

use crate::analyse::program::Program;
use profile::BuildId;
use rustc_hash::FxHashMap;

/// Indices of modules by build id.
pub(super) type Loaded = FxHashMap<BuildId, usize>;

pub(super) fn loaded(program: &Program<'_>) -> Loaded {
    let modules = program.image().modules().iter().enumerate();
    modules.filter_map(|(i, m)| Some((BuildId::new(m.build_id.as_deref()?)?, i))).collect()
}
