//! Whom do indirect calls call?
//!
//! A clone that counts keeps, before each indirect call or jump, the registers that tell where it goes: the register
//! itself, or those that make up the address of the pointer. whet looks at them now and then while the target runs. What
//! it reads of memory may be gone or other by then, and what it finds is weighted by time, not by calls: a hint, never a
//! fact. Whatever is made of it has to ask again when it runs.

use addr::{Avma, ReadMemory};
use code::{Cfg, Inst, Term};
use emit::Watch;
use iced_x86::{FlowControl, Instruction, OpKind, Register};
use rustc_hash::FxHashMap;

/// Bytes of what is kept of a register.
const WORD: u32 = 8;
/// More registers than these never make up an address.
const MOST_REGISTERS: usize = 2;

/// One indirect call or jump that is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    /// Which, by its place in [`Cfg::insts`].
    pub(crate) inst: u32,
    /// How its destination comes from what is kept, which begins at this offset. Bytes.
    offset: u32,
    form: Form,
}

/// Where an indirect call goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// To what a register holds.
    Register(u8),
    /// To what memory holds at base + index * scale + displacement.
    Memory { base: Option<u8>, index: Option<(u8, u64)>, displacement: u64 },
}

impl Form {
    fn of(i: &Instruction) -> Option<Self> {
        match i.op0_kind() {
            OpKind::Register => register(i.op0_register()).map(Form::Register),
            OpKind::Memory if !i.is_ip_rel_memory_operand() => {
                let plain = [Register::DS, Register::SS].contains(&i.memory_segment());
                let part = |r: Register| if r == Register::None { Some(None) } else { register(r).map(Some) };
                let (base, index) = (part(i.memory_base())?, part(i.memory_index())?);
                let index = index.map(|r| (r, u64::from(i.memory_index_scale())));
                // What lies on the stack is something else a moment later.
                let lasts = base != Some(4) && (base.is_some() || index.is_some());
                (plain && lasts).then_some(Form::Memory {
                    base,
                    index,
                    displacement: i.memory_displacement64(),
                })
            }
            _ => None,
        }
    }

    /// The registers to keep, in the order in which they are kept.
    fn registers(self) -> impl Iterator<Item = u8> {
        let (a, b) = match self {
            Form::Register(r) => (Some(r), None),
            Form::Memory { base, index, .. } => (base, index.map(|(r, _)| r)),
        };
        a.into_iter().chain(b)
    }

    /// The address in a register, that of a virtual table perhaps, from which the destination's is not far.
    fn base(self, kept: [u64; MOST_REGISTERS]) -> Option<Avma> {
        matches!(self, Form::Memory { base: Some(_), index: None, .. }).then_some(Avma(kept[0]))
    }

    /// The destination, from what was kept.
    fn destination(self, kept: [u64; MOST_REGISTERS], memory: &dyn ReadMemory) -> Option<Avma> {
        match self {
            Form::Register(_) => Some(Avma(kept[0])),
            Form::Memory { base, index, displacement } => {
                let (base, index) = match (base, index) {
                    (None, Some((_, scale))) => (0, kept[0].wrapping_mul(scale)),
                    (_, Some((_, scale))) => (kept[0], kept[1].wrapping_mul(scale)),
                    (_, None) => (kept[0], 0),
                };
                let at = base.wrapping_add(index).wrapping_add(displacement);
                memory.u64(Avma(at)).ok().map(Avma)
            }
        }
    }
}

/// The number of a general register that is named in full.
fn register(r: Register) -> Option<u8> {
    r.is_gpr64().then(|| u8::try_from(r.number()).ok()).flatten()
}

/// The sites of a function; what is kept for them takes offsets from `offset` on, which is moved on.
pub(crate) fn sites(cfg: &Cfg, offset: &mut u32) -> Vec<Site> {
    let leaves = cfg
        .blocks
        .iter()
        .filter(|b| matches!(b.term, Term::Indirect))
        .filter_map(|b| b.insts.end.checked_sub(1));
    let leaves: Vec<u32> = leaves.collect();
    let indirect = |(n, inst): &(u32, &Inst)| match inst.decoded.flow_control() {
        FlowControl::IndirectCall => true,
        FlowControl::IndirectBranch => leaves.contains(n),
        _ => false,
    };
    (0u32..)
        .zip(&cfg.insts)
        .filter(indirect)
        .filter_map(|(n, inst)| {
            let form = Form::of(&inst.decoded)?;
            let site = Site { inst: n, offset: *offset, form };
            *offset += WORD * u32::try_from(form.registers().count()).ok()?;
            Some(site)
        })
        .collect()
}

/// What a clone has to keep for a site.
pub(crate) fn watches(site: &Site) -> impl Iterator<Item = Watch> {
    let Site { inst, offset, form } = *site;
    (0u32..).zip(form.registers()).map(move |(n, register)| Watch {
        inst,
        register,
        offset: offset + n * WORD,
    })
}

/// What was seen of one site, with how often of all looks.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenSite {
    /// Where it led.
    pub(crate) targets: FxHashMap<Avma, u64>,
    /// What the register held that is all there is to it.
    pub(crate) bases: FxHashMap<Avma, u64>,
}

/// What was seen of some sites.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    sites: Vec<SeenSite>,
    /// What memory said of registers that were kept.
    known: FxHashMap<(usize, [u64; MOST_REGISTERS]), Option<Avma>>,
}

impl Seen {
    /// Takes in what one thread kept, in words from the offset `from` on.
    pub(crate) fn take(&mut self, sites: &[Site], from: u32, words: &[u64], memory: &dyn ReadMemory) {
        self.sites.resize_with(sites.len(), SeenSite::default);
        for (n, (site, found)) in sites.iter().zip(&mut self.sites).enumerate() {
            let at = (site.offset.saturating_sub(from) / WORD) as usize;
            let mut kept = [0; MOST_REGISTERS];
            let count = site.form.registers().count();
            let Some(own) = words.get(at..at + count) else { continue };
            kept[..count].copy_from_slice(own);
            // Nothing came by yet.
            if own.iter().all(|&w| w == 0) {
                continue;
            }
            let to = self.known.entry((n, kept)).or_insert_with(|| site.form.destination(kept, memory));
            if let Some(to) = to {
                *found.targets.entry(*to).or_default() += 1;
            }
            if let Some(base) = site.form.base(kept) {
                *found.bases.entry(base).or_default() += 1;
            }
        }
    }

    /// Of each site what was seen.
    pub(crate) fn sites(self) -> impl Iterator<Item = SeenSite> {
        self.sites.into_iter()
    }
}

/// The most frequent first.
pub(crate) fn ranked(seen: impl IntoIterator<Item = (Avma, u64)>) -> Vec<(Avma, u64)> {
    let mut seen: Vec<(Avma, u64)> = seen.into_iter().collect();
    seen.sort_unstable_by_key(|&(at, n)| (std::cmp::Reverse(n), at));
    seen
}

#[cfg(test)]
#[path = "targets_tests.rs"]
mod tests;
