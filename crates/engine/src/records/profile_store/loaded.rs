//! The modules of a process by the ids that profiles name them by.

use image::{Image, Module, ModuleId};
use profile::BuildId;
use rustc_hash::FxHashMap;

/// The modules by id.
pub(crate) type Loaded = FxHashMap<BuildId, ModuleId>;

/// Returns the id of a module in profiles: the linker's build-id, or what `image` derives where there is none.
pub(crate) fn id_of(module: &Module) -> Option<BuildId> {
    module.identity().and_then(BuildId::new)
}

/// Returns the modules that have an id. Of modules with the same id, such as copies of one library, only the first in
/// memory is found by it.
pub(crate) fn loaded(image: &Image) -> Loaded {
    let mut loaded = Loaded::default();
    for (module, m) in image.numbered_modules() {
        if let Some(id) = id_of(m) {
            loaded.entry(id).or_insert(module);
        }
    }
    loaded
}
