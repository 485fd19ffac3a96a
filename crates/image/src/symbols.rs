//! Symbols: names of addresses, and addresses of names.

use crate::bytes::MAX_NAME;
use crate::dynamic::{DynSyms, Sym};
use addr::{Addr, Avma, AvmaRange, Bias, Svma};

/// The kind of thing that a symbol names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SymbolKind {
    /// Data.
    Object,
    /// Unknown. Hand-written assembly often has symbols without a type.
    Untyped,
    /// A resolver: the loader calls it and uses the returned address (`STT_GNU_IFUNC`).
    Ifunc,
    /// A function.
    Function,
}

impl SymbolKind {
    /// Returns whether the symbol names code that can be called, not data.
    #[must_use]
    pub fn is_code(self) -> bool {
        !matches!(self, SymbolKind::Object)
    }
}

/// One symbol of a module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Symbol<'a> {
    /// Its name, without a version.
    pub name: &'a str,
    /// Its address; for [`SymbolKind::Ifunc`] the address of the resolver.
    pub at: Avma,
    /// Its size in bytes; 0 if not stated.
    pub size: u64,
    /// Its kind.
    pub kind: SymbolKind,
    /// Whether it is global or weak, so visible to other modules or at least to other object files.
    pub global: bool,
    /// Whether it is global and in the dynamic symbol table, so that other modules bind to it.
    pub exported: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Avma,
    size: u64,
    name: (u32, u32),
    kind: SymbolKind,
    global: bool,
    exported: bool,
    /// Whether it has an old version, so that its name without a version does not mean it.
    hidden: bool,
    /// The highest end of the code up to and including this entry. It shows where a backward search can stop.
    reach: Avma,
}

/// The symbols of one module, from all its tables.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    /// All names end to end.
    names: String,
    /// By rising address; at equal addresses the best name first.
    entries: Vec<Entry>,
    /// Entry numbers by name; at equal names the best entry first.
    by_name: Vec<u32>,
}

/// The most entries that a search for the function around an address examines. Real functions do not nest
/// deeply, and a hostile table must not make each search linear.
const NESTING: usize = 64;

impl Symbols {
    /// Returns the name of the innermost function that contains `at`: the function with the highest start. A
    /// function without a size contains only its first byte. Of several names for one address, global names
    /// come before local ones, then names with fewer leading underscores, then short names.
    #[must_use]
    pub fn name_at(&self, at: Avma) -> Option<&str> {
        self.function_at(at).map(|s| s.name)
    }

    /// Returns the symbol of the function that starts at `at`.
    #[must_use]
    pub fn function_starting_at(&self, at: Avma) -> Option<Symbol<'_>> {
        self.function_at(at).filter(|s| s.at == at)
    }

    /// Works like [`Symbols::name_at`] and returns the whole symbol.
    #[must_use]
    pub fn function_at(&self, at: Avma) -> Option<Symbol<'_>> {
        let upto = self.entries.partition_point(|e| e.at <= at);
        for i in (0..upto).rev().take(NESTING) {
            let e = self.entries.get(i)?;
            let exact = e.at == at && e.size == 0;
            if e.kind.is_code() && (exact || AvmaRange::with_len(e.at, e.size).contains(at)) {
                // Of the functions with the same start, the first is the best; its size may differ.
                let first = self.entries.partition_point(|o| o.at < e.at);
                let same = self.entries.get(first..=i)?;
                let best = same
                    .iter()
                    .find(|o| o.kind.is_code() && AvmaRange::with_len(o.at, o.size.max(1)).contains(at));
                return best.map(|b| self.show(b));
            }
            if e.reach <= at && e.at < at {
                return None;
            }
        }
        None
    }

    /// Returns the address that other modules get for a name: the address of the exported function or object,
    /// in its default version if there is one. For an ifunc, this is the address of the resolver.
    #[must_use]
    pub fn exported(&self, name: &str) -> Option<Avma> {
        self.named(name).find(|s| s.exported).map(|s| s.at)
    }

    /// Returns all symbols of one name, from any table: exported symbols first, default versions before old
    /// ones, then global symbols before local ones.
    pub fn named<'a>(&'a self, name: &str) -> impl Iterator<Item = Symbol<'a>> {
        let from = self.by_name.partition_point(|&i| self.name_of(i) < name);
        let rest = self.by_name.get(from..).unwrap_or(&[]);
        let n = rest.partition_point(|&i| self.name_of(i) == name);
        rest.iter().take(n).filter_map(|&i| self.entry(i)).map(|e| self.show(e))
    }

    /// Returns the first symbol, in the order of names, whose name starts with `prefix`.
    #[must_use]
    pub fn with_prefix(&self, prefix: &str) -> Option<Symbol<'_>> {
        let from = self.by_name.partition_point(|&i| self.name_of(i) < prefix);
        let s = self.show(self.entry(*self.by_name.get(from)?)?);
        s.name.starts_with(prefix).then_some(s)
    }

    /// Returns all symbols by rising address.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().map(|e| self.show(e))
    }

    /// Returns the number of symbols.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no symbols.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn entry(&self, i: u32) -> Option<&Entry> {
        self.entries.get(usize::try_from(i).ok()?)
    }

    fn name_of(&self, i: u32) -> &str {
        self.entry(i).map_or("", |e| self.text(e))
    }

    fn text(&self, e: &Entry) -> &str {
        self.names.get(e.name.0 as usize..e.name.1 as usize).unwrap_or("")
    }

    fn show(&self, e: &Entry) -> Symbol<'_> {
        Symbol {
            name: self.text(e),
            at: e.at,
            size: e.size,
            kind: e.kind,
            global: e.global,
            exported: e.exported,
        }
    }
}

/// A collector of symbols from several tables.
#[derive(Debug)]
pub(crate) struct Builder {
    bias: Bias,
    extent: AvmaRange,
    /// How many bytes of names may still be read.
    left: usize,
    out: Symbols,
}

/// The largest size of the names of one module, in bytes: several times that of the largest browsers.
const MAX_NAMES: usize = 1 << 29;

const SHN_UNDEF: u16 = 0;
const SHN_ABS: u16 = 0xfff1;
const SHN_COMMON: u16 = 0xfff2;

impl Builder {
    /// Returns a collector for a module with this bias. Symbols outside `extent` are left out.
    pub fn new(bias: Bias, extent: AvmaRange) -> Self {
        Builder { bias, extent, left: MAX_NAMES, out: Symbols::default() }
    }

    /// Adds the symbols of the dynamic symbol table.
    pub fn dynamic(&mut self, syms: &DynSyms) {
        for (_, sym) in syms.iter() {
            let name = || syms.raw_string(u64::from(sym.name));
            self.push(sym, name, true);
        }
    }

    /// Adds the symbols of a `.symtab`, with its string table.
    pub fn table(&mut self, syms: &[u8], strings: &[u8]) {
        for sym in syms.chunks_exact(24).filter_map(Sym::read) {
            let name = || crate::bytes::c_str(strings, usize::try_from(sym.name).ok()?);
            self.push(&sym, name, false);
        }
    }

    /// Adds one symbol if it is a definition in this module.
    fn push<'n>(&mut self, sym: &Sym, name: impl FnOnce() -> Option<&'n str>, dynamic: bool) {
        let kind = match sym.info & 0xf {
            0 => SymbolKind::Untyped,
            1 => SymbolKind::Object,
            2 => SymbolKind::Function,
            10 => SymbolKind::Ifunc,
            _ => return,
        };
        let at = self.bias.avma(Svma(sym.value));
        if matches!(sym.shndx, SHN_UNDEF | SHN_ABS | SHN_COMMON)
            || !self.extent.contains(at)
            || self.left == 0
        {
            return;
        }
        let name = name();
        // The read of an unreadable name may have cost as much as that of the longest name.
        self.left = self.left.saturating_sub(name.map_or(MAX_NAME, |n| n.len() + 1));
        let Some(name) = name.filter(|n| !n.is_empty()) else { return };
        // In .symtab, `name@@VERSION` is the default version and `name@VERSION` an old one.
        let (plain, version) = name.split_once('@').unwrap_or((name, "@"));
        let from = self.out.names.len();
        let (Ok(from), Ok(to)) = (u32::try_from(from), u32::try_from(from.saturating_add(plain.len())))
        else {
            return;
        };
        self.out.names.push_str(plain);
        let global = sym.info >> 4 != 0;
        self.out.entries.push(Entry {
            at,
            size: sym.size.min(self.extent.end.since(at).unwrap_or(0)),
            name: (from, to),
            kind,
            global,
            exported: dynamic && global,
            hidden: sym.hidden || !version.starts_with('@'),
            reach: Avma(0),
        });
    }

    /// Sorts the collected symbols and returns them.
    pub fn finish(self) -> Symbols {
        let mut out = self.out;
        let mut entries = std::mem::take(&mut out.entries);
        entries.sort_by(|a, b| {
            let rank = |e: &Entry| {
                let name = out.text(e);
                let underscores = name.bytes().take_while(|&c| c == b'_').count();
                // false < true, so each preference is stated as its negation.
                (
                    e.at,
                    !e.kind.is_code(),
                    e.size == 0,
                    std::cmp::Reverse(e.kind),
                    !e.global,
                    underscores,
                    name.len(),
                )
            };
            let order = rank(a).cmp(&rank(b)).then_with(|| out.text(a).cmp(out.text(b)));
            order.then(b.exported.cmp(&a.exported)).then(a.hidden.cmp(&b.hidden))
        });
        // The same symbol is often in both tables.
        entries.dedup_by(|b, a| {
            a.at == b.at
                && a.size == b.size
                && a.kind == b.kind
                && out.text(a) == out.text(b)
                && a.exported >= b.exported
        });
        let mut reach = Avma(0);
        for e in &mut entries {
            if e.kind.is_code() {
                reach = reach.max(e.at.add(e.size));
            }
            e.reach = reach;
        }
        // Nothing is added later, and the symbols are kept for as long as the program is worked on.
        entries.shrink_to_fit();
        out.names.shrink_to_fit();
        out.entries = entries;
        let mut by_name: Vec<u32> = (0u32..).take(out.entries.len()).collect();
        by_name.sort_by(|&a, &b| {
            let rank = |i| out.entry(i).map(|e| (!e.exported, e.hidden, !e.global, !e.kind.is_code(), e.at));
            out.name_of(a).cmp(out.name_of(b)).then_with(|| rank(a).cmp(&rank(b)))
        });
        out.by_name = by_name;
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: u8 = 0;
    const GLOBAL: u8 = 1 << 4;

    fn table(syms: &[(&str, u8, u64, u64)]) -> Symbols {
        let (mut t, mut s) = (Vec::new(), vec![0u8]);
        for (name, info, value, size) in syms {
            t.extend(u32::try_from(s.len()).unwrap().to_le_bytes());
            t.extend([*info, 0, 1, 0]);
            t.extend(value.to_le_bytes());
            t.extend(size.to_le_bytes());
            s.extend(name.as_bytes());
            s.push(0);
        }
        let mut b = Builder::new(Bias(0x1000), AvmaRange::new(Avma(0x1000), Avma(0x9000)));
        b.table(&t, &s);
        b.finish()
    }

    #[test]
    fn the_best_name() {
        let s = table(&[
            ("local", LOCAL | 2, 0x100, 0x20),
            ("__alias", GLOBAL | 2, 0x100, 0x20),
            ("alias@@V2", GLOBAL | 2, 0x100, 0x20),
            ("bare", GLOBAL, 0x100, 0),
            ("bare_asm", GLOBAL, 0x200, 0),
            ("data", GLOBAL | 1, 0x210, 8),
            ("outer", GLOBAL | 2, 0x300, 0x100),
            ("inner", LOCAL | 2, 0x340, 0x10),
            ("tls", GLOBAL | 6, 0x340, 0x10),
            ("far", GLOBAL | 2, 0x10_0000, 1),
        ]);
        let at = |a: u64| s.name_at(Avma(0x1000 + a));
        assert_eq!(at(0x100), Some("alias"));
        assert_eq!(at(0x11f), Some("alias"));
        assert_eq!(at(0x120), None);
        assert_eq!(at(0x200), Some("bare_asm"));
        assert_eq!(at(0x201), None);
        assert_eq!(at(0x210), None, "data is no function");
        assert_eq!(at(0x33f), Some("outer"));
        assert_eq!(at(0x345), Some("inner"));
        assert_eq!(at(0x350), Some("outer"));
        assert_eq!(s.named("alias").next().unwrap().at, Avma(0x1100));
        assert_eq!(s.exported("alias"), None, "a .symtab exports nothing");
        assert_eq!(s.named("tls").count() + s.named("far").count(), 0);
        assert_eq!(s.with_prefix("out").unwrap().name, "outer");
        assert!(s.with_prefix("zz").is_none());
    }

    #[test]
    fn lookups_against_a_plain_search() {
        arbtest::arbtest(|u| {
            let mut syms = Vec::new();
            let names = ["a", "b", "c", "_d", "__e", "ff"];
            for _ in 0..u.int_in_range(0..=30)? {
                let info = *u.choose(&[0u8, 1, 2, 10, 16, 17, 18, 26])?;
                syms.push((*u.choose(&names)?, info, u.int_in_range(0u64..=64)?, u.int_in_range(0u64..=9)?));
            }
            let s = table(&syms);
            for at in 0..80u64 {
                let code = |i: &u8| i & 0xf != 1;
                let holds = |&&(_, ref i, v, n): &&(&str, u8, u64, u64)| {
                    code(i) && (at == v || (v..v + n).contains(&at)) && (n > 0 || at == v)
                };
                let start = syms.iter().filter(holds).map(|s| s.2).max();
                let got = s.function_at(Avma(0x1000 + at));
                assert_eq!(got.map(|g| g.at.0 - 0x1000), start, "{at} in {syms:?}");
                let sized = syms.iter().filter(holds).any(|s| Some(s.2) == start && s.3 > 0);
                assert_eq!(got.is_some_and(|g| g.size > 0), sized);
            }
            for n in names {
                assert_eq!(s.named(n).next().is_some(), syms.iter().any(|s| s.0 == n));
            }
            Ok(())
        })
        .budget_ms(1000);
    }

    #[test]
    fn any_bytes_cause_no_panic() {
        arbtest::arbtest(|u| {
            let t: Vec<u8> = u.arbitrary()?;
            let s: Vec<u8> = u.arbitrary()?;
            let mut b = Builder::new(Bias(u.arbitrary()?), AvmaRange::new(Avma(0), Avma(u64::MAX)));
            b.table(&t, &s);
            let s = b.finish();
            for e in s.iter() {
                let _ = s.name_at(e.at);
            }
            Ok(())
        })
        .budget_ms(1000);
    }
}
