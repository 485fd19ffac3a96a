//! The modules of a process by build id.

use crate::analyse::program::Program;
use image::ModuleId;
use profile::BuildId;
use rustc_hash::FxHashMap;

/// The modules by build id.
pub(super) type Loaded = FxHashMap<BuildId, ModuleId>;

pub(super) fn loaded(program: &Program<'_>) -> Loaded {
    let modules = program.image().numbered_modules();
    modules.filter_map(|(id, m)| Some((BuildId::new(m.build_id.as_deref()?)?, id))).collect()
}
