//! A program or library as its file states it, with all its functions analysed.

use super::rng::{Layouts, Rng};
use addr::{Addr, Avma, AvmaRange, ReadMemory, Unreadable};
use code::{
    CalleeKind, Cfg, Input, InstId, MergeInput, Part, Piece, RedirectSite, Refusal, analyse, merge,
    redirect_sites, sweep,
};
use emit::Function;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SectionKind, SymbolKind};
use std::collections::BTreeMap;
use std::path::Path;
use unwind::{CfaRule, Fde, FrameTable, Lsda, Reg, RegRule, Row};

/// A function with everything that its clone needs.
pub struct Source {
    pub cfg: Cfg,
    pub rows: Vec<Row>,
    pub lsda: Option<Lsda>,
    pub personality: Option<Avma>,
    pub signal_frame: bool,
    pub name: String,
    /// The bytes that its redirects would change, if all of it is cloned.
    pub sites: Vec<RedirectSite>,
}

impl Source {
    /// Returns the address of an instruction.
    pub fn at(&self, inst: InstId) -> Avma {
        self.cfg.insts[inst.index()].at
    }

    /// Returns a clone of some of its blocks in a random order (sometimes their own), in one or two
    /// fragments.
    pub fn shuffled(&self, rng: &mut Rng, keep: usize) -> Function<'_> {
        let mut order = rng.order(self.cfg.blocks.len(), keep);
        if rng.below(4) == 0 {
            order[1..].sort_unstable();
        }
        Function {
            hot: rng.hot(order.len()),
            entrances: self.sites.iter().map(|s| s.leads_to).collect(),
            lsda: self.lsda.as_ref(),
            personality: self.personality,
            signal_frame: self.signal_frame,
            unrolls: super::unrolls(&self.cfg, &order, rng),
            ..Function::new(&self.cfg, order, &self.rows)
        }
    }
}

pub struct Program {
    pub segments: Vec<(Avma, Vec<u8>)>,
    pub functions: Vec<Source>,
    pub refused: BTreeMap<Refusal, usize>,
    /// All direct branches.
    pub branches: code::Branches,
    /// The first 2 MiB boundary behind all segments.
    pub end: Avma,
}

impl ReadMemory for Program {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        Segments(&self.segments).read(at, buf)
    }
}

/// Bytes by address.
pub struct Segments<'a>(pub &'a [(Avma, Vec<u8>)]);

impl ReadMemory for Segments<'_> {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        let err = Unreadable { at, len: buf.len() as u64 };
        self.0.iter().find_map(|(a, b)| (*a, &b[..]).read(at, buf).ok()).ok_or(err)
    }
}

impl Program {
    pub fn load(path: &Path) -> Self {
        let data = std::fs::read(path).unwrap();
        let file = object::File::parse(&data[..]).unwrap();
        // Bytes that the file does not have are zero (.bss).
        let whole = |s: object::Segment<'_, '_>| {
            let mut bytes = s.data().unwrap().to_vec();
            bytes.resize(usize::try_from(s.size()).unwrap(), 0);
            (Avma(s.address()), bytes)
        };
        let segments: Vec<_> = file.segments().map(whole).collect();
        let mem = Segments(&segments);
        let end = segments.iter().map(|s| s.0.0 + s.1.len() as u64).max().unwrap();
        let mut names = BTreeMap::new();
        for s in file.symbols().chain(file.dynamic_symbols()).filter(|s| s.kind() == SymbolKind::Text) {
            names.entry(Avma(s.address())).or_insert_with(|| s.name().unwrap().to_owned());
        }
        let read_only: Vec<AvmaRange> = file
            .sections()
            .filter(|s| matches!(s.kind(), SectionKind::ReadOnlyData | SectionKind::ReadOnlyString))
            .map(|s| AvmaRange::with_len(Avma(s.address()), s.size()))
            .collect();
        let constant =
            |r: AvmaRange| read_only.iter().any(|s| s.covers(&r)).then(|| mem.bytes(r).ok()).flatten();
        let eh_frame = file.section_by_name(".eh_frame").unwrap();
        let frames =
            FrameTable::parse(eh_frame.data().unwrap().to_vec(), Avma(eh_frame.address()), &mem).unwrap();
        let fdes = frames.fdes();
        let mut text = Vec::new();
        let mut plt = Vec::new();
        for s in file.sections().filter(|s| s.kind() == SectionKind::Text) {
            let range = AvmaRange::with_len(Avma(s.address()), s.size());
            text.push((range, s.data().unwrap()));
            if s.name().unwrap().starts_with(".plt") {
                plt.push(range);
            }
        }
        let pieces: Vec<Piece<'_>> = text
            .iter()
            .flat_map(|&(range, bytes)| Piece::cut(range, bytes, fdes.iter().map(|f| f.range)))
            .collect();
        let branches = sweep(&pieces);
        let lsda_of = |f: &Fde| f.lsda.map(|at| Lsda::parse(&mem, at, f.range));
        let starts_like_entry = |f: &Fde| {
            frames.rows(f).ok().and_then(|r| r.into_iter().next()).is_none_or(|row| {
                let plain = |r: &(Reg, RegRule)| r.0 == Reg::RA && r.1 == RegRule::Offset(-8);
                row.cfa == CfaRule::RegOffset(Reg::RSP, 8) && row.regs.iter().all(plain)
            })
        };
        let mut far_pads = Vec::new();
        for (i, f) in fdes.iter().enumerate() {
            let Some(Ok(l)) = lsda_of(f) else { continue };
            let pads = l.call_sites.iter().filter_map(|c| c.landing_pad).filter(|p| !f.range.contains(*p));
            far_pads.extend(pads.map(|p| (i, p)));
        }
        let extents = merge(&MergeInput {
            fdes,
            starts_like_entry: &|i| starts_like_entry(&fdes[i]),
            branches: &branches,
            name: &|at| names.get(&at).map(|n| &n[..]),
            is_address_taken: &|at| names.get(&at).is_some_and(|n| !n.contains(".cold")),
            symbols_in: &|r| names.range(r.start..r.end).map(|n| *n.0).collect(),
            far_pads: &far_pads,
            plt: &plt,
        });
        let no_return =
            ["abort", "exit", "__stack_chk_fail", "_Unwind_Resume", "__assert_fail", "__cxa_throw"];
        let callee = |c: code::Callee| match c {
            code::Callee::Direct(at) => match names.get(&at).map(|n| &n[..]) {
                Some(n) if no_return.contains(&n) => CalleeKind::NoReturn,
                Some(n) if n.contains("setjmp") || n.contains("vfork") || n.contains("getcontext") => {
                    CalleeKind::ReturnsTwice
                }
                _ => CalleeKind::Ordinary,
            },
            code::Callee::Slot(_) => CalleeKind::Ordinary,
        };
        let (mut functions, mut refused) = (Vec::new(), BTreeMap::new());
        for e in extents.functions.iter().filter(|e| !e.plt && !e.multiple_entries()) {
            let source = || -> Result<Source, Refusal> {
                let bytes: Vec<Vec<u8>> = e
                    .parts
                    .iter()
                    .map(|p| mem.bytes(*p))
                    .collect::<Result<_, _>>()
                    .map_err(|_| Refusal::Unreadable)?;
                let parts: Vec<Part<'_>> =
                    e.parts.iter().zip(&bytes).map(|(&range, bytes)| Part { range, bytes }).collect();
                let (mut rows, mut lsda): (Vec<Row>, Option<Lsda>) = (Vec::new(), None);
                for &f in &e.fdes {
                    rows.extend(frames.rows(&fdes[f]).map_err(|_| Refusal::OddUnwindInfo)?);
                    match lsda_of(&fdes[f]) {
                        None => {}
                        Some(Err(_)) => return Err(Refusal::OddExceptionTable),
                        Some(Ok(l)) => match &mut lsda {
                            None => lsda = Some(l),
                            Some(first) => join(first, l)?,
                        },
                    }
                }
                rows.sort_by_key(|r| r.range.start);
                let landing_pads: Vec<Avma> =
                    lsda.iter().flat_map(|l| l.call_sites.iter().filter_map(|c| c.landing_pad)).collect();
                let input = Input {
                    entry: e.entry,
                    parts: &parts,
                    rows: &rows,
                    landing_pads: &landing_pads,
                    constant: &constant,
                    callee: &callee,
                    is_function: &|at| branches.calls_to(at).len() > 0,
                };
                let cfg = analyse(&input)?;
                let Fde { personality, signal_frame, .. } = fdes[e.fdes[0]];
                let name = names.get(&e.entry).cloned().unwrap_or_default();
                let sites = redirect_sites(&cfg, &|_| true, &|_| true).sites;
                Ok(Source { sites, cfg, rows, lsda, personality, signal_frame, name })
            };
            match source() {
                Ok(s) => functions.push(s),
                Err(why) => *refused.entry(why).or_insert(0) += 1,
            }
        }
        Self { segments, functions, refused, branches, end: Avma(end).align_down(0x20_0000).add(0x20_0000) }
    }
}

/// Joins the exception tables of two fragments. Each table repeats the function's actions, types and filters
/// as far as it needs them.
fn join(first: &mut Lsda, other: Lsda) -> Result<(), Refusal> {
    fn longer<T: PartialEq>(a: &mut Vec<T>, b: Vec<T>) -> Result<(), Refusal> {
        let n = a.len().min(b.len());
        if a[..n] != b[..n] {
            return Err(Refusal::OddExceptionTable);
        }
        if b.len() > n {
            *a = b;
        }
        Ok(())
    }
    longer(&mut first.actions, other.actions)?;
    longer(&mut first.types, other.types)?;
    longer(&mut first.filters, other.filters)?;
    first.call_sites.extend(other.call_sites);
    first.call_sites.sort_by_key(|c| c.range.start);
    Ok(())
}
