//! Combines graph, counts, address map and bytes into blocks and rows.

use super::{Asm, BlockAnatomy, EdgeAnatomy, Pairing, Row, Warmth};
use addr::{Addr, Avma, AvmaRange};
use code::{BlockId, Cfg, Dest, Term};
use emit::{AddressMap, Link};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction, OpKind};
use profile::Counts;
use rustc_hash::FxHashMap;

/// A clone in the target.
#[derive(Debug)]
pub(super) struct Clone<'a> {
    pub map: &'a AddressMap,
    /// Its fragments with their bytes.
    pub bytes: Vec<(AvmaRange, Vec<u8>)>,
}

impl Clone<'_> {
    fn decode(&self, at: Avma) -> Instruction {
        let bytes = self.bytes.iter().find(|(r, _)| r.contains(at)).and_then(|(r, bytes)| {
            let from = usize::try_from(at.since(r.start)?).ok()?;
            bytes.get(from..)
        });
        Decoder::with_ip(64, bytes.unwrap_or_default(), at.0, DecoderOptions::NONE).decode()
    }

    /// Returns whether an address is in the hot or the warm fragment.
    fn warmth(&self, at: Avma) -> Warmth {
        match self.map.fragments().ranges().position(|r| r.contains(at)) {
            Some(0) => Warmth::Hot,
            _ => Warmth::Warm,
        }
    }
}

/// The facts about a function.
pub(super) struct Subject<'a> {
    pub cfg: &'a Cfg,
    pub counts: Option<&'a Counts>,
    pub clone: Option<Clone<'a>>,
    /// Returns the name of a place outside the function to which code leads.
    pub name: &'a dyn Fn(Avma) -> Option<String>,
}

/// Returns all blocks.
pub(super) fn blocks(subject: &Subject<'_>) -> Vec<BlockAnatomy> {
    let cfg = subject.cfg;
    let mut printer = Printer::new(subject);
    let mut rows: FxHashMap<u32, Vec<Row>> = FxHashMap::default();
    let mut order: Vec<u32> = Vec::new();
    if let Some(clone) = &subject.clone {
        for (block, row) in paired(cfg, clone, &mut printer) {
            let of_block = rows.entry(block).or_default();
            if of_block.is_empty() {
                order.push(block);
            }
            of_block.push(row);
        }
    }
    let mut rest: Vec<u32> = (0u32..).take(cfg.blocks.len()).filter(|b| !rows.contains_key(b)).collect();
    rest.sort_by_key(|&b| cfg.blocks[b as usize].range.start);
    let is_cloned: Vec<bool> = (0u32..).take(cfg.blocks.len()).map(|b| rows.contains_key(&b)).collect();
    order
        .into_iter()
        .chain(rest)
        .map(|b| {
            let code = rows.remove(&b).unwrap_or_else(|| {
                let insts = cfg.insts_of(BlockId(b)).iter();
                insts
                    .map(|i| Row {
                        pairing: Pairing::Original,
                        original: Some(printer.print(&i.decoded)),
                        clone: None,
                    })
                    .collect()
            });
            block(subject, b, code, &is_cloned)
        })
        .collect()
}

/// Returns the rows of a clone in its order, each with its block.
fn paired(cfg: &Cfg, clone: &Clone<'_>, printer: &mut Printer<'_, '_>) -> Vec<(u32, Row)> {
    let mut by_address: Vec<(AvmaRange, u32)> = cfg.blocks.iter().map(|b| b.range).zip(0u32..).collect();
    by_address.sort_unstable_by_key(|(r, _)| r.start);
    let originals: FxHashMap<Avma, &Instruction> = cfg.insts.iter().map(|i| (i.at, &i.decoded)).collect();
    let block_at = |at: Avma| {
        let after = by_address.partition_point(|(r, _)| r.start <= at);
        by_address.get(after.checked_sub(1)?).filter(|(r, _)| r.contains(at)).map(|(_, b)| *b)
    };
    let mut current = 0;
    let mut rows = Vec::new();
    for e in clone.map.entries() {
        // An extra jump leads away from the block before it.
        if e.link != Link::Extra {
            current = block_at(e.original).unwrap_or(current);
        }
        let mut original = || originals.get(&e.original).map(|i| printer.print(i));
        let (pairing, original) = match e.link {
            Link::Copy => (Pairing::Copy, original()),
            Link::Again => (Pairing::Again, original()),
            Link::Dropped => (Pairing::Dropped, original()),
            Link::Extra => (Pairing::Extra, None),
            Link::Within => (Pairing::Inlined, None),
        };
        let here = clone.map.fragments().address(e.at);
        // A dropped instruction has no bytes.
        let copy = (e.link != Link::Dropped).then(|| printer.print(&clone.decode(here)));
        rows.push((current, Row { pairing, original, clone: copy }));
    }
    rows
}

fn block(subject: &Subject<'_>, b: u32, code: Vec<Row>, is_cloned: &[bool]) -> BlockAnatomy {
    let (cfg, id) = (subject.cfg, BlockId(b));
    let of = &cfg.blocks[id.index()];
    let own = is_cloned.get(id.index()).copied().unwrap_or(false);
    let at = subject.clone.as_ref().filter(|_| own).and_then(|c| c.map.to_clone(of.range.start));
    let runs = match (&subject.clone, at) {
        (Some(clone), Some(at)) => clone.warmth(at),
        _ => Warmth::Original,
    };
    BlockAnatomy {
        block: b,
        at: of.range.start.to_string(),
        bytes: of.range.len(),
        runs,
        clone: at.map(|a| a.to_string()),
        count: subject.counts.and_then(|c| c.blocks.get(id.index())).map(|b| b.count),
        landing_pad: of.landing_pad,
        ends: end(&of.term),
        edges: edges(subject, id, own, is_cloned),
        code,
    }
}

fn edges(subject: &Subject<'_>, id: BlockId, own: bool, is_cloned: &[bool]) -> Vec<EdgeAnatomy> {
    let cfg = subject.cfg;
    let ways: &[&'static str] = match cfg.blocks[id.index()].term {
        Term::Cond { .. } | Term::CondShort { .. } => &["taken", "fall"],
        _ => &[],
    };
    let counts = subject.counts.and_then(|c| c.blocks.get(id.index())).map(|b| &b.edges);
    let all = counts.map_or(0, |c| c.iter().fold(0u64, |sum, n| sum.saturating_add(*n)));
    let mut out = Vec::new();
    cfg.successors(id, |dest| {
        let index = out.len();
        let (block, to) = match dest {
            Dest::Block(b) => (Some(b.0), cfg.blocks[b.index()].range.start),
            Dest::Outside(at) => (None, at),
        };
        let cloned = block.and_then(|b| is_cloned.get(b as usize)).copied().unwrap_or(false);
        let count = counts.and_then(|c| c.get(index).copied());
        out.push(EdgeAnatomy {
            way: ways.get(index).copied().unwrap_or("next"),
            block,
            to: to.to_string(),
            leaves_clone: own && block.is_some() && !cloned,
            count,
            probability: count.filter(|_| all > 0).map(|n| round(n as f64 / all as f64)),
        });
    });
    out
}

fn round(v: f64) -> f64 {
    (v * 1e4).round() / 1e4
}

fn end(term: &Term) -> &'static str {
    match term {
        Term::Fall { .. } => "fall",
        Term::Jump { .. } => "jump",
        Term::Cond { .. } => "cond",
        Term::CondShort { .. } => "loop",
        Term::Switch { .. } => "switch",
        Term::Indirect => "indirect",
        Term::Return => "return",
        Term::NoReturnCall { .. } => "noreturn",
        Term::Trap => "trap",
    }
}

struct Printer<'a, 's> {
    format: GasFormatter,
    subject: &'a Subject<'s>,
}

impl<'a, 's> Printer<'a, 's> {
    fn new(subject: &'a Subject<'s>) -> Self {
        let mut format = GasFormatter::new();
        // The notation of other tools, with addresses beside the instructions.
        format.options_mut().set_uppercase_hex(false);
        format.options_mut().set_branch_leading_zeros(false);
        Self { format, subject }
    }

    fn print(&mut self, i: &Instruction) -> Asm {
        let mut text = String::new();
        self.format.format(i, &mut text);
        let leads = matches!(
            i.flow_control(),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch | FlowControl::Call
        );
        let to = (leads && i.op0_kind() == OpKind::NearBranch64)
            .then(|| Avma(i.near_branch64()))
            .and_then(self.subject.name);
        Asm { at: Avma(i.ip()).to_string(), text, to }
    }
}
