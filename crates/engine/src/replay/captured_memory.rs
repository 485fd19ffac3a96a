//! The memory and the files of a capture, in place of a process.

use addr::{Addr, Avma, AvmaRange, ReadMemory, Unreadable};
use image::{FileParts, Files, Mapping};
use std::sync::Arc;

/// Bytes of memory by address. A byte outside of them cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CapturedMemory {
    /// The bytes, ascending, without overlap.
    pub(crate) runs: Vec<(Avma, Vec<u8>)>,
}

/// The byte that stands for code that a capture leaves out: `int3`, to which no control flow leads.
pub(super) const LEFT_OUT: u8 = 0xcc;

impl CapturedMemory {
    fn run_at(&self, at: Avma) -> Option<(AvmaRange, &[u8])> {
        let after = self.runs.partition_point(|(start, _)| *start <= at);
        let (start, bytes) = self.runs.get(after.checked_sub(1)?)?;
        let range = AvmaRange::with_len(*start, bytes.len() as u64);
        range.contains(at).then_some((range, bytes))
    }
}

impl ReadMemory for CapturedMemory {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        let fail = Unreadable { at, len: buf.len() as u64 };
        let (mut at, mut rest) = (at, buf);
        while !rest.is_empty() {
            let (range, bytes) = self.run_at(at).ok_or(fail)?;
            let from = at.since(range.start).and_then(|o| usize::try_from(o).ok());
            let here = from.and_then(|from| bytes.get(from..)).ok_or(fail)?;
            let len = here.len().min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&here[..len]);
            at = at.add(len as u64);
            rest = later;
        }
        Ok(())
    }
}

/// A part of a module's file, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePart {
    /// The start of the module's first mapping.
    pub(crate) module: Avma,
    /// The offset in the file. Bytes.
    pub(crate) from: u64,
    /// Its bytes; `None` if they could not be read.
    pub(crate) bytes: Option<Vec<u8>>,
    /// How many bytes were wanted.
    pub(crate) len: u64,
}

/// The parts of files in a capture.
#[derive(Clone, Debug)]
pub(crate) struct CapturedFiles(Arc<Vec<FilePart>>);

impl CapturedFiles {
    pub(crate) fn new(parts: &[FilePart]) -> Self {
        Self(Arc::new(parts.to_vec()))
    }
}

impl Files for CapturedFiles {
    fn open(&self, mapping: &Mapping) -> Option<Box<dyn FileParts>> {
        let module = mapping.range.start;
        self.0.iter().any(|p| p.module == module).then(|| {
            let parts: Box<dyn FileParts> = Box::new(OneFile { module, parts: Arc::clone(&self.0) });
            parts
        })
    }
}

/// One file of a capture.
struct OneFile {
    module: Avma,
    parts: Arc<Vec<FilePart>>,
}

impl FileParts for OneFile {
    fn part(&self, from: u64, len: u64) -> Option<Vec<u8>> {
        let wanted = |p: &&FilePart| p.module == self.module && p.from == from && p.len == len;
        self.parts.iter().find(wanted)?.bytes.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_runs_are_read_as_one_and_gaps_are_not_read() {
        let memory = CapturedMemory {
            runs: vec![(Avma(0x1000), vec![1; 16]), (Avma(0x1010), vec![2; 16]), (Avma(0x2000), vec![3; 16])],
        };
        let read = |at, len| memory.bytes(AvmaRange::with_len(Avma(at), len)).ok();
        assert_eq!(read(0x100e, 4), Some(vec![1, 1, 2, 2]));
        assert_eq!(read(0x2000, 16), Some(vec![3; 16]));
        assert_eq!(read(0x101f, 2), None);
        assert_eq!(read(0xfff, 2), None);
        assert_eq!(read(0x5000, 0), Some(Vec::new()));
    }

    #[test]
    fn only_what_was_read_of_a_file_is_there() {
        let part = |from, len, bytes| FilePart { module: Avma(0x1000), from, bytes, len };
        let file = OneFile {
            module: Avma(0x1000),
            parts: Arc::new(vec![part(0, 2, Some(vec![7, 8])), part(100, 2, None)]),
        };
        assert_eq!(file.part(0, 2), Some(vec![7, 8]));
        assert_eq!((file.part(0, 1), file.part(100, 2), file.part(50, 2)), (None, None, None));
    }
}
