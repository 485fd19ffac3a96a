//! The symbol file: an ELF file with the names and frame tables of code in a process, but without the code.
//!
//! Formats: System V ABI, "Object Files", and its AMD64 supplement. If a debugger is given no load address,
//! it uses the addresses in the file. So each code section has the address of its code in the process, and no
//! bytes (`SHT_NOBITS`).

use crate::Fragment;
use addr::AvmaRange;

pub(crate) const HEADER: usize = 64;
pub(crate) const SECTION: usize = 64;
pub(crate) const SYMBOL: u64 = 24;

pub(crate) const PROGBITS: u32 = 1;
pub(crate) const SYMTAB: u32 = 2;
pub(crate) const STRTAB: u32 = 3;
const NOBITS: u32 = 8;
/// `SHF_ALLOC | SHF_EXECINSTR`.
pub(crate) const CODE: u64 = 2 | 4;
/// `STB_LOCAL`, `STT_FUNC`. The symbols are local because clones of several generations have the same name.
pub(crate) const LOCAL_FUNC: u8 = 2;

/// A section header: the fields in the order of the file. The name is an offset into the table of section
/// names.
#[derive(Clone, Copy, Default)]
pub(crate) struct Section {
    pub name: u32,
    pub kind: u32,
    pub flags: u64,
    pub at: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub info: u32,
    pub align: u64,
    pub entry: u64,
}

/// A string table: strings one after another, each ended by a zero byte. The empty string is at offset 0.
#[derive(Default)]
pub(crate) struct Strings(pub Vec<u8>);

impl Strings {
    pub fn add(&mut self, s: &str) -> u32 {
        if self.0.is_empty() {
            self.0.push(0);
        }
        let at = u32::try_from(self.0.len()).unwrap_or(0);
        self.0.extend(s.bytes());
        self.0.push(0);
        at
    }
}

/// Returns a symbol table with an entry for each fragment inside one of `texts`, and its strings.
fn symbols(texts: &[AvmaRange], fragments: &[Fragment]) -> (Vec<u8>, Strings) {
    let mut strings = Strings::default();
    let mut symbols = vec![0; 24];
    for f in fragments {
        let Some(i) = texts.iter().position(|t| t.covers(&f.range)) else { continue };
        symbols.extend(strings.add(&f.symbol()).to_le_bytes());
        symbols.extend([LOCAL_FUNC, 0]);
        symbols.extend(u16::try_from(i + 1).unwrap_or(0).to_le_bytes());
        symbols.extend(f.range.start.0.to_le_bytes());
        symbols.extend(f.range.len().to_le_bytes());
    }
    (symbols, strings)
}

/// Returns the bytes of a symbol file for the code in `texts`. The file has a symbol for each fragment that
/// lies inside one of `texts`, and `debug_frame` as its `.debug_frame` section. Only the first 65,000 `texts`
/// are described.
#[must_use]
pub fn symbol_file(texts: &[AvmaRange], fragments: &[Fragment], debug_frame: &[u8]) -> Vec<u8> {
    let texts = &texts[..texts.len().min(65_000)];
    let mut names = Strings::default();
    let (symbols, strings) = symbols(texts, fragments);
    let locals = u32::try_from(symbols.len() as u64 / SYMBOL).unwrap_or(u32::MAX);

    let mut file = vec![0; HEADER];
    let mut sections = Vec::new();
    for (i, t) in texts.iter().enumerate() {
        // The first code section has the plain name, because debuggers look for it.
        let name = names.add(&if i == 0 { ".text".to_owned() } else { format!(".text.{i}") });
        let offset = file.len() as u64;
        let code = Section { kind: NOBITS, flags: CODE, align: 16, ..Section::default() };
        sections.push(Section { name, at: t.start.0, offset, size: t.len(), ..code });
    }
    let strings_index = u32::try_from(texts.len() + 3).unwrap_or(0);
    let mut put = |name: &str, kind: u32, bytes: &[u8], link: u32, info: u32, entry: u64| {
        file.resize(file.len().next_multiple_of(8), 0);
        let offset = file.len() as u64;
        file.extend(bytes);
        let size = bytes.len() as u64;
        let name = names.add(name);
        sections.push(Section { name, kind, flags: 0, at: 0, offset, size, link, info, align: 8, entry });
    };
    put(".debug_frame", PROGBITS, debug_frame, 0, 0, 0);
    put(".symtab", SYMTAB, &symbols, strings_index, locals, SYMBOL);
    put(".strtab", STRTAB, &strings.0, 0, 0, 0);
    let name = names.add(".shstrtab");
    let offset = file.len() as u64;
    let size = names.0.len() as u64;
    sections.push(Section { name, kind: STRTAB, offset, size, align: 1, ..Section::default() });
    file.extend(&names.0);
    file.resize(file.len().next_multiple_of(8), 0);
    let table = file.len() as u64;
    file.extend([0; SECTION]);
    for s in &sections {
        s.put(&mut file);
    }
    let header = header(table, sections.len() + 1);
    file[..HEADER].copy_from_slice(&header);
    file
}

impl Section {
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.name.to_le_bytes());
        out.extend(self.kind.to_le_bytes());
        for word in [self.flags, self.at, self.offset, self.size] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.link.to_le_bytes());
        out.extend(self.info.to_le_bytes());
        out.extend(self.align.to_le_bytes());
        out.extend(self.entry.to_le_bytes());
    }
}

/// Returns the header of an x86-64 executable with `sections` sections, whose table is at file offset
/// `table`. The last section holds the section names.
fn header(table: u64, sections: usize) -> [u8; HEADER] {
    let sections = u16::try_from(sections).unwrap_or(0);
    let mut h = [0; HEADER];
    h[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    let mut put = |at: usize, bytes: &[u8]| h[at..at + bytes.len()].copy_from_slice(bytes);
    put(16, &2u16.to_le_bytes()); // ET_EXEC: its addresses are those of the process.
    put(18, &62u16.to_le_bytes()); // EM_X86_64
    put(20, &1u32.to_le_bytes());
    put(40, &table.to_le_bytes());
    put(52, &64u16.to_le_bytes());
    put(54, &56u16.to_le_bytes());
    put(58, &64u16.to_le_bytes());
    put(60, &sections.to_le_bytes());
    put(62, &sections.saturating_sub(1).to_le_bytes());
    h
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;
    use addr::Avma;
    use object::{Object, ObjectSection, ObjectSymbol};

    /// Checks with an independent reader that each item has its address in the process.
    #[test]
    fn reads_back() {
        let texts = [
            AvmaRange::with_len(Avma(0x5555_0020_0000), 0x1000),
            AvmaRange::with_len(Avma(0x7f00_0000_0000), 0x40),
        ];
        let fragment =
            |at, part| Fragment { range: AvmaRange::with_len(Avma(at), 0x20), part, name: "work".to_owned() };
        let fragments = [
            fragment(0x5555_0020_0000, Part::Hot),
            fragment(0x7f00_0000_0020, Part::Warm),
            fragment(0x7f00_0000_0030, Part::Hot),
        ];
        let bytes = symbol_file(&texts, &fragments, b"frames");
        let file = object::File::parse(&*bytes).unwrap();
        assert_eq!(file.architecture(), object::Architecture::X86_64);
        let code: Vec<_> = file
            .sections()
            .filter(|s| {
                s.kind() == object::SectionKind::UninitializedData || s.name().unwrap().starts_with(".text")
            })
            .map(|s| (s.name().unwrap().to_owned(), s.address(), s.size(), s.file_range()))
            .collect();
        let wanted = [
            (".text".to_owned(), 0x5555_0020_0000, 0x1000, None),
            (".text.1".to_owned(), 0x7f00_0000_0000, 0x40, None),
        ];
        assert_eq!(code, wanted);
        assert_eq!(file.section_by_name(".debug_frame").unwrap().data().unwrap(), b"frames");
        let symbols: Vec<_> = file
            .symbols()
            .map(|s| (s.name().unwrap().to_owned(), s.address(), s.size(), s.section_index().unwrap().0))
            .collect();
        // The third fragment is not inside a text as a whole.
        assert_eq!(
            symbols,
            [
                ("work.whet".to_owned(), 0x5555_0020_0000, 0x20, 1),
                ("work.whet.warm".to_owned(), 0x7f00_0000_0020, 0x20, 2)
            ]
        );
    }

    #[test]
    fn an_empty_symbol_file_is_valid() {
        let bytes = symbol_file(&[], &[], &[]);
        assert_eq!(object::File::parse(&*bytes).unwrap().symbols().count(), 0);
    }
}
