//! The proof that a finished clone does what the original does.
//!
//! The claim is law 2, as a simulation. A clone address C *stands for* an original address D (written C ~ D)
//! in any of these cases:
//! - the map says so in either direction (each of several copies stands for its original);
//! - C is D;
//! - C is the entry of a clone and D the entry of its original, or C is behind the `endbr64` with which that
//!   clone begins;
//! - C is the clone address of the block that begins at D.
//!
//! The verifier decodes the clone's bytes from first to last and uses nothing of how they were made. It
//! checks:
//!
//! 1. INVARIANT(one-to-one): each decoded instruction is one entry of the map, and each entry with bytes is
//!    one decoded instruction, in one fragment;
//! 2. INVARIANT(entry): the first clone instruction stands for the original's first; each place where a
//!    redirect enters the clone stands for the redirected instruction;
//! 3. INVARIANT(simulation), for each entry, where *next* is the address behind it, in the clone or not:
//!    - a copy that is no direct jump is the same instruction, equal in all operands and in the effective
//!      address of a RIP-relative operand, and next ~ the original's next; a direct call's destination ~ the
//!      original's, or the call goes through the slot of the stub that the original calls;
//!    - a copy of a `jmp` is a `jmp` and its destination ~ the original's, or it is a jump through the stub's
//!      slot;
//!    - a copy of a conditional jump has the same condition, destination ~ destination and next ~ next, or
//!      the inverse condition and the two exchanged;
//!    - an extra `jmp` has a destination ~ its original; a counter has next ~ its original, and the registers
//!      and flags that it changes are not read before they are written, from its original on;
//!    - a dropped `jmp` has a destination that its place stands for;
//! 4. each destination in a cloned table ~ the original table's, and its reader reads the cloned table.
//!
//! Assume C ~ D, with the clone at C and the original at D in equal state. Then by 3 and 4 it holds after one
//! step; by 2 it holds at the entry. A returning call comes back to next, which needs no further proof, as
//! next ~ next. A copy without a successor needs no next: `ret`, indirect jumps.

use crate::count;
use crate::encode::{Clones, Encoded, Fragment};
use crate::items::Plan;
use crate::map::{AddressMap, Entry, Link};
use crate::request::Function;
use crate::steps::steps;
use crate::table;
use crate::verify_inline::OutOfLineCalls;
use addr::{Addr, Avma};
use code::{Cfg, Dest, Inst, InstId, Liveness, Question, Refusal};
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, Register};
use rustc_hash::{FxHashMap, FxHashSet};

/// Checks one clone.
///
/// # Errors
/// [`Refusal::RoundTrip`] if the claim does not hold.
pub(crate) fn verify(
    f: &Function<'_>,
    plan: &Plan,
    clone: &Encoded,
    map: &AddressMap,
    clones: &Clones<'_>,
) -> Result<(), Refusal> {
    let counted = (!f.counters.is_empty() || !f.watches.is_empty()).then(|| Counted::new(f));
    let v = Verifier { f, plan, clone, map, clones, counted };
    v.text().and_then(|()| v.tables()).ok_or(Refusal::RoundTrip)
}

pub(crate) struct Verifier<'a> {
    pub(crate) f: &'a Function<'a>,
    plan: &'a Plan,
    clone: &'a Encoded,
    pub(crate) map: &'a AddressMap,
    pub(crate) clones: &'a Clones<'a>,
    /// Present if there are counters or watches.
    counted: Option<Counted>,
}

/// The facts against which counters are checked.
struct Counted {
    liveness: Liveness,
    /// Instructions by address.
    insts: FxHashMap<Avma, InstId>,
    offsets: FxHashSet<u32>,
}

impl Counted {
    fn new(f: &Function<'_>) -> Self {
        Self {
            liveness: Liveness::compute(f.cfg),
            insts: f.cfg.numbered_insts().map(|(id, i)| (i.at, id)).collect(),
            offsets: f.counters.iter().map(|c| c.offset).chain(f.watches.iter().map(|w| w.offset)).collect(),
        }
    }

    fn allows(&self, cfg: &Cfg, at: Avma, got: &Instruction) -> bool {
        let live = match self.insts.get(&at) {
            Some(&i) => self.liveness.live_before(i),
            None => Question::Value.outside(cfg, at),
        };
        count::is_unnoticed(got, live, |offset| self.offsets.contains(&offset))
    }
}

impl Verifier<'_> {
    /// Checks points 1 to 3; `None` if one fails.
    fn text(&self) -> Option<()> {
        let clone = self.clone;
        let first = &clone.insts.first()?.entry;
        let entry = self.f.cfg.entry;
        let entry_ok = self.f.cfg.insts_of(*self.f.order.first()?).first()?.at == entry
            && first.original == entry
            && self.stands_for(clone.fragments.start(), entry)
            // The original decides what is behind its `endbr64`; the clone must begin with a copy of it.
            && self.clones.here.get(&entry).is_none_or(|e| {
                e.direct == e.start || first.link == Link::Copy && first.at == 0
            });
        if !entry_ok || clone.fragments != *self.map.fragments() {
            return None;
        }
        let mut calls = OutOfLineCalls::default();
        clone.fragments()?.iter().try_for_each(|fragment| self.fragment(fragment, &mut calls))?;
        let entered = |&(original, at): &(Avma, Avma)| {
            !self.map.entries_at(at).is_empty() && self.stands_for(at, original)
        };
        (self.hold(&calls) && clone.entrances.iter().all(entered)).then_some(())
    }

    fn fragment(&self, fragment: &Fragment<'_>, calls: &mut OutOfLineCalls) -> Option<()> {
        let mut steps = steps(fragment)?.into_iter();
        while let Some(step) = steps.next() {
            let original = step.inst.map(|i| self.f.cfg.insts.get(i.index())).unwrap_or_default();
            if original.is_some_and(|o| o.at != step.entry.original) {
                return None;
            }
            match (step.entry.link, original) {
                (Link::Dropped, Some(o)) if o.decoded.is_call_near() => {
                    self.inlined(&step, o, &mut steps, calls)?;
                }
                (Link::Dropped, o) => self.dropped(step.at, o?)?,
                (Link::Copy | Link::Again, o) => self.copy(o?, &step.got, step.bytes)?,
                (Link::Extra, _) if step.got.mnemonic() == Mnemonic::Cmp => {
                    self.guarded(&step, &mut steps, calls)?;
                }
                (Link::Extra, _) => self.extra(step.entry, &step.got)?,
                // All other instructions of an inlined or guarded call are behind its first instruction.
                (Link::Within, _) => self.out_of_line(&step, calls)?,
            }
        }
        Some(())
    }

    fn dropped(&self, at: Avma, original: &Inst) -> Option<()> {
        let to = Avma(original.decoded.near_branch_target());
        (original.decoded.is_jmp_short_or_near() && self.stands_for(at, to)).then_some(())
    }

    fn extra(&self, entry: &Entry, got: &Instruction) -> Option<()> {
        let leads = match got.mnemonic() {
            Mnemonic::Jmp if got.is_jmp_short_or_near() => Avma(got.near_branch_target()),
            _ if self.counted.as_ref().is_some_and(|c| c.allows(self.f.cfg, entry.original, got)) => {
                Avma(got.next_ip())
            }
            _ => return None,
        };
        self.stands_for(leads, entry.original).then_some(())
    }

    fn copy(&self, inst: &Inst, got: &Instruction, bytes: &[u8]) -> Option<()> {
        let was = &inst.decoded;
        let next = || self.stands_for(Avma(got.next_ip()), inst.end());
        let goes = |from: &Instruction, to: Avma| self.stands_for(Avma(from.near_branch_target()), to);
        let target = Avma(was.near_branch_target());
        let ok = match was.flow_control() {
            FlowControl::UnconditionalBranch => {
                got.is_jmp_short_or_near() && goes(got, target) || self.through(got, Code::Jmp_rm64, target)
            }
            FlowControl::ConditionalBranch if was.is_jcc_short_or_near() => {
                let [to, on] = ways(inst, got)?;
                goes(got, to) && self.stands_for(Avma(got.next_ip()), on)
            }
            FlowControl::ConditionalBranch => got.code() == was.code() && goes(got, target) && next(),
            FlowControl::Call if was.code() == Code::Call_rel32_64 => {
                let old = inst.bytes.as_slice();
                let prefixes = old.len().checked_sub(4)?;
                let direct =
                    bytes.len() == old.len() && bytes[..prefixes] == old[..prefixes] && goes(got, target);
                (direct || self.through(got, Code::Call_rm64, target)) && next()
            }
            FlowControl::Return | FlowControl::IndirectBranch => self.same(inst, got, bytes)?,
            _ => self.same(inst, got, bytes)? && next(),
        };
        ok.then_some(())
    }

    /// Returns whether an instruction goes through the slot of the stub at `stub`.
    fn through(&self, got: &Instruction, code: Code, stub: Avma) -> bool {
        got.code() == code
            && got.is_ip_rel_memory_operand()
            && got.memory_segment() == Register::DS
            && self.clones.stubs.get(&stub) == Some(&Avma(got.ip_rel_memory_address()))
    }

    /// Returns whether an instruction without a code operand is the same.
    fn same(&self, inst: &Inst, got: &Instruction, bytes: &[u8]) -> Option<bool> {
        let was = &inst.decoded;
        if bytes == inst.bytes.as_slice() && !was.is_ip_rel_memory_operand() {
            return Some(true);
        }
        if was.is_ip_rel_memory_operand() {
            // The decoder stores a RIP-relative displacement as its effective address.
            return Some(bytes.len() == inst.bytes.as_slice().len() && got == was);
        }
        let read = self.plan.tables.iter().find_map(|t| {
            let load = self.f.cfg.tables.get(t.id.index())?.cloneable?;
            let reader = self.f.cfg.insts.get(load.inst.index())?;
            (reader.at == inst.at).then_some((load, self.clone.data_at.add(t.at as u64)))
        });
        let (load, at) = read?;
        let reads = Avma(load.base_value.unwrap_or_default().0.wrapping_add(got.memory_displacement64()));
        Some(reads == at && table::same_but_displacement(got, was))
    }

    /// Checks point 4.
    fn tables(&self) -> Option<()> {
        for t in &self.plan.tables {
            let table = self.f.cfg.tables.get(t.id.index())?;
            let bytes = self.clone.data.get(t.at..)?.get(..table::entries_len(table))?;
            for (to, target) in table::destinations(bytes, table.form).zip(&table.targets) {
                let original = match *target {
                    Dest::Block(b) => self.f.cfg.blocks.get(b.index())?.range.start,
                    Dest::Outside(at) => at,
                };
                if !self.stands_for(to?, original) {
                    return None;
                }
            }
        }
        Some(())
    }

    /// Returns the 8-byte word at an address in the clone's data.
    pub(crate) fn data_word(&self, at: Avma) -> Option<u64> {
        let offset = usize::try_from(at.since(self.clone.data_at)?).ok()?;
        self.clone.data.get(offset..)?.first_chunk().copied().map(u64::from_le_bytes)
    }

    /// Returns whether C ~ D.
    pub(crate) fn stands_for(&self, clone: Avma, original: Avma) -> bool {
        if self.map.fragments().contains(clone) {
            return self.map.to_original(clone) == Some(original)
                || self.map.to_clone(original) == Some(clone)
                || self.clones.here.get(&original).is_some_and(|e| e.direct == clone);
        }
        self.clones.of(original).any(|c| c == clone)
    }
}

/// Returns where the original goes if a conditional jump in the clone is taken, and if it is not.
pub(crate) fn ways(inst: &Inst, got: &Instruction) -> Option<[Avma; 2]> {
    let was = &inst.decoded;
    let (target, next) = (Avma(was.near_branch_target()), inst.end());
    let mut inverse = *was;
    inverse.negate_condition_code();
    match got.condition_code() {
        _ if !got.is_jcc_short_or_near() => None,
        same if same == was.condition_code() => Some([target, next]),
        other => (other == inverse.condition_code()).then_some([next, target]),
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
