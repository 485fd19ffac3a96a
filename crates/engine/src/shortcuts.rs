//! Which calls get where they mostly go more directly?
//!
//! A direct call of a small leaf is answered in place. A call through a virtual table is led by the table that was seen
//! there, if it was nearly always the same one and never changes: to the function it leads to, in place if that is a
//! small leaf.

use crate::candidates::{Candidate, SiteTargets};
use crate::program::Program;
use addr::{Addr, Avma};
use code::{Cfg, Inst};
use emit::Guard;
use iced_x86::{Code, OpKind};
use rustc_hash::FxHashMap;

/// Of all calls that ran, one in so many has to be at a call that is made longer.
const WORTH: u64 = 20_000;
/// A table has to be seen in so many thousandths of all looks,
const MOSTLY: u64 = 900;
/// of which there have to be so many.
const LOOKS: u64 = 8;

/// A call that gets where it mostly goes more directly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortcut {
    /// The call, by its place in [`Cfg::insts`].
    pub call: u32,
    /// The entry of the function that it calls.
    pub callee: Avma,
    /// Whether that runs in place.
    pub in_place: bool,
    /// What has to hold.
    pub guard: Option<Guard>,
}

/// Gives each candidate its shortcuts. `all` takes whatever can be had, whether or not it pays.
pub(crate) fn choose(program: &Program<'_>, chosen: &mut [Candidate], all: bool) {
    let leaves: FxHashMap<Avma, bool> =
        chosen.iter().map(|c| (c.analysed.cfg.entry, emit::fits_in_place(&c.analysed.cfg))).collect();
    let ran: u64 = chosen.iter().flat_map(calls).map(|(_, _, n)| n).fold(0, u64::saturating_add);
    let worth = if all { 0 } else { (ran / WORTH).max(1) };
    for c in chosen {
        let sites: FxHashMap<u32, &SiteTargets> = c.targets.iter().map(|s| (s.inst, s)).collect();
        let shortcut = |(call, inst, n): (u32, &Inst, u64)| {
            let (callee, guard) = match sites.get(&call) {
                Some(site) => {
                    let (callee, guard) = table(program, site, inst).filter(|_| all || is_one_way(site))?;
                    (callee, Some(guard))
                }
                None => (direct(program, inst)?, None),
            };
            let in_place = *leaves.get(&callee)?;
            let pays = n >= worth && (in_place || guard.is_some());
            pays.then_some(Shortcut { call, callee, in_place, guard })
        };
        c.shortcuts = calls(c).filter_map(shortcut).collect();
    }
}

/// How often functions run in place of calls, by their entries, where all guards hold.
pub(crate) fn in_place(chosen: &[Candidate]) -> FxHashMap<Avma, u64> {
    let mut in_place: FxHashMap<Avma, u64> = FxHashMap::default();
    for c in chosen {
        let callees: FxHashMap<u32, Avma> =
            c.shortcuts.iter().filter(|s| s.in_place).map(|s| (s.call, s.callee)).collect();
        for (callee, n) in calls(c).filter_map(|(call, _, n)| Some((callees.get(&call)?, n))) {
            let sum = in_place.entry(*callee).or_default();
            *sum = sum.saturating_add(n);
        }
    }
    in_place
}

/// The calls of a function: each by its place, and how often it ran.
fn calls(c: &Candidate) -> impl Iterator<Item = (u32, &Inst, u64)> {
    let cfg: &Cfg = &c.analysed.cfg;
    let counts = c.counts.blocks.iter().copied().chain(std::iter::repeat(0));
    cfg.blocks.iter().zip(counts).flat_map(move |(b, n)| {
        let insts = b.insts.clone().filter_map(|i| Some((i, cfg.insts.get(i as usize)?)));
        insts
            .filter(|(_, inst)| inst.decoded.is_call_near() || inst.decoded.is_call_near_indirect())
            .map(move |(i, inst)| (i, inst, n))
    })
}

/// Whom a direct call calls.
fn direct(program: &Program<'_>, inst: &Inst) -> Option<Avma> {
    let i = &inst.decoded;
    let plain = i.code() == Code::Call_rel32_64 && i.op0_kind() == OpKind::NearBranch64;
    let to = Avma(i.near_branch_target());
    (plain && program.entered_at(to).is_some()).then_some(to)
}

/// Whom a call through a table calls by the table that was seen most, and what says so.
fn table(program: &Program<'_>, site: &SiteTargets, inst: &Inst) -> Option<(Avma, Guard)> {
    let (register, displacement) = emit::table_call(&inst.decoded)?;
    let &(table, _) = site.bases.first()?;
    let callee = program.constant_function(table.offset(displacement.cast_signed()))?;
    Some((callee, Guard { register, table }))
}

/// Whether nearly always the same table was seen.
fn is_one_way(site: &SiteTargets) -> bool {
    let looks = site.bases.iter().map(|b| b.1).sum::<u64>() + site.others.bases;
    let most = site.bases.first().map_or(0, |b| b.1);
    looks >= LOOKS && u128::from(most) * 1000 >= u128::from(looks) * u128::from(MOSTLY)
}
