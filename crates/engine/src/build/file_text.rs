//! The code of a module according to its file.

use crate::analyse::program::{Analysed, FuncId, Program};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use image::{Image, Module, ModuleId};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use tracee::{MappedFile, Process};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// The executable bytes of one module from its file, at the addresses where they are mapped.
#[derive(Debug)]
pub struct FileText {
    file: MappedFile,
    /// The mapped ranges, with their offsets in the file.
    pieces: Vec<(AvmaRange, u64)>,
}

impl FileText {
    /// Opens the file from which a module was mapped. Returns `None` if the file is no longer available
    /// (deleted and not reachable, or another file has its name now).
    #[must_use]
    pub fn load(process: &Process, image: &Image, module: &Module) -> Option<Self> {
        let first = image.mapping_of(module.extent.start)?;
        let file = process.mapped_file(module.path.as_deref()?, first.range)?;
        if !same_head(process, first.range.start, &file) {
            return None;
        }
        let code =
            image.maps().iter().filter(|m| m.perms.x && module.extent.covers(&m.range) && m.inode != 0);
        let piece = |m: &image::Mapping| {
            let len = m.range.len().min(file.size().checked_sub(m.offset)?);
            Some((AvmaRange::with_len(m.range.start, len), m.offset))
        };
        let pieces = code.map(piece).collect::<Option<_>>()?;
        Some(Self { file, pieces })
    }

    /// Returns the bytes of a range, if one mapping covers it.
    #[must_use]
    pub fn bytes(&self, range: AvmaRange) -> Option<Vec<u8>> {
        let (whole, offset) = self.pieces.iter().find(|(r, _)| r.covers(&range))?;
        self.file.part(offset.checked_add(range.start.since(whole.start)?)?, range.len())
    }

    /// Returns all ranges with their bytes; `None` for bytes that cannot be read.
    pub fn pieces(&self) -> impl Iterator<Item = (AvmaRange, Option<Vec<u8>>)> {
        self.pieces.iter().map(|&(r, _)| (r, self.bytes(r)))
    }
}

/// Returns whether a function differs from its file.
#[must_use]
pub fn is_foreign(files: &FxHashMap<ModuleId, FileText>, id: FuncId, analysed: &Analysed) -> bool {
    let Some(file) = files.get(&id.module) else { return false };
    let differs = |(range, bytes): &(AvmaRange, Vec<u8>)| file.bytes(*range).is_some_and(|f| f != *bytes);
    analysed.text.iter().any(differs)
}

/// Returns the functions that differ from their files.
#[must_use]
pub fn changed_functions(program: &Program<'_>, files: &FxHashMap<ModuleId, FileText>) -> BTreeSet<FuncId> {
    let mut changed = BTreeSet::new();
    for (range, in_file) in files.values().flat_map(FileText::pieces) {
        let (Some(in_file), Ok(bytes)) = (in_file, program.memory().bytes(range)) else { continue };
        let differs = (0u64..).zip(in_file.iter().zip(&bytes)).filter(|(_, (a, b))| a != b);
        changed.extend(differs.filter_map(|(offset, _)| program.find(range.start.add(offset))));
    }
    changed
}

/// Returns whether file and memory agree in their first page: headers, and in all linkers' outputs the build
/// id.
fn same_head(process: &Process, at: Avma, file: &MappedFile) -> bool {
    let Some(head) = file.part(0, file.size().min(PAGE)) else { return false };
    process.bytes(AvmaRange::with_len(at, head.len() as u64)).is_ok_and(|mem| mem == head)
}
