//! What the files say a module's code should be.

use crate::program::{FuncId, Program};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use image::{Image, Module};
use rustc_hash::FxHashMap;
use tracee::Process;

/// The executable bytes of one module as its file has them, at the addresses they are mapped to.
#[derive(Debug)]
pub struct FileText {
    pieces: Vec<(AvmaRange, Vec<u8>)>,
}

impl FileText {
    /// Reads the file a module was mapped from; `None` where it is not to be had any more (deleted and not reachable,
    /// or another file has its name now).
    #[must_use]
    pub fn load(process: &Process, image: &Image, module: &Module) -> Option<Self> {
        let first = image.mapping_of(module.extent.start)?;
        let file = process.open_file(module.path.as_deref()?, first.range)?;
        if !same_head(process, first.range.start, &file) {
            return None;
        }
        let mut pieces = Vec::new();
        for m in image.maps().iter().filter(|m| m.perms.x && module.extent.covers(&m.range) && m.inode != 0) {
            let from = usize::try_from(m.offset).ok()?;
            let upto = from.saturating_add(usize::try_from(m.range.len()).ok()?).min(file.len());
            let bytes = file.get(from..upto)?.to_vec();
            pieces.push((AvmaRange::with_len(m.range.start, bytes.len() as u64), bytes));
        }
        Some(Self { pieces })
    }

    /// The bytes of a range, where one mapping holds it whole.
    #[must_use]
    pub fn bytes(&self, range: AvmaRange) -> Option<&[u8]> {
        let (whole, bytes) = self.pieces.iter().find(|(r, _)| r.covers(&range))?;
        let from = usize::try_from(range.start.since(whole.start)?).ok()?;
        let len = usize::try_from(range.len()).ok()?;
        bytes.get(from..from.checked_add(len)?)
    }

    /// All there is.
    pub fn pieces(&self) -> impl Iterator<Item = (AvmaRange, &[u8])> {
        self.pieces.iter().map(|(r, b)| (*r, b.as_slice()))
    }
}

/// Whether a function is not as its file has it.
#[must_use]
pub fn is_foreign(program: &Program<'_>, files: &FxHashMap<usize, FileText>, id: FuncId) -> bool {
    let Some(file) = files.get(&program.module(id).in_image) else { return false };
    let differs = |&p: &AvmaRange| file.bytes(p).is_some_and(|f| program.text(id, p) != Some(f));
    program.extent(id).parts.iter().any(differs)
}

/// Whether file and memory agree in their first page: headers, and in all linkers' outputs the build-id.
fn same_head(process: &Process, at: Avma, file: &[u8]) -> bool {
    let head = file.len().min(4096);
    process.bytes(AvmaRange::with_len(at, head as u64)).is_ok_and(|mem| mem == file[..head])
}
