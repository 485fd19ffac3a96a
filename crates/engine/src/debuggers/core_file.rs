//! A core dump as the memory of a process that has ended.
//!
//! Format: System V ABI, "Object Files" and "Program Loading"; `fs/binfmt_elf.c` of Linux shows what is
//! written. Nothing is trusted: a core may be truncated, and a server's core is too large to be read whole.

use crate::Error;
use addr::{Addr, Avma, AvmaRange, ReadMemory, Unreadable};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const ET_CORE: u16 = 4;
const EM_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
/// The count of program headers is too large for its field and is in the first section header (`sh_info`).
const PN_XNUM: u16 = 0xffff;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;
/// Far more mappings than any kernel permits by default.
const MAX_HEADERS: u64 = 1 << 22;
/// Room for the registers of tens of thousands of threads.
const MAX_NOTES: u64 = 256 << 20;

/// A mapping whose bytes are in the core.
#[derive(Clone, Copy, Debug)]
struct Load {
    range: AvmaRange,
    offset: u64,
    flags: u32,
}

/// An opened core.
#[derive(Debug)]
pub(crate) struct CoreFile {
    path: PathBuf,
    file: File,
    /// By ascending address.
    loads: Vec<Load>,
    notes: Vec<u8>,
}

impl CoreFile {
    /// Opens a core of a 64-bit x86 process.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Core`].
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::File { path: path.to_owned(), source };
        let bad = |what| Error::Core { path: path.to_owned(), what };
        let file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let bytes = |at: u64, len: u64| -> Result<Vec<u8>, Error> {
            if at.checked_add(len).is_none_or(|end| end > size) {
                return Err(bad("it is cut off"));
            }
            let mut b = vec![0; usize::try_from(len).map_err(|_| bad("impossible sizes"))?];
            file.read_exact_at(&mut b, at).map_err(|_| bad("it is cut off"))?;
            Ok(b)
        };
        let mut head = [0; 64];
        let is_core = file.read_exact_at(&mut head, 0).is_ok()
            && head[..6] == *b"\x7fELF\x02\x01"
            && half(&head, 16) == ET_CORE
            && half(&head, 18) == EM_X86_64;
        if !is_core {
            return Err(bad("no core file of a 64-bit x86 process"));
        }
        let count = match half(&head, 56) {
            PN_XNUM => u64::from(word(&bytes(long(&head, 40), 64)?, 44)),
            n => u64::from(n),
        };
        if half(&head, 54) != 56 || count > MAX_HEADERS {
            return Err(bad("program headers of unknown form"));
        }
        let table = bytes(long(&head, 32), count * 56)?;
        let (mut loads, mut notes) = (Vec::new(), Vec::new());
        for h in table.as_chunks::<56>().0 {
            let (kind, flags, offset, at, in_file) =
                (word(h, 0), word(h, 4), long(h, 8), long(h, 16), long(h, 32));
            match kind {
                PT_LOAD if in_file > 0 && at.checked_add(in_file).is_some() => {
                    loads.push(Load { range: AvmaRange::with_len(Avma(at), in_file), offset, flags });
                }
                PT_NOTE if notes.is_empty() && in_file <= MAX_NOTES => notes = bytes(offset, in_file)?,
                _ => {}
            }
        }
        loads.sort_by_key(|l| l.range);
        Ok(Self { path: path.to_owned(), file, loads, notes })
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the ranges that may hold an anchor: neither writable nor executable.
    pub(crate) fn journal_candidates(&self) -> Vec<AvmaRange> {
        self.loads.iter().filter(|l| l.flags & (PF_W | PF_X) == 0).map(|l| l.range).collect()
    }

    /// Returns the path of the program, if the core has it.
    pub(crate) fn exe(&self) -> Option<String> {
        let auxv = self.note(NT_AUXV)?;
        let headers = image::auxv::parse(auxv).at_phdr?.0;
        let files = self.note(NT_FILE)?;
        // A count and the size of a page; then start, end and page offset of each file; then the paths.
        let count = usize::try_from(long_at(files, 0)?).ok()?;
        let names = 16usize.checked_add(count.checked_mul(24)?)?;
        // The file's size limits the search, whatever the count is.
        let i = files.get(16..names)?.as_chunks::<24>().0.iter().position(|f| {
            let (start, end) = (long(f, 0), long(f, 8));
            (start..end).contains(&headers)
        })?;
        let name = files.get(names..)?.split(|b| *b == 0).nth(i)?;
        Some(String::from_utf8_lossy(name).into_owned())
    }

    /// Returns the content of the first note of a kind.
    fn note(&self, wanted: u32) -> Option<&[u8]> {
        let mut rest = self.notes.as_slice();
        loop {
            let size = |at| usize::try_from(word_at(rest, at)?).ok()?.checked_next_multiple_of(4);
            let name_end = size(0)?.checked_add(12)?;
            let end = name_end.checked_add(size(4)?)?;
            let content =
                rest.get(name_end..name_end.checked_add(usize::try_from(word_at(rest, 4)?).ok()?)?)?;
            if word_at(rest, 8)? == wanted {
                return Some(content);
            }
            rest = rest.get(end..)?;
        }
    }
}

impl ReadMemory for CoreFile {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        let err = Unreadable { at, len: buf.len() as u64 };
        let mut at = at;
        let mut rest = buf;
        while !rest.is_empty() {
            let i = self.loads.partition_point(|l| l.range.end <= at);
            let load = self.loads.get(i).filter(|l| l.range.contains(at)).ok_or(err)?;
            let skipped = at.since(load.range.start).ok_or(err)?;
            let here = load.range.end.since(at).ok_or(err)?.min(rest.len() as u64);
            let (now, later) = rest.split_at_mut(usize::try_from(here).map_err(|_| err)?);
            let offset = load.offset.checked_add(skipped).ok_or(err)?;
            self.file.read_exact_at(now, offset).map_err(|_| err)?;
            at = at.add(here);
            rest = later;
        }
        Ok(())
    }
}

fn array_at<const N: usize>(b: &[u8], at: usize) -> Option<[u8; N]> {
    b.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn long_at(b: &[u8], at: usize) -> Option<u64> {
    array_at(b, at).map(u64::from_le_bytes)
}

fn word_at(b: &[u8], at: usize) -> Option<u32> {
    array_at(b, at).map(u32::from_le_bytes)
}

/// Same as [`long_at`], in a header of known size.
fn long(b: &[u8], at: usize) -> u64 {
    long_at(b, at).unwrap_or(0)
}

fn word(b: &[u8], at: usize) -> u32 {
    word_at(b, at).unwrap_or(0)
}

fn half(b: &[u8], at: usize) -> u16 {
    array_at(b, at).map_or(0, u16::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a core with eight bytes at 0x5000, and the program headers of `/bin/it` at 0x40 of the file,
    /// mapped at 0x4000.
    fn core() -> Vec<u8> {
        let words = |w: &[u64]| w.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let note = |kind: u32, content: &[u8]| {
            let mut n = Vec::new();
            for w in [5, u32::try_from(content.len()).unwrap(), kind] {
                n.extend(w.to_le_bytes());
            }
            n.extend(b"CORE\0\0\0\0");
            n.extend(content);
            n.resize(n.len().next_multiple_of(4), 0);
            n
        };
        let files =
            [words(&[2, 4096, 0x1000, 0x2000, 0, 0x4000, 0x5000, 0]), b"/lib\0/bin/it\0".to_vec()].concat();
        let notes = [note(NT_AUXV, &words(&[3, 0x4040, 0, 0])), note(NT_FILE, &files)].concat();
        let mut b = b"\x7fELF\x02\x01\x01".to_vec();
        b.resize(16, 0);
        b.extend([4, 0, 62, 0, 1, 0, 0, 0]);
        b.extend(words(&[0, 64, 0]));
        b.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        let at = 64 + 2 * 56;
        for (kind, flags, offset, address, len) in
            [(PT_NOTE, 0u32, at, 0, notes.len() as u64), (PT_LOAD, 4, at + notes.len() as u64, 0x5000, 8)]
        {
            b.extend(kind.to_le_bytes());
            b.extend(flags.to_le_bytes());
            b.extend(words(&[offset, address, 0, len, len, 1]));
        }
        b.extend(notes);
        b.extend(b"contents");
        b
    }

    fn opened(bytes: &[u8]) -> Result<CoreFile, Error> {
        static USED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let n = USED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("whet-core-{}-{n}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let core = CoreFile::open(&path);
        std::fs::remove_file(path).unwrap();
        core
    }

    #[test]
    fn a_whole_core_is_read() {
        let core = opened(&core()).unwrap();
        assert_eq!(core.bytes(AvmaRange::with_len(Avma(0x5001), 7)).unwrap(), b"ontents");
        assert!(core.u64(Avma(0x5001)).is_err() && core.u32(Avma(0x4fff)).is_err());
        assert_eq!(core.journal_candidates(), [AvmaRange::with_len(Avma(0x5000), 8)]);
        assert_eq!(core.exe().unwrap(), "/bin/it");
    }

    /// A search through so many files would take years.
    #[test]
    fn the_file_count_is_bounded_by_the_note() {
        let mut b = core();
        let count = b.windows(16).position(|w| w == [2u64, 4096].map(u64::to_le_bytes).concat()).unwrap();
        b[count..count + 8].copy_from_slice(&(1u64 << 58).to_le_bytes());
        assert_eq!(opened(&b).unwrap().exe(), None);
    }

    /// For a second: any bytes, no panic.
    #[test]
    fn any_bytes_are_read_or_refused() {
        let whole = core();
        arbtest::arbtest(|u| {
            let mut b = whole.clone();
            for _ in 0..u.int_in_range(0..=6)? {
                let i = u.choose_index(b.len())?;
                b[i] = u.arbitrary()?;
            }
            b.truncate(u.int_in_range(0..=b.len())?);
            if let Ok(core) = opened(&b) {
                let _ = (core.exe(), core.u64(Avma(0x5000)));
                let _ = splice::discover(&core, &core.journal_candidates());
            }
            Ok(())
        })
        .budget_ms(1000);
    }
}
