//! `PT_DYNAMIC`: the facts that a module states for the dynamic loader (System V gABI, chapter 5; the GNU
//! extensions).
//!
//! The section is read from memory, not from the file. It holds the tables' addresses in one of two forms.
//! glibc adds the bias in place when it loads a module. The vDSO (read-only), musl's modules and a program
//! whose loader has not run yet hold stated addresses. A value inside the module's extent is taken as an
//! address of the process; to any other value the bias is added.

use crate::bytes::{array, u16_at, u32_at, u64_at};
use addr::{Addr, Avma, AvmaRange, Bias, ReadMemory, Svma};

const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_PLTRELSZ: u64 = 2;
const DT_PLTGOT: u64 = 3;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_STRSZ: u64 = 10;
const DT_SONAME: u64 = 14;
const DT_PLTREL: u64 = 20;
const DT_JMPREL: u64 = 23;
const DT_BIND_NOW: u64 = 24;
const DT_FLAGS: u64 = 30;
const DT_RELRSZ: u64 = 35;
const DT_RELR: u64 = 36;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;
const DT_FLAGS_1: u64 = 0x6fff_fffb;

const DF_BIND_NOW: u64 = 8;
const DF_1_NOW: u64 = 1;
const DF_1_NODELETE: u64 = 8;
const DF_1_PIE: u64 = 0x0800_0000;

/// The size of a symbol table entry. Bytes.
pub(crate) const SYM: u64 = 24;
/// The bit of a version index that marks a version other than the default.
const HIDDEN: u16 = 0x8000;
/// The largest table that is read, in bytes. No table of a sound module is larger.
const MAX_TABLE: u64 = 1 << 28;
/// The longest chain of a hash table that is followed, in symbols. No chain of a sound table is longer.
const MAX_CHAIN: u64 = 1 << 16;

/// The contents of the dynamic section.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Dynamic {
    pub strtab: Option<AvmaRange>,
    pub symtab: Option<Avma>,
    pub hash: Option<Avma>,
    pub gnu_hash: Option<Avma>,
    pub versym: Option<Avma>,
    pub rela: Option<AvmaRange>,
    pub relr: Option<AvmaRange>,
    pub jmprel: Option<AvmaRange>,
    pub pltgot: Option<Avma>,
    pub soname: Option<u64>,
    pub needed: Vec<u64>,
    pub bind_now: bool,
    pub nodelete: bool,
    pub pie: bool,
}

impl Dynamic {
    /// Parses the bytes of a dynamic section. Addresses outside `extent` are left out.
    pub fn parse(bytes: &[u8], bias: Bias, extent: AvmaRange) -> Self {
        let address = |v: u64| [Avma(v), bias.avma(Svma(v))].into_iter().find(|a| extent.contains(*a));
        let mut d = Dynamic::default();
        let (mut rela, mut relasz, mut relr, mut relrsz) = (None, 0, None, 0);
        let (mut jmprel, mut pltrelsz, mut pltrel) = (None, 0, DT_RELA);
        let (mut strtab, mut strsz) = (None, 0);
        for entry in bytes.chunks_exact(16) {
            let (Some(tag), Some(v)) = (u64_at(entry, 0), u64_at(entry, 8)) else { break };
            match tag {
                DT_NULL => break,
                DT_NEEDED => d.needed.push(v),
                DT_PLTRELSZ => pltrelsz = v,
                DT_PLTGOT => d.pltgot = address(v),
                DT_HASH => d.hash = address(v),
                DT_STRTAB => strtab = address(v),
                DT_SYMTAB => d.symtab = address(v),
                DT_RELA => rela = address(v),
                DT_RELASZ => relasz = v,
                DT_STRSZ => strsz = v,
                DT_SONAME => d.soname = Some(v),
                DT_PLTREL => pltrel = v,
                DT_JMPREL => jmprel = address(v),
                DT_BIND_NOW => d.bind_now = true,
                DT_FLAGS => d.bind_now |= v & DF_BIND_NOW != 0,
                DT_RELRSZ => relrsz = v,
                DT_RELR => relr = address(v),
                DT_GNU_HASH => d.gnu_hash = address(v),
                DT_VERSYM => d.versym = address(v),
                DT_FLAGS_1 => {
                    d.bind_now |= v & DF_1_NOW != 0;
                    d.nodelete = v & DF_1_NODELETE != 0;
                    d.pie = v & DF_1_PIE != 0;
                }
                _ => {}
            }
        }
        let table = |at: Option<Avma>, len: u64| {
            at.map(|a| AvmaRange::with_len(a, len))
                .filter(|r| len > 0 && len <= MAX_TABLE && extent.covers(r))
        };
        d.rela = table(rela, relasz);
        d.relr = table(relr, relrsz);
        // x86-64 has only the RELA form.
        d.jmprel = table(jmprel, pltrelsz).filter(|_| pltrel == DT_RELA);
        d.strtab = table(strtab, strsz);
        d
    }
}

/// One entry of a symbol table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sym {
    /// The offset of the name in the string table.
    pub name: u32,
    /// The type in the low four bits, the binding in the high four.
    pub info: u8,
    /// The section index; 0 is undefined.
    pub shndx: u16,
    /// Whether it has a version other than the default, so that its name without a version does not mean it.
    /// Only [`DynSyms::read`] sets it: other tables have no versions.
    pub hidden: bool,
    pub value: u64,
    pub size: u64,
}

impl Sym {
    pub fn read(b: &[u8]) -> Option<Self> {
        let [info] = array(b, 4)?;
        Some(Sym {
            name: u32_at(b, 0)?,
            info,
            shndx: u16_at(b, 6)?,
            hidden: false,
            value: u64_at(b, 8)?,
            size: u64_at(b, 16)?,
        })
    }
}

/// The dynamic symbol table with its strings.
#[derive(Clone, Debug, Default)]
pub(crate) struct DynSyms {
    strings: Vec<u8>,
    syms: Vec<Sym>,
    /// The address of the table.
    at: Avma,
}

impl DynSyms {
    /// Reads symbols and strings. Tables that cannot be read are left empty.
    pub fn read(d: &Dynamic, mem: &dyn ReadMemory, extent: AvmaRange) -> Self {
        let strings = d.strtab.and_then(|r| mem.bytes(r).ok()).unwrap_or_default();
        let mut out = DynSyms { strings, ..DynSyms::default() };
        let Some(symtab) = d.symtab else { return out };
        let Some(n) = count(d, mem, extent) else { return out };
        let table = |at: Avma, each: u64| {
            let r = n.checked_mul(each).map(|len| AvmaRange::with_len(at, len))?;
            if r.len() > MAX_TABLE || !extent.covers(&r) { None } else { mem.bytes(r).ok() }
        };
        if let Some(bytes) = table(symtab, SYM) {
            out.at = symtab;
            out.syms = bytes.chunks_exact(24).filter_map(Sym::read).collect();
        }
        if let Some(bytes) = d.versym.and_then(|at| table(at, 2)) {
            let versions = bytes.chunks_exact(2).filter_map(|b| u16_at(b, 0));
            for (sym, version) in out.syms.iter_mut().zip(versions) {
                sym.hidden = version & HIDDEN != 0;
            }
        }
        out
    }

    /// Returns the string at an offset of the string table; `None` if it is missing or empty.
    pub fn string(&self, offset: u64) -> Option<&str> {
        self.raw_string(offset).filter(|s| !s.is_empty())
    }

    /// Returns the string at an offset of the string table; `None` if it is missing.
    pub fn raw_string(&self, offset: u64) -> Option<&str> {
        crate::bytes::c_str(&self.strings, usize::try_from(offset).ok()?)
    }

    /// Returns the symbols with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Sym)> {
        (0u32..).zip(&self.syms)
    }

    pub fn get(&self, index: u32) -> Option<&Sym> {
        self.syms.get(usize::try_from(index).ok()?)
    }

    /// Returns the address of the word that holds a symbol's stated address.
    pub fn value_at(&self, index: u32) -> Avma {
        self.at.add(u64::from(index) * SYM + 8)
    }

    /// Returns a symbol's name.
    pub fn name(&self, index: u32) -> Option<&str> {
        self.string(u64::from(self.get(index)?.name))
    }
}

/// Returns the number of symbols. The dynamic section does not contain it, but the hash tables do.
fn count(d: &Dynamic, mem: &dyn ReadMemory, extent: AvmaRange) -> Option<u64> {
    if let Some(n) = d.hash.and_then(|h| mem.u32(h.add(4)).ok()) {
        // The field `nchain`: there is one chain entry for each symbol.
        return Some(u64::from(n));
    }
    if let Some(n) = d.gnu_hash.and_then(|h| gnu_hash_count(h, mem, extent)) {
        return Some(n);
    }
    // Every linker places the strings behind the symbols, perhaps with other tables between, so this is an
    // upper bound.
    let (symtab, strtab) = (d.symtab?, d.strtab?);
    strtab.start.since(symtab).map(|len| len / SYM)
}

/// Returns the number of symbols according to the GNU hash table: one more than the last symbol of the last
/// chain.
fn gnu_hash_count(at: Avma, mem: &dyn ReadMemory, extent: AvmaRange) -> Option<u64> {
    let head: [u8; 16] = mem.bytes(AvmaRange::with_len(at, 16)).ok()?.try_into().ok()?;
    let nbuckets = u64::from(u32_at(&head, 0)?);
    let first = u64::from(u32_at(&head, 4)?);
    let bloom = u64::from(u32_at(&head, 8)?);
    let buckets = AvmaRange::with_len(at.add(16 + bloom * 8), nbuckets * 4);
    if !extent.covers(&buckets) || buckets.len() > MAX_TABLE {
        return None;
    }
    let bytes = mem.bytes(buckets).ok()?;
    let last = bytes.chunks_exact(4).filter_map(|b| u32_at(b, 0)).max().map_or(0, u64::from);
    if last < first {
        // No symbol is hashed: all symbols are undefined and lie before `first`.
        return Some(first);
    }
    // The chains are one array, indexed by symbol. The last word of a chain has its low bit set.
    for i in last..last + MAX_CHAIN {
        let link = buckets.end.add((i - first) * 4);
        if !extent.contains(link) {
            return None;
        }
        if mem.u32(link).ok()? & 1 != 0 {
            return Some(i + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(entries: &[(u64, u64)]) -> Vec<u8> {
        entries.iter().flat_map(|(t, v)| [t.to_le_bytes(), v.to_le_bytes()]).flatten().collect()
    }

    #[test]
    fn both_forms_of_addresses() {
        let extent = AvmaRange::new(Avma(0x7000_0000), Avma(0x7001_0000));
        let bias = Bias(0x7000_0000);
        for base in [0, 0x7000_0000] {
            let d = Dynamic::parse(
                &section(&[
                    (DT_STRTAB, base + 0x400),
                    (DT_STRSZ, 0x20),
                    (DT_SYMTAB, base + 0x200),
                    (DT_JMPREL, base + 0x800),
                    (DT_PLTRELSZ, 48),
                    (DT_RELA, base + 0xfff0),
                    (DT_RELASZ, 0x11),
                    (DT_FLAGS_1, DF_1_NOW | DF_1_NODELETE | DF_1_PIE),
                    (DT_NEEDED, 5),
                    (DT_NULL, 0),
                    (DT_NEEDED, 6),
                ]),
                bias,
                extent,
            );
            assert_eq!(d.symtab, Some(Avma(0x7000_0200)));
            assert_eq!(d.strtab, Some(AvmaRange::with_len(Avma(0x7000_0400), 0x20)));
            assert_eq!(d.jmprel, Some(AvmaRange::with_len(Avma(0x7000_0800), 48)));
            assert_eq!(d.rela, None, "runs out of the module");
            assert!(d.bind_now && d.nodelete && d.pie);
            assert_eq!(d.needed, [5]);
        }
    }
}
