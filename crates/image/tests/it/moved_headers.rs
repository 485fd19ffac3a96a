//! Files whose program headers were moved by a tool to a segment of their own at the file's end.

use crate::common::{Disk, Laid};
use addr::{Avma, AvmaRange, ReadMemory};
use image::{Image, MainHint, Mapping};
use std::path::{Path, PathBuf};

const PHDR: usize = 56;
const PT_LOAD: u32 = 1;
const PT_GNU_STACK: u32 = 0x6474_e551;
const BASE: u64 = 0x5555_5555_0000;

fn word(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().unwrap())
}

/// Writes a copy of `ls` with moved headers. Returns its path, and the headers' offset in the file and stated
/// address.
fn moved(dir: &Path) -> (PathBuf, u64, u64) {
    let mut file = std::fs::read("/bin/ls").unwrap();
    let old = usize::try_from(word(&file, 32)).unwrap();
    let n = usize::from(u16::from_le_bytes(file[56..58].try_into().unwrap()));
    let mut table = file[old..old + n * PHDR].to_vec();
    let kind = |p: &[u8]| u32::from_le_bytes(p[..4].try_into().unwrap());
    let loads = table.chunks(PHDR).filter(|p| kind(p) == PT_LOAD);
    let end = loads.map(|p| word(p, 16) + word(p, 40)).max().unwrap();
    let (offset, vaddr) = (file.len().next_multiple_of(4096) as u64, end.next_multiple_of(4096) + 0x1_0000);

    let len = table.len() as u64;
    let stack = table.chunks_mut(PHDR).find(|p| kind(p) == PT_GNU_STACK).unwrap();
    stack[..4].copy_from_slice(&PT_LOAD.to_le_bytes());
    stack[4..8].copy_from_slice(&4u32.to_le_bytes());
    for (at, value) in [(8, offset), (16, vaddr), (24, vaddr), (32, len), (40, len), (48, 4096)] {
        stack[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    file[old..old + n * PHDR].fill(0);
    file[32..40].copy_from_slice(&offset.to_le_bytes());
    file.resize(usize::try_from(offset).unwrap(), 0);
    file.extend(table);
    let path = dir.join("moved");
    std::fs::write(&path, file).unwrap();
    (path, offset, vaddr)
}

#[test]
fn moved_program_headers_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let (path, offset, vaddr) = moved(dir.path());
    let mut laid = Laid::new(path.to_str().unwrap(), BASE);
    let hint = MainHint { at_phdr: Some(Avma(BASE + vaddr)), ..MainHint::default() };
    let functions = |image: &Image| image.main().frames.fdes().len();
    let plain = Laid::new("/bin/ls", BASE);
    let whole = functions(&Image::load(&plain.maps, &plain, &Disk, &plain.hint()).unwrap());
    assert!(whole > 100, "{whole}");
    let load = |laid: &Laid| Image::load(&laid.maps, laid, &Disk, &hint);
    assert_eq!(functions(&load(&laid).unwrap()), whole);

    // Three more views of the file's end: one below, and two between. The second holds only zeros.
    let views = [(BASE - 0x8000, true), (BASE + vaddr - 0x8000, false), (BASE + vaddr - 0x4000, true)];
    let own = laid.bytes(AvmaRange::with_len(Avma(BASE + vaddr), 4096)).unwrap();
    let like = laid.maps.iter().find(|m| m.range.start == Avma(BASE + vaddr)).unwrap().clone();
    assert_eq!(like.offset, offset);
    for (at, whole) in views {
        laid.maps.push(Mapping { range: AvmaRange::with_len(Avma(at), 4096), ..like.clone() });
        laid.parts.push((Avma(at), if whole { own.clone() } else { vec![0; 4096] }));
    }
    laid.maps.sort_by_key(|m| m.range.start);
    assert_eq!(functions(&load(&laid).unwrap()), whole);

    // The headers are nowhere in memory.
    laid.maps.retain(|m| m.offset != offset);
    let error = Image::load(&laid.maps, &laid, &Disk, &laid.hint()).unwrap_err().to_string();
    assert!(error.contains("program headers outside the mapped file"), "{error}");
}
