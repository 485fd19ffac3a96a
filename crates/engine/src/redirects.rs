//! Which places of the originals lead to clones, and with which bytes.

use crate::candidates::Candidate;
use crate::program::{Analysed, FuncId, Program};
use addr::{Addr, Avma, AvmaRange};
use code::{Cfg, Dest, EntryWindow, Refusal, Term, WindowInput};
use emit::CloneInfo;
use iced_x86::{FlowControl, OpKind};
use rustc_hash::FxHashMap;
use splice::{Record, RedirectKind};

/// The bytes of the original that its entry's jump takes.
///
/// # Errors
/// Why there can be no jump; the clone is still reached by redirected calls.
pub fn window(
    program: &Program<'_>,
    id: FuncId,
    analysed: &Analysed,
    file_bytes: Option<&[u8]>,
) -> Result<EntryWindow, Refusal> {
    let cfg = &analysed.cfg;
    let extent = program.extent(id);
    let part = extent.parts.first().copied().ok_or(Refusal::Unreadable)?;
    let bytes = analysed.bytes(part).ok_or(Refusal::Unreadable)?;
    let module = program.module(id);
    // Words that hold addresses are only told from others where they are relocated: a computed jump of a program linked
    // to fixed addresses may lead anywhere.
    if !program.module_image(id).pie && cfg.blocks.iter().any(|b| b.term == Term::Indirect) {
        return Err(Refusal::EntryWindowTargeted);
    }
    let mut targets = jump_targets(cfg);
    targets.extend(module.held_in(part).iter().filter(|&&at| at != extent.entry));
    let first_other = extent.other_entries.iter().copied().filter(|&e| e > extent.entry).min();
    let window = code::entry_window(&WindowInput {
        entry: extent.entry,
        part,
        bytes,
        file_bytes,
        next_start: [module.next_start(extent.entry), first_other].into_iter().flatten().min(),
        branches: &module.branches,
        targets: &targets,
    })?;
    let range = window.range();
    if range.start.align_down(4096) == range.end.sub(1).align_down(4096) {
        Ok(window)
    } else {
        Err(Refusal::EntryCrossesPage)
    }
}

/// Where control of the original can get to other than by direct branches (those the sweep knows) and by running on:
/// through jump tables and exceptions, and after calls that were taken not to return.
fn jump_targets(cfg: &Cfg) -> Vec<Avma> {
    let tables = cfg.tables.iter().flat_map(|t| &t.targets).map(|d| match d {
        Dest::Block(b) => cfg.blocks[b.index()].range.start,
        Dest::Outside(at) => *at,
    });
    let pads = cfg.blocks.iter().filter(|b| b.landing_pad).map(|b| b.range.start);
    tables.chain(pads).collect()
}

/// Where a redirect leads.
#[must_use]
pub fn leads_to(r: &Record) -> Option<Avma> {
    let displaced = |end: u64, bytes: Option<&[u8]>| {
        let bytes: [u8; 4] = bytes?.try_into().ok()?;
        Some(r.at.add(end).offset(i64::from(i32::from_le_bytes(bytes))))
    };
    match r.kind {
        RedirectKind::Entry => displaced(5, r.new.get(1..5)),
        RedirectKind::Call => displaced(4, r.new.get(..4)),
        RedirectKind::Vtable | RedirectKind::Slot => Some(Avma(u64::from_le_bytes(r.new))),
    }
}

/// The jump at a function's entry, to its clone.
#[must_use]
pub fn entry(analysed: &Analysed, window: &EntryWindow, clone: &CloneInfo) -> Option<Record> {
    jump(analysed, window, clone.map.entrance(window.jump_at)?)
}

/// The jump at a function's entry, to anywhere.
#[must_use]
pub fn jump(analysed: &Analysed, window: &EntryWindow, to: Avma) -> Option<Record> {
    let new = emit::jump(window.jump_at, to)?;
    let old = analysed.bytes(window.range())?;
    let interior = window
        .interior
        .iter()
        .filter_map(|a| a.since(window.jump_at))
        .fold(0u8, |mask, i| mask | 1u8.checked_shl(u32::try_from(i).unwrap_or(32)).unwrap_or(0));
    let (len, at) = (window.len, window.jump_at);
    Some(Record { at, kind: RedirectKind::Entry, len, interior, old: word(old), new: word(&new), mark: None })
}

/// The direct calls of original code that can go straight to clones. `taken` are bytes other redirects use.
#[must_use]
pub fn calls(callers: &[Candidate], clones: &FxHashMap<Avma, Avma>, taken: &[AvmaRange]) -> Vec<Record> {
    let mut records = Vec::new();
    for caller in callers {
        for inst in &caller.analysed.cfg.insts {
            let d = &inst.decoded;
            if d.flow_control() != FlowControl::Call || d.op0_kind() != OpKind::NearBranch64 {
                continue;
            }
            let Some(&clone) = clones.get(&Avma(d.near_branch64())) else { continue };
            let (bytes, end) = (inst.bytes.as_slice(), inst.end());
            let (Some(new), Some(at)) = (emit::branch_displacement(end, clone), bytes.len().checked_sub(4))
            else {
                continue;
            };
            let record = Record {
                at: end.sub(4),
                kind: RedirectKind::Call,
                len: 4,
                interior: 0,
                old: word(&bytes[at..]),
                new: word(&new),
                mark: None,
            };
            let after = taken.partition_point(|t| t.end <= record.at);
            let free = taken.get(after).is_none_or(|t| !t.overlaps(&record.range()));
            if record.in_one_page() && free {
                records.push(record);
            }
        }
    }
    records.sort_by_key(|r| r.at);
    records.dedup_by_key(|r| r.at);
    records
}

/// Words that hold the address of a cloned function and are only ever called through: slots of virtual tables, and bound
/// slots of procedure linkage tables.
#[must_use]
pub fn words(program: &Program<'_>, clones: &FxHashMap<Avma, Avma>) -> Vec<Record> {
    let redirect = |kind, at: Avma, function: Avma| {
        let clone = clones.get(&function)?;
        let (old, new) = (function.0.to_le_bytes(), clone.0.to_le_bytes());
        let record = Record { at, kind, len: 8, interior: 0, old, new, mark: None };
        record.in_one_page().then_some(record)
    };
    let in_tables =
        program.vtables().iter().filter_map(|v| redirect(RedirectKind::Vtable, v.slot, v.function));
    let in_slots = program.image().modules().iter().flat_map(|m| &m.slots).filter_map(|s| {
        let holds = program.memory().u64(s.slot).ok()?;
        redirect(RedirectKind::Slot, s.slot, Avma(holds))
    });
    let mut records: Vec<Record> = in_tables.chain(in_slots).collect();
    records.sort_by_key(|r| r.at);
    records.dedup_by_key(|r| r.at);
    records
}

/// Drops records of places that may outlive what they lead to, and gives those in modules that may be unloaded their marks.
/// `clones` has the clones' entries by the originals'.
#[must_use]
pub fn lasting(program: &Program<'_>, clones: &FxHashMap<Avma, Avma>, records: Vec<Record>) -> Vec<Record> {
    let originals: FxHashMap<Avma, Avma> =
        clones.iter().map(|(&original, &clone)| (clone, original)).collect();
    let lasts = |r: &Record| {
        let original = leads_to(r).and_then(|to| originals.get(&to).copied());
        // An entry's redirect leads from a function to its own clone, perhaps behind the clone's start.
        original.map_or(r.kind == RedirectKind::Entry, |at| program.lasts_for(r.at, at))
    };
    let marked = |r: Record| Record { mark: program.mark_of(r.at), ..r };
    // The marked page itself is never written.
    let beside_mark = |r: &Record| r.mark.is_none_or(|page| r.at.align_down(4096) != page);
    records.into_iter().filter(lasts).map(marked).filter(beside_mark).collect()
}

fn word(bytes: &[u8]) -> [u8; 8] {
    std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0))
}
