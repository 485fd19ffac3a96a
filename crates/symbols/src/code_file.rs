//! The ELF file that a code cache is mapped from. Unmodified tools find names and frame tables of clones in
//! it.
//!
//! Offset 0 of the file is the start of the clones' mapping, and an address in the file is its offset. The
//! clones' mapping is followed by that of the data, with the frame tables; both are segments. So tables that
//! state distances are right in the process and in the file. Behind the segments follow what the process does
//! not need: symbols, and the table of sections.
//!
//! ```text
//! 0        HEAD              data            data + its length
//! | header | clones ...      | ... tables    | symbols, names, sections |
//! |<-- segment, r-x ------->|<-- r-- ----->|
//! ```

use crate::Fragment;
use crate::elf::{CODE, HEADER, LOCAL_FUNC, PROGBITS, SECTION, STRTAB, SYMBOL, SYMTAB, Section, Strings};
use addr::{Addr, AvmaRange};

/// The bytes at the start of the clones' mapping that are for the ELF header.
pub const HEAD: u64 = 512;
/// Stands in bytes 12 to 16 of the header, which the format leaves unused. whet recognises the file by it.
pub const CLONES_MARK: [u8; 4] = *b"whet";

const NOTE: u32 = 7;
const ALLOC: u64 = 2;
/// Types of segments: code and data, notes, the index of frames, the rule for stacks.
const LOAD: u32 = 1;
const NOTES: u32 = 4;
const EH_FRAME: u32 = 0x6474_e550;
const STACK: u32 = 0x6474_e551;
const READ: u32 = 4;
const READ_WRITE: u32 = 6;
const READ_EXEC: u32 = 5;
const SEGMENT: usize = 56;
const SEGMENTS: usize = 5;
/// Where the note is: behind the headers of segments.
const NOTE_AT: usize = HEADER + SEGMENTS * SEGMENT;
/// The size of a note with a build-id of 20 bytes.
const NOTE_LEN: usize = 36;
const _: () = assert!((NOTE_AT + NOTE_LEN) as u64 <= HEAD);

/// What a code cache consists of.
#[derive(Clone, Copy, Debug)]
pub struct CodeFile<'a> {
    /// The mapping of the clones. Its first [`HEAD`] bytes hold no clone.
    pub text: AvmaRange,
    /// The mapping of the data, right behind.
    pub data: AvmaRange,
    /// The frame tables, in the data.
    pub eh_frame: AvmaRange,
    /// Their index, in the data.
    pub eh_frame_hdr: AvmaRange,
    /// The names of the clones. Others are left out.
    pub fragments: &'a [Fragment],
    /// The identity of the file.
    pub build_id: [u8; 20],
}

/// Returns the two ends of the file: its first [`HEAD`] bytes, and the bytes behind both segments.
#[must_use]
pub fn file_ends(cache: &CodeFile<'_>) -> (Vec<u8>, Vec<u8>) {
    let end = cache.text.len() + cache.data.len();
    let offset = |at: AvmaRange| at.start.0.wrapping_sub(cache.text.start.0);
    let mut tail = Tail { at: end, bytes: Vec::new(), names: Strings::default(), sections: Vec::new() };
    let inside = |range: AvmaRange, kind, flags, align| Section {
        kind,
        flags,
        at: offset(range),
        offset: offset(range),
        size: range.len(),
        align,
        ..Section::default()
    };
    let note = AvmaRange::with_len(cache.text.start.add(NOTE_AT as u64), NOTE_LEN as u64);
    let code = AvmaRange::new(cache.text.start.add(HEAD), cache.text.end);
    tail.describe(".text", inside(code, PROGBITS, CODE, 64));
    tail.describe(".note.gnu.build-id", inside(note, NOTE, ALLOC, 4));
    tail.describe(".eh_frame_hdr", inside(cache.eh_frame_hdr, PROGBITS, ALLOC, 4));
    tail.describe(".eh_frame", inside(cache.eh_frame, PROGBITS, ALLOC, 8));
    let mut strings = Strings::default();
    let mut symbols = vec![0; 24];
    for f in cache.fragments.iter().filter(|f| code.covers(&f.range)) {
        symbols.extend(strings.add(&f.symbol()).to_le_bytes());
        // Section 1 has the code.
        symbols.extend([LOCAL_FUNC, 0, 1, 0]);
        symbols.extend(offset(f.range).to_le_bytes());
        symbols.extend(f.range.len().to_le_bytes());
    }
    let locals = u32::try_from(symbols.len() as u64 / SYMBOL).unwrap_or(u32::MAX);
    let link = u32::try_from(tail.sections.len() + 2).unwrap_or(0);
    let symtab = Section { kind: SYMTAB, link, info: locals, align: 8, entry: SYMBOL, ..Section::default() };
    tail.add(".symtab", symtab, &symbols);
    let names = Section { kind: STRTAB, align: 1, ..Section::default() };
    tail.add(".strtab", names, &strings.0);
    let (bytes, table, sections) = tail.finish(names);
    (head(cache, end, table, sections), bytes)
}

/// The bytes behind the segments, and the sections so far.
struct Tail {
    /// The offset of the first byte.
    at: u64,
    bytes: Vec<u8>,
    names: Strings,
    sections: Vec<Section>,
}

impl Tail {
    /// Names a section whose bytes are elsewhere in the file.
    fn describe(&mut self, name: &str, section: Section) {
        let name = self.names.add(name);
        self.sections.push(Section { name, ..section });
    }

    fn add(&mut self, name: &str, section: Section, bytes: &[u8]) {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let offset = self.at + self.bytes.len() as u64;
        self.bytes.extend(bytes);
        self.describe(name, Section { offset, size: bytes.len() as u64, ..section });
    }

    /// Adds the names of sections, and the table of sections. Returns all bytes, the table's offset, and how
    /// many sections it has.
    fn finish(mut self, names: Section) -> (Vec<u8>, u64, u16) {
        let name = self.names.add(".shstrtab");
        let offset = self.at + self.bytes.len() as u64;
        self.sections.push(Section { name, offset, size: self.names.0.len() as u64, ..names });
        self.bytes.extend(&self.names.0);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let table = self.at + self.bytes.len() as u64;
        self.bytes.extend([0; SECTION]);
        for s in &self.sections {
            s.put(&mut self.bytes);
        }
        (self.bytes, table, u16::try_from(self.sections.len() + 1).unwrap_or(0))
    }
}

fn head(cache: &CodeFile<'_>, end: u64, table: u64, sections: u16) -> Vec<u8> {
    let mut h = vec![0; HEADER];
    let mut put = |at: usize, bytes: &[u8]| h[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(12, &CLONES_MARK);
    put(16, &3u16.to_le_bytes()); // ET_DYN: it may be mapped anywhere.
    put(18, &62u16.to_le_bytes()); // EM_X86_64
    put(20, &1u32.to_le_bytes());
    put(32, &(HEADER as u64).to_le_bytes());
    put(40, &table.to_le_bytes());
    for (at, size) in [(52, HEADER), (54, SEGMENT), (56, SEGMENTS), (58, SECTION)] {
        put(at, &u16::try_from(size).unwrap_or(0).to_le_bytes());
    }
    put(60, &sections.to_le_bytes());
    put(62, &sections.saturating_sub(1).to_le_bytes());
    let hdr = cache.eh_frame_hdr;
    let segments: [(u32, u32, u64, u64, u64); SEGMENTS] = [
        (LOAD, READ_EXEC, 0, cache.text.len(), 4096),
        (LOAD, READ, cache.text.len(), end - cache.text.len(), 4096),
        (EH_FRAME, READ, hdr.start.0.wrapping_sub(cache.text.start.0), hdr.len(), 4),
        (NOTES, READ, NOTE_AT as u64, NOTE_LEN as u64, 4),
        (STACK, READ_WRITE, 0, 0, 16),
    ];
    for (kind, flags, offset, size, align) in segments {
        h.extend(kind.to_le_bytes());
        h.extend(flags.to_le_bytes());
        for word in [offset, offset, offset, size, size, align] {
            h.extend(word.to_le_bytes());
        }
    }
    for word in [4u32, 20, 3] {
        h.extend(word.to_le_bytes());
    }
    h.extend(b"GNU\0");
    h.extend(cache.build_id);
    h.resize(usize::try_from(HEAD).unwrap_or(0), 0);
    h
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;
    use addr::Avma;
    use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SegmentFlags};

    /// Checks with an independent reader that each item is where its address says.
    #[test]
    fn reads_back() {
        let at = |offset, len| AvmaRange::with_len(Avma(0x5555_0020_0000 + offset), len);
        let fragment = |offset, part| Fragment { range: at(offset, 0x20), part, name: "work".to_owned() };
        let fragments =
            [fragment(HEAD, Part::Hot), fragment(0x800, Part::Warm), fragment(HEAD - 1, Part::Hot)];
        let cache = CodeFile {
            text: at(0, 0x1000),
            data: at(0x1000, 0x3000),
            eh_frame: at(0x2040, 0x100),
            eh_frame_hdr: at(0x2020, 0x20),
            fragments: &fragments,
            build_id: std::array::from_fn(|i| u8::try_from(i).unwrap()),
        };
        let (mut bytes, tail) = file_ends(&cache);
        assert_eq!((bytes.len() as u64, &bytes[12..16]), (HEAD, &CLONES_MARK[..]));
        bytes.resize(0x4000, 0xab);
        bytes.extend(tail);
        let file = object::File::parse(&*bytes).unwrap();
        assert_eq!(file.kind(), object::ObjectKind::Dynamic);
        assert_eq!(file.build_id().unwrap().unwrap(), cache.build_id);
        let segments: Vec<_> = file
            .segments()
            .map(|s| {
                let SegmentFlags::Elf { p_flags, .. } = s.flags() else { panic!() };
                (p_flags.0, s.address(), s.file_range())
            })
            .collect();
        assert_eq!(segments, [(5, 0, (0, 0x1000)), (4, 0x1000, (0x1000, 0x3000))]);
        for (name, range) in [
            (".text", (HEAD, 0x1000 - HEAD)),
            (".eh_frame_hdr", (0x2020, 0x20)),
            (".eh_frame", (0x2040, 0x100)),
        ] {
            let s = file.section_by_name(name).unwrap();
            assert_eq!((s.address(), s.size(), s.file_range()), (range.0, range.1, Some(range)), "{name}");
        }
        let symbols: Vec<_> = file
            .symbols()
            .map(|s| (s.name().unwrap().to_owned(), s.address(), s.size(), s.section_index().unwrap().0))
            .collect();
        // The third fragment is not in the code as a whole.
        let wanted = [("work.whet".to_owned(), HEAD, 0x20, 1), ("work.whet.warm".to_owned(), 0x800, 0x20, 1)];
        assert_eq!(symbols, wanted);
    }
}
