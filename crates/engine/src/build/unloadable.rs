//! Modules that may be unloaded while the process lives: `dlopen` loaded them.
//!
//! Their clones are entered through redirects in their own pages, which vanish with the modules. The clones
//! stay mapped. So unloading needs no notification under two conditions:
//! - nothing outside of such a module leads into it or its clones, and no code outside relies on its contents
//!   ([`Program::lasts_for`]);
//! - nothing is written to its addresses once it is gone ([`splice::mark_modules`]).

use crate::Target;
#[cfg(doc)]
use crate::analyse::program::Program;
use crate::build::installer;
use crate::build::lookup::Lookup;
use image::{Image, Mapping, Module, ModuleId};

/// Marks all modules that may be unloaded. Returns the modules that could not be marked; they are left
/// alone.
///
/// The image was read before the mark was set. If the mappings of a module have changed since, another module
/// has taken its place.
pub(crate) fn mark(target: &Target, image: &Image, lookup: &Lookup) -> Vec<ModuleId> {
    let modules: Vec<(ModuleId, &Module)> = image.numbered_modules().filter(|(_, m)| !m.nodelete).collect();
    if !modules.is_empty() && target.installed.is_none() {
        // The stop that marks must not be the first. If the first stop fails here, the installation reports
        // the reason.
        let _ = installer::make_first_stop(target, image, lookup);
    }
    let pages: Vec<_> = modules.iter().map(|(_, m)| m.extent.start).collect();
    let marked =
        splice::mark_modules(&target.process, &pages, target.installed.as_ref().map(|i| i.anchor.at))
            .unwrap_or_default();
    let now = target.maps_now().unwrap_or_default();
    let marked = |i: usize, m: &Module| {
        marked.get(i).is_some_and(|marked| *marked) && mappings(&target.maps, m).eq(mappings(&now, m))
    };
    modules.into_iter().enumerate().filter(|(i, (_, m))| !marked(*i, m)).map(|(_, (id, _))| id).collect()
}

/// Returns the mappings of a module, by address.
fn mappings<'a>(maps: &'a [Mapping], module: &'a Module) -> impl Iterator<Item = &'a Mapping> {
    maps.iter().filter(|m| m.range.overlaps(&module.extent))
}
