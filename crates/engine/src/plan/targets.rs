//! The observed targets of indirect calls.
//!
//! Before each indirect call or jump, a counting clone records the registers that determine its destination.
//! These are the register of the destination, or the registers of the pointer's address. whet reads the
//! records from time to time while the target runs. The memory that it reads then may have changed. Its
//! findings are weighted by time, not by calls. So they are a hint, never a fact: code that uses them must
//! check again at run time.

use addr::{Avma, ReadMemory};
use code::{Block, Cfg, Gpr, Inst, InstId, Term};
use emit::Watch;
use iced_x86::{FlowControl, Instruction, OpKind, Register};
use rustc_hash::FxHashMap;

/// Bytes recorded per register.
const WORD: u32 = 8;
/// The largest number of registers in an address.
const MOST_REGISTERS: usize = 2;

/// A watched indirect call or jump.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    /// The call or jump.
    pub(crate) inst: InstId,
    /// The offset of its recorded registers, and how the destination follows from them. Bytes.
    offset: u32,
    form: Form,
}

/// How the destination of an indirect call is determined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// The value of a register.
    Register(Gpr),
    /// The word of memory at base + index * scale + displacement.
    Memory { base: Option<Gpr>, index: Option<(Gpr, u64)>, displacement: u64 },
}

impl Form {
    fn of(i: &Instruction) -> Option<Self> {
        match i.op0_kind() {
            OpKind::Register => Gpr::of(i.op0_register()).map(Form::Register),
            OpKind::Memory if !i.is_ip_rel_memory_operand() => {
                let plain = [Register::DS, Register::SS].contains(&i.memory_segment());
                let part = |r: Register| if r == Register::None { Some(None) } else { Gpr::of(r).map(Some) };
                let (base, index) = (part(i.memory_base())?, part(i.memory_index())?);
                let index = index.map(|r| (r, u64::from(i.memory_index_scale())));
                // A pointer on the stack changes a moment later.
                let lasts = base != Some(Gpr::RSP) && (base.is_some() || index.is_some());
                (plain && lasts).then_some(Form::Memory {
                    base,
                    index,
                    displacement: i.memory_displacement64(),
                })
            }
            _ => None,
        }
    }

    /// Returns the registers to record, in the order of recording.
    fn registers(self) -> impl Iterator<Item = Gpr> {
        let (a, b) = match self {
            Form::Register(r) => (Some(r), None),
            Form::Memory { base, index, .. } => (base, index.map(|(r, _)| r)),
        };
        a.into_iter().chain(b)
    }

    /// Returns the address in the only register, for example of a virtual table that holds the destination.
    fn base(self, kept: [u64; MOST_REGISTERS]) -> Option<Avma> {
        matches!(self, Form::Memory { base: Some(_), index: None, .. }).then_some(Avma(kept[0]))
    }

    /// Computes the destination from the recorded registers.
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

/// Returns the sites of a function. Their records begin at `offset`, which is advanced.
pub(crate) fn sites(cfg: &Cfg, offset: &mut u32) -> Vec<Site> {
    let leaves = cfg.blocks.iter().filter(|b| matches!(b.term, Term::Indirect)).filter_map(Block::last_inst);
    let leaves: Vec<InstId> = leaves.collect();
    let indirect = |(n, inst): &(InstId, &Inst)| match inst.decoded.flow_control() {
        FlowControl::IndirectCall => true,
        FlowControl::IndirectBranch => leaves.contains(n),
        _ => false,
    };
    cfg.numbered_insts()
        .filter(indirect)
        .filter_map(|(n, inst)| {
            let form = Form::of(&inst.decoded)?;
            let site = Site { inst: n, offset: *offset, form };
            *offset += WORD * u32::try_from(form.registers().count()).ok()?;
            Some(site)
        })
        .collect()
}

/// Returns the records that a clone must write for a site.
pub(crate) fn watches(site: &Site) -> impl Iterator<Item = Watch> {
    let Site { inst, offset, form } = *site;
    (0u32..).zip(form.registers()).map(move |(n, register)| Watch {
        inst,
        register,
        offset: offset + n * WORD,
    })
}

/// Observations of one site, with their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenSite {
    /// Destinations.
    pub(crate) targets: FxHashMap<Avma, u64>,
    /// Values of the register, if the address consists of a single register.
    pub(crate) bases: FxHashMap<Avma, u64>,
}

/// Observations of several sites.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    sites: Vec<SeenSite>,
    /// Destinations computed so far from recorded registers and memory.
    known: FxHashMap<(usize, [u64; MOST_REGISTERS]), Option<Avma>>,
}

impl Seen {
    /// Adds the records of one thread: words from the offset `from` on.
    pub(crate) fn take(&mut self, sites: &[Site], from: u32, words: &[u64], memory: &dyn ReadMemory) {
        self.sites.resize_with(sites.len(), SeenSite::default);
        for (n, (site, found)) in sites.iter().zip(&mut self.sites).enumerate() {
            let at = (site.offset.saturating_sub(from) / WORD) as usize;
            let mut kept = [0; MOST_REGISTERS];
            let count = site.form.registers().count();
            let Some(own) = words.get(at..at + count) else { continue };
            kept[..count].copy_from_slice(own);
            // The thread has not passed the site yet.
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

    /// Returns the observations of each site.
    pub(crate) fn sites(self) -> impl Iterator<Item = SeenSite> {
        self.sites.into_iter()
    }
}

/// Sorts observations, the most frequent first.
pub(crate) fn ranked(seen: impl IntoIterator<Item = (Avma, u64)>) -> Vec<(Avma, u64)> {
    let mut seen: Vec<(Avma, u64)> = seen.into_iter().collect();
    seen.sort_unstable_by_key(|&(at, n)| (std::cmp::Reverse(n), at));
    seen
}

#[cfg(test)]
#[path = "targets_tests.rs"]
mod tests;
