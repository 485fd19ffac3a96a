//! Detects new code that may change the GS base while functions are counted.

use crate::analyse::gs::{GsUse, RUN_UP, in_code};
use addr::{Addr, AvmaRange, ReadMemory};
use image::{Image, Mapping};
use tracee::Process;

/// Detects new code while functions are counted.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    process: &'a Process,
    /// Executable mappings that were already searched.
    known: Vec<Mapping>,
    /// The ranges of whet's own code.
    ours: Vec<AvmaRange>,
}

impl<'a> Watch<'a> {
    /// Starts with the known mappings. The mappings of modules have been searched already.
    pub(crate) fn new(process: &'a Process, image: &Image) -> Self {
        let is_known = |m: &&Mapping| m.perms.x && image.module_of(m.range.start).is_some();
        Self { process, known: image.maps().iter().filter(is_known).cloned().collect(), ours: Vec::new() }
    }

    /// Excludes whet's own code from the search.
    pub(crate) fn leave(&mut self, ours: impl IntoIterator<Item = AvmaRange>) {
        self.ours.extend(ours);
    }

    /// Returns a use of the GS base in new executable mappings. A mapping that cannot be read is being
    /// unmapped and is ignored.
    pub(crate) fn look(&mut self) -> Option<GsUse> {
        let maps = image::maps::parse(&self.process.maps_text().ok()?).ok()?;
        let is_known = |m: &Mapping| {
            let same = |k: &Mapping| k.range == m.range && k.same_file(m) && k.offset == m.offset;
            self.known.iter().any(same) || self.ours.iter().any(|o| o.overlaps(&m.range))
        };
        let is_new = |m: &Mapping| m.perms.x && m.path.as_deref() != Some("[vsyscall]") && !is_known(m);
        let new: Vec<Mapping> = maps.into_iter().filter(is_new).collect();
        new.into_iter().find_map(|m| {
            let bytes = self.process.bytes(m.range).ok()?;
            let start = m.range.start;
            self.known.push(m);
            in_code(start, &bytes, &|place| Some(place.sub(RUN_UP.min(place.0))))
        })
    }
}
