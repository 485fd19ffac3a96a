//! Relocations: the words of a module that the loader filled in, and their values (x86-64 psABI, section
//! 4.4).

use crate::bytes::u64_at;
use crate::dynamic::{DynSyms, Dynamic};
use addr::{Addr, Avma, AvmaRange, Bias, ReadMemory, Svma};

/// The value that the loader writes into a word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RelocKind {
    /// An address of this module. `None` for the packed form (`DT_RELR`), in which the word itself held the
    /// addend; then the value is read from the word.
    Relative(Option<Avma>),
    /// The address that the resolver function at this address returns (an ifunc of this module).
    Irelative(Avma),
    /// A symbol's address plus the addend, in any data (`R_X86_64_64`).
    Absolute,
    /// A symbol's address, in the global offset table.
    GlobDat,
    /// A function's address, used only for calls through the procedure linkage table.
    JumpSlot,
    /// Another type, by its number.
    Other(u32),
}

/// One relocated word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reloc {
    /// The address of the word.
    pub at: Avma,
    /// The value that is written there.
    pub kind: RelocKind,
    /// The symbol's number in the dynamic symbol table; 0: none.
    pub symbol: u32,
    /// The number that is added to the symbol's address.
    pub addend: i64,
}

/// A slot through which the procedure linkage table jumps. Its present value is read from memory when needed,
/// because lazy binding changes it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct JumpSlot {
    /// The address of the 8-byte slot.
    pub slot: Avma,
    /// The function's name.
    pub name: String,
}

/// The most packed relocations that are read, in words: ten times the relocations of the largest browsers.
const MAX_PACKED: u32 = 1 << 24;
/// The largest size of the names of slots and stubs together, in bytes: ten times that of the largest
/// programs.
const MAX_NAMES: usize = 64 << 20;

const R_X86_64_64: u32 = 1;
const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;
const R_X86_64_RELATIVE: u32 = 8;
const R_X86_64_IRELATIVE: u32 = 37;

/// Returns all relocations of a module, by rising address. Words outside the module are left out.
pub(crate) fn read(d: &Dynamic, mem: &dyn ReadMemory, bias: Bias, extent: AvmaRange) -> Vec<Reloc> {
    let mut out = Vec::new();
    for table in [d.rela, d.jmprel].into_iter().flatten() {
        if let Ok(bytes) = mem.bytes(table) {
            rela(&bytes, bias, extent, &mut out);
        }
    }
    if let Some(bytes) = d.relr.and_then(|r| mem.bytes(r).ok()) {
        let mut last = Avma(0);
        let mut left = MAX_PACKED;
        relr(&bytes, bias, |at| {
            // The format demands rising addresses. This rule and the limit of their number prevent a small
            // table from naming the same words endlessly.
            if at > last && left > 0 && covers_word(extent, at) {
                last = at;
                left -= 1;
                out.push(Reloc { at, kind: RelocKind::Relative(None), symbol: 0, addend: 0 });
            }
        });
    }
    // JMPREL may be the tail of RELA, so its entries may be present twice. The sort is stable.
    out.sort_by_key(|r| r.at);
    out.dedup();
    out
}

fn covers_word(extent: AvmaRange, at: Avma) -> bool {
    extent.covers(&AvmaRange::with_len(at, 8))
}

/// Adds the entries of a RELA table to `out`. Words outside `extent` are left out.
pub(crate) fn rela(bytes: &[u8], bias: Bias, extent: AvmaRange, out: &mut Vec<Reloc>) {
    for e in bytes.chunks_exact(24) {
        let (Some(offset), Some(info), Some(addend)) = (u64_at(e, 0), u64_at(e, 8), u64_at(e, 16)) else {
            return;
        };
        let at = bias.avma(Svma(offset));
        let (Ok(symbol), Ok(kind)) = (u32::try_from(info >> 32), u32::try_from(info & 0xffff_ffff)) else {
            return;
        };
        let kind = match kind {
            R_X86_64_64 => RelocKind::Absolute,
            R_X86_64_GLOB_DAT => RelocKind::GlobDat,
            R_X86_64_JUMP_SLOT => RelocKind::JumpSlot,
            R_X86_64_RELATIVE => RelocKind::Relative(Some(bias.avma(Svma(addend)))),
            R_X86_64_IRELATIVE => RelocKind::Irelative(bias.avma(Svma(addend))),
            other => RelocKind::Other(other),
        };
        if covers_word(extent, at) {
            out.push(Reloc { at, kind, symbol, addend: addend.cast_signed() });
        }
    }
}

/// Calls `word` for each word that a RELR table names. An even entry is an address. An odd entry is a bitmap
/// of the 63 words that follow the words of the entry before it (gABI proposal "SHT_RELR").
fn relr(bytes: &[u8], bias: Bias, mut word: impl FnMut(Avma)) {
    let mut next = Avma(0);
    for e in bytes.chunks_exact(8) {
        let Some(e) = u64_at(e, 0) else { return };
        if e & 1 == 0 {
            let at = bias.avma(Svma(e));
            word(at);
            next = at.add(8);
        } else {
            let mut bits = e >> 1;
            while bits != 0 {
                word(next.add(u64::from(bits.trailing_zeros()) * 8));
                bits &= bits - 1;
            }
            next = next.add(63 * 8);
        }
    }
}

/// A reader of symbols' names that copies at most [`MAX_NAMES`] bytes in all.
#[derive(Debug)]
pub(crate) struct Names<'a> {
    syms: &'a DynSyms,
    left: usize,
}

impl<'a> Names<'a> {
    pub fn new(syms: &'a DynSyms) -> Self {
        Names { syms, left: MAX_NAMES }
    }

    pub fn of(&mut self, symbol: u32) -> Option<String> {
        let name = self.syms.name(symbol).filter(|_| symbol != 0)?;
        self.left = self.left.checked_sub(name.len())?;
        Some(name.to_owned())
    }
}

/// Returns the jump slots among the relocations, with their names.
pub(crate) fn jump_slots(relocs: &[Reloc], names: &mut Names<'_>) -> Vec<JumpSlot> {
    relocs
        .iter()
        .filter(|r| r.kind == RelocKind::JumpSlot)
        .filter_map(|r| Some(JumpSlot { slot: r.at, name: names.of(r.symbol)? }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relr_against_a_plain_reading() {
        // Encodes random sets of words as lld does, decodes them, and compares.
        arbtest::arbtest(|u| {
            let mut words: Vec<u64> = Vec::new();
            let mut at = 0x1000u64;
            for _ in 0..u.int_in_range(0..=200)? {
                let gap = if u.ratio(1, 8)? { 200 } else { 3 };
                at += 8 * u.int_in_range(1..=gap)?;
                words.push(at);
            }
            let mut table = Vec::new();
            let mut i = 0;
            while i < words.len() {
                table.push(words[i]);
                let mut base = words[i] + 8;
                i += 1;
                loop {
                    let mut map = 0u64;
                    while i < words.len() && words[i] < base + 63 * 8 {
                        map |= 1 << ((words[i] - base) / 8);
                        i += 1;
                    }
                    if map == 0 {
                        break;
                    }
                    table.push(map << 1 | 1);
                    base += 63 * 8;
                }
            }
            let bytes: Vec<u8> = table.iter().flat_map(|w| w.to_le_bytes()).collect();
            let mut got = Vec::new();
            relr(&bytes, Bias(0x5000), |a| got.push(a.0 - 0x5000));
            assert_eq!(got, words);
            Ok(())
        })
        .budget_ms(1000);
    }

    #[test]
    fn a_packed_table_cannot_name_words_twice() {
        // An address and a full bitmap behind it, repeated.
        let table: Vec<u8> = [0x1000u64, u64::MAX].iter().flat_map(|w| w.to_le_bytes()).collect();
        let table = table.repeat(1000);
        let extent = AvmaRange::new(Avma(0x7000_0000), Avma(0x7010_0000));
        let at = AvmaRange::with_len(Avma(0x7000_8000), table.len() as u64);
        let d = Dynamic { relr: Some(at), ..Dynamic::default() };
        let got = read(&d, &(at.start, &table[..]), Bias(0x7000_0000), extent);
        assert_eq!(got.len(), 64);
        assert_eq!(got[63].at, Avma(0x7000_1000 + 63 * 8));
    }

    #[test]
    fn rela_kinds() {
        let extent = AvmaRange::new(Avma(0x10_0000), Avma(0x20_0000));
        let entry = |at: u64, sym: u64, kind: u32, addend: u64| {
            [at, sym << 32 | u64::from(kind), addend].map(u64::to_le_bytes).concat()
        };
        let mut bytes = entry(0x10, 0, R_X86_64_RELATIVE, 0x44);
        bytes.extend(entry(0x18, 3, R_X86_64_JUMP_SLOT, 0));
        bytes.extend(entry(0x20, 0, R_X86_64_IRELATIVE, 0x99));
        bytes.extend(entry(0x28, 4, R_X86_64_64, u64::MAX));
        bytes.extend(entry(0xf_fff9, 4, R_X86_64_64, 0));
        bytes.extend([1; 23]);
        let mut out = Vec::new();
        rela(&bytes, Bias(0x10_0000), extent, &mut out);
        assert_eq!(out.len(), 4, "a word that sticks out of the module and half an entry are dropped");
        assert_eq!(out[0].kind, RelocKind::Relative(Some(Avma(0x10_0044))));
        assert_eq!((out[1].kind, out[1].symbol), (RelocKind::JumpSlot, 3));
        assert_eq!(out[2].kind, RelocKind::Irelative(Avma(0x10_0099)));
        assert_eq!((out[3].kind, out[3].addend), (RelocKind::Absolute, -1));
    }
}
