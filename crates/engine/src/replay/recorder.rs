//! Records what a rebuild reads of a process.

use super::captured_memory::{CapturedMemory, FilePart, LEFT_OUT};
use addr::{Addr, Avma, AvmaRange, ReadMemory, Unreadable};
use image::{FileParts, Files, Image, Mapping, Module, ModuleKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes of a word.
const WORD: usize = 8;

/// Memory that records which of its pages were read.
pub(crate) struct Recorder<'a> {
    under: &'a (dyn ReadMemory + Sync),
    /// The numbers of these pages.
    pages: Mutex<BTreeSet<u64>>,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(under: &'a (dyn ReadMemory + Sync)) -> Self {
        Self { under, pages: Mutex::default() }
    }

    /// Returns the pages that were read, without the program's data. Of a page that the program may write,
    /// only two kinds of words remain: those that the module's file holds too, and addresses in modules. All
    /// others become zero. With `hot`, pages of code are left out that hold nothing of these ranges, and so are
    /// modules other than the program.
    pub(crate) fn finish(
        self,
        image: &Image,
        files: &dyn Files,
        hot: Option<&[AvmaRange]>,
    ) -> CapturedMemory {
        let numbers = |r: &AvmaRange| r.start.0 / PAGE..=r.end.sub(1).0 / PAGE;
        let pages: Option<BTreeSet<u64>> = hot.map(|ranges| ranges.iter().flat_map(numbers).collect());
        let is_left_out = |m: &Module| {
            m.kind != ModuleKind::Main && hot.is_some_and(|hot| !hot.iter().any(|r| r.overlaps(&m.extent)))
        };
        let mut runs: Vec<(Avma, Vec<u8>)> = Vec::new();
        for number in self.pages.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let page = AvmaRange::with_len(Avma(number * PAGE), PAGE);
            let Some(mapping) = image.mapping_of(page.start) else { continue };
            if image.module_of(page.start).is_some_and(is_left_out) {
                continue;
            }
            let Ok(mut bytes) = self.under.bytes(page) else { continue };
            if mapping.perms.w {
                remove_data(&mut bytes, image, &file_page(mapping, page, image, files));
            }
            if mapping.perms.x && pages.as_ref().is_some_and(|hot| !hot.contains(&number)) {
                bytes.fill(LEFT_OUT);
            }
            match runs.last_mut() {
                Some((at, run)) if at.add(run.len() as u64) == page.start => run.append(&mut bytes),
                _ => runs.push((page.start, bytes)),
            }
        }
        CapturedMemory { runs }
    }
}

/// Returns a page as it is in the file that is mapped there; empty without a file.
fn file_page(mapping: &Mapping, page: AvmaRange, image: &Image, files: &dyn Files) -> Vec<u8> {
    let offset = page.start.since(mapping.range.start).and_then(|o| o.checked_add(mapping.offset));
    let first = image.module_of(page.start).and_then(|m| image.mapping_of(m.extent.start));
    let file = first.filter(|_| mapping.inode != 0).and_then(|first| files.open(first));
    file.zip(offset).and_then(|(file, offset)| file.part(offset, PAGE)).unwrap_or_default()
}

/// Sets the words to zero that are neither in the file nor addresses in modules.
fn remove_data(bytes: &mut [u8], image: &Image, in_file: &[u8]) {
    for (i, word) in bytes.chunks_exact_mut(WORD).enumerate() {
        let value = u64::from_le_bytes(word.try_into().unwrap_or_default());
        let is_in_file = in_file.get(i * WORD..(i + 1) * WORD) == Some(&*word);
        if !is_in_file && image.module_of(Avma(value)).is_none() {
            word.fill(0);
        }
    }
}

impl ReadMemory for Recorder<'_> {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        self.under.read(at, buf)?;
        if !buf.is_empty() {
            let last = at.add(buf.len() as u64 - 1);
            let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
            pages.extend(at.0 / PAGE..=last.0 / PAGE);
        }
        Ok(())
    }
}

/// The bytes of a part of a file, by the start of the module's first mapping, offset and length; `None` if
/// they could not be read.
type Parts = BTreeMap<(Avma, u64, u64), Option<Vec<u8>>>;

/// Files that record what was read of them.
pub(crate) struct FileRecorder<'a> {
    under: &'a dyn Files,
    parts: Arc<Mutex<Parts>>,
}

impl<'a> FileRecorder<'a> {
    pub(crate) fn new(under: &'a dyn Files) -> Self {
        Self { under, parts: Arc::default() }
    }

    /// Returns what was read.
    pub(crate) fn finish(self) -> Vec<FilePart> {
        let parts = std::mem::take(&mut *self.parts.lock().unwrap_or_else(PoisonError::into_inner));
        let part = |((module, from, len), bytes)| FilePart { module, from, bytes, len };
        parts.into_iter().map(part).collect()
    }
}

impl Files for FileRecorder<'_> {
    fn open(&self, mapping: &Mapping) -> Option<Box<dyn FileParts>> {
        let file = self.under.open(mapping)?;
        let module = mapping.range.start;
        Some(Box::new(RecordedFile { module, file, parts: Arc::clone(&self.parts) }))
    }
}

struct RecordedFile {
    module: Avma,
    file: Box<dyn FileParts>,
    parts: Arc<Mutex<Parts>>,
}

impl FileParts for RecordedFile {
    fn part(&self, from: u64, len: u64) -> Option<Vec<u8>> {
        let bytes = self.file.part(from, len);
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.insert((self.module, from, len), bytes.clone());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_are_recorded() {
        let bytes = vec![5; 3 * 4096];
        let under = (Avma(0x1000), &bytes[..]);
        let recorder = Recorder::new(&under);
        assert!(recorder.u64(Avma(0x1ffc)).is_ok() && recorder.u64(Avma(0x9000)).is_err());
        assert!(recorder.pages.into_inner().unwrap().into_iter().eq([1, 2]));
    }
}
