//! A program read from its file as if it were loaded at its stated addresses, for tests of the analysis.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part of this, and a test may fail")]

use addr::{Addr, Avma, AvmaRange, ReadMemory, Unreadable};
use code::{
    Branches, Callee, CalleeKind, Cfg, Extent, Extents, Input, MergeInput, Part, Piece, Refusal, analyse,
    merge, sweep,
};
use iced_x86::{Code, Decoder, DecoderOptions};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, ObjectSymbolTable, SymbolKind};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use unwind::{CfaRule, FrameTable, Lsda, Reg, RegRule, Row};

pub struct Program {
    segments: Vec<(Avma, Vec<u8>)>,
    readonly: Vec<AvmaRange>,
    text: Vec<AvmaRange>,
    plt: Vec<AvmaRange>,
    pub frames: FrameTable,
    pub names: BTreeMap<Avma, String>,
    taken: BTreeSet<Avma>,
    pub functions: Vec<Extent>,
    branches: Branches,
    /// Functions and stubs that never return, by address.
    no_return: BTreeSet<Avma>,
}

/// Functions that compilers assume not to return.
const NO_RETURN: [&str; 12] = [
    "__stack_chk_fail",
    "__fortify_fail",
    "__assert_fail",
    "abort",
    "exit",
    "_exit",
    "_Unwind_Resume",
    "__cxa_throw",
    "__cxa_rethrow",
    "__cxa_bad_cast",
    "_ZSt9terminatev",
    "_ZSt20__throw_length_errorPKc",
];

impl ReadMemory for Program {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        let err = Unreadable { at, len: buf.len() as u64 };
        self.segments.iter().find_map(|(a, b)| (*a, &b[..]).read(at, buf).ok()).ok_or(err)
    }
}

impl Program {
    pub fn load(path: &Path) -> Self {
        let data = std::fs::read(path).unwrap();
        let file = object::File::parse(&data[..]).unwrap();
        let mut p = Self {
            segments: file.segments().map(|s| (Avma(s.address()), s.data().unwrap().to_vec())).collect(),
            readonly: Vec::new(),
            text: Vec::new(),
            plt: Vec::new(),
            frames: FrameTable::parse(Vec::new(), Avma(0), &(Avma(0), &[][..])).unwrap(),
            names: BTreeMap::new(),
            taken: BTreeSet::new(),
            functions: Vec::new(),
            branches: Branches::default(),
            no_return: BTreeSet::new(),
        };
        for s in file.segments() {
            if !s.permissions().writable() {
                p.readonly.push(AvmaRange::with_len(Avma(s.address()), s.size()));
            }
        }
        for s in file.sections() {
            let range = AvmaRange::with_len(Avma(s.address()), s.size());
            if s.kind() == object::SectionKind::Text {
                p.text.push(range);
            }
            match s.name().unwrap() {
                n if n.starts_with(".plt") => p.plt.push(range),
                ".data.rel.ro" => p.readonly.push(range),
                _ => {}
            }
        }
        let mut no_return_slots = BTreeSet::new();
        for (at, r) in file.dynamic_relocations().into_iter().flatten() {
            if let object::RelocationTarget::Symbol(i) = r.target()
                && let Some(symbol) = file.dynamic_symbol_table().and_then(|t| t.symbol_by_index(i).ok())
                && symbol.name().is_ok_and(|n| NO_RETURN.contains(&n))
            {
                no_return_slots.insert(Avma(at));
            }
            p.taken.insert(Avma(r.addend().cast_unsigned()));
            if r.target() == object::RelocationTarget::Absolute {
                p.write(Avma(at), r.addend().cast_unsigned());
            }
        }
        let eh_frame = file.section_by_name(".eh_frame").unwrap();
        p.frames =
            FrameTable::parse(eh_frame.data().unwrap().to_vec(), Avma(eh_frame.address()), &p).unwrap();
        for s in file.symbols().filter(|s| s.kind() == SymbolKind::Text) {
            p.names.entry(Avma(s.address())).or_insert_with(|| s.name().unwrap().to_string());
        }
        let known = p.names.iter().filter(|(_, n)| NO_RETURN.contains(&&n[..])).map(|(at, _)| *at);
        p.no_return = known.collect();
        for plt in p.plt.clone() {
            p.no_return.extend(stubs(plt.start, &p.bytes(plt).unwrap_or_default(), &no_return_slots));
        }
        p.taken.extend(file.dynamic_symbols().map(|s| Avma(s.address())));
        p.branches = p.sweep();
        p.functions = p.merge(&p.branches, true).functions;
        p
    }

    /// Returns whether calls enter a function at this address.
    pub fn is_function(&self, at: Avma) -> bool {
        self.branches.calls_to(at).len() > 0
            || self.plt.iter().any(|p| p.contains(at))
            || self.taken.contains(&at) && self.functions.binary_search_by_key(&at, |f| f.entry).is_ok()
    }

    fn write(&mut self, at: Avma, word: u64) {
        for (start, bytes) in &mut self.segments {
            let Some(o) = at.since(*start).and_then(|o| usize::try_from(o).ok()) else { continue };
            if let Some(b) = bytes.get_mut(o..o + 8) {
                b.copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    /// Returns all branches of the program.
    pub fn sweep(&self) -> Branches {
        let bytes: Vec<_> = self.text.iter().map(|r| self.bytes(*r).unwrap_or_default()).collect();
        let pieces: Vec<Piece> = self
            .text
            .iter()
            .zip(&bytes)
            .flat_map(|(r, b)| Piece::cut(*r, b, self.frames.fdes().iter().map(|f| f.range)))
            .collect();
        sweep(&pieces)
    }

    /// Returns whether this FDE (by index) starts with the frame of a function that was just called.
    pub fn starts_like_entry(&self, i: usize) -> bool {
        let rows = self.frames.rows(&self.frames.fdes()[i]);
        rows.ok().and_then(|r| r.into_iter().next()).is_none_or(|row| {
            let plain = |r: &(Reg, RegRule)| r.0 == Reg::RA && r.1 == RegRule::Offset(-8);
            row.cfa == CfaRule::RegOffset(Reg::RSP, 8) && row.regs.iter().all(plain)
        })
    }

    /// Returns the program's functions; `named` allows the use of symbols.
    pub fn merge(&self, branches: &Branches, named: bool) -> Extents {
        let mut pads = Vec::new();
        for (i, fde) in self.frames.fdes().iter().enumerate() {
            let Some(lsda) = fde.lsda.and_then(|at| Lsda::parse(self, at, fde.range).ok()) else { continue };
            pads.extend(lsda.call_sites.iter().filter_map(|c| c.landing_pad).map(|pad| (i, pad)));
        }
        pads.retain(|(i, pad)| !self.frames.fdes()[*i].range.contains(*pad));
        merge(&MergeInput {
            fdes: self.frames.fdes(),
            starts_like_entry: &|i| self.starts_like_entry(i),
            branches,
            name: &|at| self.names.get(&at).filter(|_| named).map(|n| &n[..]),
            is_address_taken: &|at| self.taken.contains(&at),
            symbols_in: &|r| self.names.range(r.start..r.end).filter(|_| named).map(|n| *n.0).collect(),
            far_pads: &pads,
            plt: &self.plt,
        })
    }

    pub fn constant(&self, r: AvmaRange) -> Option<Vec<u8>> {
        self.readonly.iter().any(|c| c.covers(&r)).then(|| self.bytes(r).ok())?
    }

    pub fn function(&self, name: &str) -> &Extent {
        let at = self.names.iter().find(|n| n.1 == name).unwrap().0;
        self.functions.iter().find(|f| f.entry == *at).unwrap()
    }

    pub fn rows(&self, f: &Extent) -> Result<Vec<Row>, Refusal> {
        let mut rows: Vec<Row> = Vec::new();
        for &i in &f.fdes {
            rows.extend(self.frames.rows(&self.frames.fdes()[i]).map_err(|_| Refusal::OddUnwindInfo)?);
        }
        rows.sort_by_key(|r| r.range.start);
        Ok(rows)
    }

    pub fn pads(&self, f: &Extent) -> Vec<Avma> {
        let mut pads = Vec::new();
        for &i in &f.fdes {
            let fde = &self.frames.fdes()[i];
            let Some(lsda) = fde.lsda.and_then(|at| Lsda::parse(self, at, fde.range).ok()) else { continue };
            pads.extend(lsda.call_sites.iter().filter_map(|c| c.landing_pad));
        }
        pads
    }

    pub fn analyse(&self, f: &Extent) -> Result<Cfg, Refusal> {
        let bytes: Vec<Vec<u8>> = f.parts.iter().map(|r| self.bytes(*r).unwrap()).collect();
        let parts: Vec<Part> =
            f.parts.iter().zip(&bytes).map(|(&range, b)| Part { range, bytes: b }).collect();
        let (rows, pads) = (self.rows(f)?, self.pads(f));
        analyse(&Input {
            entry: f.entry,
            parts: &parts,
            rows: &rows,
            landing_pads: &pads,
            constant: &|r| self.constant(r),
            callee: &|c| match c {
                Callee::Direct(at) if self.no_return.contains(&at) => CalleeKind::NoReturn,
                _ => CalleeKind::Ordinary,
            },
            is_function: &|at| self.is_function(at),
        })
    }
}

/// Returns the stubs in a procedure linkage table that jump through one of some slots. Each begins with its
/// jump, or with an `endbr64` before the jump.
fn stubs(at: Avma, bytes: &[u8], slots: &BTreeSet<Avma>) -> Vec<Avma> {
    let mut found = Vec::new();
    let mut before = at;
    for i in Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE) {
        if i.code() == Code::Jmp_rm64 && slots.contains(&Avma(i.ip_rel_memory_address())) {
            found.extend([before, Avma(i.ip())]);
        }
        before = if i.code() == Code::Endbr64 { Avma(i.ip()) } else { Avma(i.next_ip()) };
    }
    found
}
