//! The modules of a process by the ids that profiles name them by.

use image::{Image, Module, ModuleId};
use profile::BuildId;
use rustc_hash::FxHashMap;

/// The modules by id.
pub(crate) type Loaded = FxHashMap<BuildId, ModuleId>;

/// Returns the id of a module in profiles: the linker's build-id, or what `image` derives where there is none.
pub(crate) fn id_of(module: &Module) -> Option<BuildId> {
    module.identity.as_deref().and_then(BuildId::new)
}

/// Returns the modules that have an id.
pub(crate) fn loaded(image: &Image) -> Loaded {
    let modules = image.numbered_modules();
    modules.filter_map(|(id, m)| Some((id_of(m)?, id))).collect()
}
