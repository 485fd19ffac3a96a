//! Detects changes of the originals of rebuilt functions by others: a probe, a breakpoint, a hook, the
//! program itself.
//!
//! Such a change has no effect while a clone runs. It replaces the first byte of an instruction, which no
//! redirect does. So comparing these bytes with the files is enough. The next rebuild leaves a changed
//! function alone ([`code::Refusal::ForeignChange`]).

use crate::build::map_store;
use crate::records::notes::Notes;
use crate::{Error, Target};
use addr::{Addr, Avma, AvmaRange};
use emit::{AddressMap, Link};
use rustc_hash::FxHashMap;
use splice::Cache;
use tracee::{MappedFile, Pid};

/// Instructions that are no further apart than this are read together. Bytes.
const GAP: u64 = 64;

/// First bytes of the instructions of rebuilt functions, as the files have them.
#[derive(Clone, Debug, Default)]
pub struct Originals {
    runs: Vec<Run>,
    names: Vec<String>,
}

/// Some instructions of one function.
#[derive(Clone, Debug)]
struct Run {
    range: AvmaRange,
    /// Offsets in the range, with the file's bytes there.
    firsts: Vec<(usize, u8)>,
    /// The function's index in the names.
    function: usize,
}

impl Originals {
    /// Reads the originals of a target's newest generation. A function whose file is not available is left
    /// out.
    #[must_use]
    pub fn of(target: &Target, notes: Option<&Notes>) -> Self {
        match target.installed.as_ref().filter(|i| i.generation() > 0) {
            Some(installed) => Self::of_caches(target, installed.of(installed.generation()), notes),
            None => Self::default(),
        }
    }

    /// Reads the originals of some code caches of a target.
    pub(crate) fn of_caches<'a>(
        target: &Target,
        caches: impl Iterator<Item = &'a Cache>,
        notes: Option<&Notes>,
    ) -> Self {
        let mut all = Self::default();
        let names: FxHashMap<u64, &str> =
            notes.into_iter().flat_map(|n| &n.functions).map(|f| (f.at, f.name.as_str())).collect();
        let mut files = Files { target, open: FxHashMap::default() };
        for cache in caches {
            for (entry, map) in map_store::read(&cache.map(&target.process).unwrap_or_default()) {
                let function = all.names.len();
                all.names.push(names.get(&entry.0).map_or_else(|| entry.to_string(), |&n| n.to_owned()));
                all.runs.extend(runs(&map).into_iter().filter_map(|starts| files.run(&starts, function)));
            }
        }
        all
    }

    /// Returns the names of the functions that now differ from their files. Functions of a library that has
    /// been unloaded do not count.
    #[must_use]
    pub fn changed(&self, target: &Target) -> Vec<String> {
        let ranges: Vec<AvmaRange> = self.runs.iter().map(|r| r.range).collect();
        let live = target.process.read_each(&ranges);
        let differs = |(run, live): &(&Run, Option<Vec<u8>>)| {
            let live = live.as_deref().unwrap_or_default();
            run.firsts.iter().any(|&(offset, first)| live.get(offset).is_some_and(|&now| now != first))
        };
        let mut functions: Vec<usize> =
            self.runs.iter().zip(live).filter(differs).map(|(run, _)| run.function).collect();
        functions.dedup();
        let mut names: Vec<String> =
            functions.into_iter().filter_map(|f| self.names.get(f).cloned()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Returns the names of a process's rebuilt functions whose originals another program has changed.
///
/// # Errors
/// Returns [`Error`] if the target cannot be read.
pub fn changed_originals(pid: Pid) -> Result<Vec<String>, Error> {
    let target = Target::open(pid)?;
    let notes = target.installed.as_ref().and_then(|i| Notes::of(&target.process, i));
    Ok(Originals::of(&target, notes.as_ref()).changed(&target))
}

/// Returns the starts of the original's instructions, as runs without large gaps.
fn runs(map: &AddressMap) -> Vec<Vec<Avma>> {
    let own = map.entries().iter().filter(|e| matches!(e.link, Link::Copy | Link::Dropped));
    let mut starts: Vec<Avma> = own.map(|e| e.original).collect();
    starts.sort_unstable();
    starts.chunk_by(|a, b| b.since(*a).is_some_and(|gap| gap <= GAP)).map(<[Avma]>::to_vec).collect()
}

/// Files that the target has mapped, by the start of the mapping.
struct Files<'a> {
    target: &'a Target,
    open: FxHashMap<Avma, Option<MappedFile>>,
}

impl Files<'_> {
    fn run(&mut self, starts: &[Avma], function: usize) -> Option<Run> {
        let range = AvmaRange::new(*starts.first()?, starts.last()?.add(1));
        let mapping = self.target.maps.iter().find(|m| m.range.covers(&range) && m.inode != 0)?;
        let process = &self.target.process;
        let open = || process.mapped_file(mapping.path.as_deref()?, mapping.range);
        let file = self.open.entry(mapping.range.start).or_insert_with(open).as_ref()?;
        let from = mapping.offset.checked_add(range.start.since(mapping.range.start)?)?;
        let bytes = file.part(from, range.len())?;
        let first = |at: &Avma| {
            let offset = usize::try_from(at.since(range.start)?).ok()?;
            Some((offset, *bytes.get(offset)?))
        };
        Some(Run { range, firsts: starts.iter().filter_map(first).collect(), function })
    }
}
