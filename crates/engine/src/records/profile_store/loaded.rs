//! The modules of a process by build id.

use image::{Image, ModuleId};
use profile::BuildId;
use rustc_hash::FxHashMap;

/// The modules by build id.
pub(crate) type Loaded = FxHashMap<BuildId, ModuleId>;

/// Returns the modules that have a build id.
pub(crate) fn loaded(image: &Image) -> Loaded {
    let modules = image.numbered_modules();
    modules.filter_map(|(id, m)| Some((BuildId::new(m.build_id.as_deref()?)?, id))).collect()
}
