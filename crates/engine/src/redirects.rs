//! Which places of the originals lead to clones, and with which bytes.

use crate::candidates::Candidate;
use crate::program::{FuncId, Program};
use addr::{Addr, Avma, AvmaRange};
use code::{Cfg, EntryWindow, Refusal, WindowInput};
use emit::CloneInfo;
use iced_x86::{FlowControl, OpKind};
use rustc_hash::FxHashMap;
use splice::{Record, RedirectKind};

/// The jump at a function's entry.
///
/// # Errors
/// Why there is none; the clone is still reached by redirected calls.
pub fn entry(
    program: &Program<'_>,
    id: FuncId,
    cfg: &Cfg,
    clone: &CloneInfo,
    file_bytes: Option<&[u8]>,
) -> Result<Record, Refusal> {
    let extent = program.extent(id);
    let part = extent.parts.first().copied().ok_or(Refusal::Unreadable)?;
    let bytes = program.text(id, part).ok_or(Refusal::Unreadable)?;
    let module = program.module(id);
    let starts: Vec<Avma> = cfg.blocks.iter().map(|b| b.range.start).collect();
    let first_other = extent.other_entries.iter().copied().filter(|&e| e > extent.entry).min();
    let next = [module.next_start(extent.entry), first_other].into_iter().flatten().min();
    let window: EntryWindow = code::entry_window(&WindowInput {
        entry: extent.entry,
        part,
        bytes,
        file_bytes,
        next_start: next,
        branches: &module.branches,
        targets: &starts,
    })?;
    let to = clone.map.to_clone(window.jump_at).unwrap_or(clone.entry);
    let new = emit::jump(window.jump_at, to).ok_or(Refusal::OutOfReach)?;
    let range = window.range();
    let old = program.text(id, range).ok_or(Refusal::Unreadable)?;
    let interior = window
        .interior
        .iter()
        .filter_map(|a| a.since(window.jump_at))
        .fold(0u8, |mask, i| mask | 1u8.checked_shl(u32::try_from(i).unwrap_or(32)).unwrap_or(0));
    let record = Record { at: window.jump_at, kind: RedirectKind::Entry, len: window.len, interior, old: word(old), new: word(&new) };
    if record.in_one_page() { Ok(record) } else { Err(Refusal::EntryCrossesPage) }
}

/// The direct calls of original code that can go straight to clones. `taken` are bytes other redirects use.
#[must_use]
pub fn calls(
    program: &Program<'_>,
    callers: &[Candidate],
    clones: &FxHashMap<Avma, Avma>,
    taken: &[AvmaRange],
) -> Vec<Record> {
    let mut records = Vec::new();
    for caller in callers {
        for inst in &caller.analysed.cfg.insts {
            let d = &inst.decoded;
            if d.flow_control() != FlowControl::Call || d.op0_kind() != OpKind::NearBranch64 {
                continue;
            }
            let Some(&clone) = clones.get(&Avma(d.near_branch64())) else { continue };
            let (bytes, end) = (inst.bytes.as_slice(), inst.end());
            let (Some(new), Some(at)) = (emit::branch_displacement(end, clone), bytes.len().checked_sub(4)) else {
                continue;
            };
            let record = Record {
                at: end.sub(4),
                kind: RedirectKind::Call,
                len: 4,
                interior: 0,
                old: word(&bytes[at..]),
                new: word(&new),
            };
            let live = program.text(caller.id, record.range());
            let after = taken.partition_point(|t| t.end <= record.at);
            let free = taken.get(after).is_none_or(|t| !t.overlaps(&record.range()));
            if record.in_one_page() && free && live == Some(record.old_bytes()) {
                records.push(record);
            }
        }
    }
    records.sort_by_key(|r| r.at);
    records.dedup_by_key(|r| r.at);
    records
}

fn word(bytes: &[u8]) -> [u8; 8] {
    std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0))
}
