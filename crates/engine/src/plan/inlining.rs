//! Chooses which calls are inlined or devirtualized.
//!
//! A direct call is (partially) inlined if control nearly always takes the same short path through its
//! callee. A call through a virtual table gets a guard on the observed table (guarded devirtualization). The
//! table must nearly always be the same and must never change. The call then leads to the table's function
//! directly, inlined if the function qualifies.

use crate::analyse::program::Program;
use crate::base::passes::{Pass, Style};
use crate::plan::candidate::{Measured, SiteTargets};
use crate::plan::laid_out::{InlineSite, Inlined, LaidOut, Linked};
use addr::{Addr, Avma};
use code::{BlockId, Cfg, Dest, Inst, InstId, Term};
use emit::{Body, Guard};
use iced_x86::{Code, OpKind};
use rustc_hash::FxHashMap;

/// A call that gets longer must make at least one in `WORTH` of all calls.
const WORTH: u64 = 20_000;
/// A table must be seen in this share of all observations. Thousandths.
const MOSTLY: u64 = 900;
/// The smallest number of observations for such a decision.
const LOOKS: u64 = 8;

/// At most one in `CALLS_PER_EXIT` calls leaves the inlined path. At least as many calls must have been
/// counted.
const CALLS_PER_EXIT: u64 = 33;
/// The largest number of blocks in an inlined path.
const MOST_BLOCKS: usize = 12;

/// Chooses the inline sites of each function. With a random layout, chooses every possible site, whether or
/// not it pays.
pub(crate) fn choose(program: &Program<'_>, linked: Vec<Linked>, style: Style) -> Vec<Inlined> {
    let Style { shuffle, passes } = style;
    let all = shuffle.is_some();
    let ran: u64 = made(linked.iter().map(|c| &***c));
    let with_way =
        |linked: Linked| Inlined { way: wanted_way(&linked, style), linked, inline_sites: Vec::new() };
    let mut chosen: Vec<Inlined> = linked.into_iter().map(with_way).collect();
    let fits: FxHashMap<Avma, bool> =
        chosen.iter().map(|c| (c.analysed.cfg.entry, c.way.is_some())).collect();
    let worth = if all { 0 } else { (ran / WORTH).max(1) };
    for c in &mut chosen {
        let sites: FxHashMap<InstId, &SiteTargets> = c.targets.iter().map(|s| (s.inst, s)).collect();
        let entry = c.analysed.cfg.entry;
        let inline_site = |Call { place: call, inst, count, .. }: Call<'_>| {
            let (callee, guard) = match sites.get(&call) {
                Some(site) => {
                    let (callee, guard) =
                        table(program, entry, site, inst).filter(|_| all || is_one_way(site))?;
                    (callee, Some(guard))
                }
                None => (direct(program, inst)?, None),
            };
            let inlined = *fits.get(&callee)?;
            let pays = count >= worth && (inlined || guard.is_some());
            let wanted = guard.is_none() || passes.has(Pass::Guards);
            (pays && wanted).then_some(InlineSite { call, callee, inlined, guard })
        };
        // A call through a redirect must not call a clone directly, so it gets no guard alone: a slot of a virtual
        // table leads where undo says. An inlined callee is allowed: undo has no clone of it to remove.
        let lasts = |s: &InlineSite| s.inlined || c.layout.through_redirects.binary_search(&s.call).is_err();
        c.inline_sites = calls(c).filter_map(inline_site).filter(lasts).collect();
    }
    chosen
}

/// Returns the path through a function that is to be inlined for calls.
fn wanted_way(c: &Measured, Style { shuffle, passes }: Style) -> Option<Vec<BlockId>> {
    let straight = |path: &Vec<BlockId>| !branches(&c.analysed.cfg, path);
    way(c, shuffle.is_some())
        .filter(|path| passes.has(Pass::Inlining) && (passes.has(Pass::SideExits) || straight(path)))
}

/// Returns the path through a function that can be inlined for calls, if control mostly takes it.
fn way(c: &Measured, all: bool) -> Option<Vec<BlockId>> {
    let cfg: &Cfg = &c.analysed.cfg;
    let lsda = c.analysed.lsda.as_ref();
    let mut path = vec![BlockId(0)];
    let mut off: u64 = 0;
    loop {
        let last = *path.last()?;
        if matches!(cfg.blocks.get(last.index())?.term, Term::Return) {
            break;
        }
        let mut counts = c.counts.edges(last).iter().copied();
        let mut best: Option<(u64, Dest)> = None;
        cfg.successors(last, |dest| {
            let n = counts.next().unwrap_or(0);
            let (more, less) = match best {
                Some(b) if b.0 >= n => (b, n),
                Some(b) => ((n, dest), b.0),
                None => ((n, dest), 0),
            };
            best = Some(more);
            off = off.saturating_add(less);
        });
        match best?.1 {
            Dest::Block(next) if path.len() < MOST_BLOCKS && !path.contains(&next) => path.push(next),
            _ => return None,
        }
    }
    // Control that enters the middle of a function has left the inlined path elsewhere.
    let left: u64 = c.counts.blocks.iter().skip(1).fold(0, |sum, b| sum.saturating_add(b.inflow));
    let (entered, off) = (c.counts.block(BlockId(0)).saturating_add(left), off.saturating_add(left));
    let mostly =
        !branches(cfg, &path) || entered >= CALLS_PER_EXIT && off.saturating_mul(CALLS_PER_EXIT) <= entered;
    let fits = || emit::can_inline(Body { cfg, path: &path, lsda });
    ((all || mostly) && fits()).then_some(path)
}

/// Returns whether control can leave a path.
fn branches(cfg: &Cfg, path: &[BlockId]) -> bool {
    path.iter().any(|b| matches!(cfg.blocks[b.index()].term, Term::Cond { .. }))
}

/// Returns how often functions run inlined, by their entries, if all guards hold.
pub(crate) fn inlined_runs(chosen: &[LaidOut]) -> FxHashMap<Avma, u64> {
    let mut inlined: FxHashMap<Avma, u64> = FxHashMap::default();
    for c in chosen {
        let callees: FxHashMap<InstId, Avma> =
            c.inline_sites.iter().filter(|s| s.inlined).map(|s| (s.call, s.callee)).collect();
        for (callee, n) in calls(c).filter_map(|call| Some((callees.get(&call.place)?, call.count))) {
            let sum = inlined.entry(*callee).or_default();
            *sum = sum.saturating_add(n);
        }
    }
    inlined
}

/// A call of a function, direct or indirect.
pub(crate) struct Call<'a> {
    /// The block that contains it.
    pub(crate) block: BlockId,
    /// The call itself.
    pub(crate) place: InstId,
    pub(crate) inst: &'a Inst,
    /// How often it ran.
    pub(crate) count: u64,
}

/// Returns all calls of a function.
pub(crate) fn calls(c: &Measured) -> impl Iterator<Item = Call<'_>> {
    let cfg: &Cfg = &c.analysed.cfg;
    cfg.block_ids().zip(&cfg.blocks).flat_map(move |(block, b)| {
        let count = c.counts.block(block);
        let insts = b.inst_ids().filter_map(|i| Some((i, cfg.insts.get(i.index())?)));
        insts
            .filter(|(_, inst)| inst.decoded.is_call_near() || inst.decoded.is_call_near_indirect())
            .map(move |(place, inst)| Call { block, place, inst, count })
    })
}

/// Returns how many calls all functions made.
pub(crate) fn made<'a>(chosen: impl Iterator<Item = &'a Measured>) -> u64 {
    chosen.flat_map(calls).fold(0, |sum, call| sum.saturating_add(call.count))
}

/// Returns the callee of a direct call.
fn direct(program: &Program<'_>, inst: &Inst) -> Option<Avma> {
    let i = &inst.decoded;
    let plain = i.code() == Code::Call_rel32_64 && i.op0_kind() == OpKind::NearBranch64;
    let to = Avma(i.near_branch_target());
    (plain && program.entered_at(to).is_some()).then_some(to)
}

/// Returns the callee that the most frequent table gives for a call, and the guard on it. Neither the table
/// nor the callee may be in a module that can be unloaded before the caller. Otherwise another module's table
/// may get the same address.
fn table(program: &Program<'_>, caller: Avma, site: &SiteTargets, inst: &Inst) -> Option<(Avma, Guard)> {
    let (register, displacement) = emit::table_call(&inst.decoded)?;
    let &(table, _) = site.bases.first()?;
    let callee = program.constant_function(table.offset(displacement.cast_signed()))?;
    let lasts = [table, callee].into_iter().all(|at| program.lasts_for(caller, at));
    lasts.then_some((callee, Guard { register, table }))
}

/// Returns whether nearly all observations show the same table.
fn is_one_way(site: &SiteTargets) -> bool {
    let looks = site.bases.iter().map(|b| b.1).sum::<u64>() + site.others.bases;
    let most = site.bases.first().map_or(0, |b| b.1);
    looks >= LOOKS && u128::from(most) * 1000 >= u128::from(looks) * u128::from(MOSTLY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::passes::Passes;
    use crate::plan::test_candidate::{counted, set_edges};

    /// `test; jne b2; b1: ret; b2: je out; b3: ret`
    const FUNCTION: &str = "\
function 0x1000
part 0x1000..0x1009
block b0 0x1000
  48 85 c0
  75 01
  cond ne b2 else b1
block b1 0x1005
  c3
  return
block b2 0x1006
  74 01
  cond e 0x1009 else b3
block b3 0x1008
  c3
  return
";

    /// Returns a candidate with counts of its two branches: to b2 or b1, and to a place outside or b3.
    fn gone(first: [u64; 2], second: [u64; 2]) -> Measured {
        let entered = first[0] + first[1];
        let mut c = counted(1, &[entered, first[1], first[0], second[1]], 0).measured;
        c.candidate.analysed.cfg = code::parse(FUNCTION).unwrap();
        set_edges(&mut c.counts, &[&first, &[], &second, &[]]);
        c
    }

    /// Returns the inlined path for these counts.
    fn by(first: [u64; 2], second: [u64; 2], all: bool) -> Option<Vec<u32>> {
        way(&gone(first, second), all).map(|path| path.iter().map(|b| b.0).collect())
    }

    #[test]
    fn paths_can_be_left_out() {
        let mut straight = gone([0, 99], [0, 0]);
        straight.candidate.analysed.cfg = code::parse(
            "function 0x1000\npart 0x1000..0x1004\nblock b0 0x1000\n  48 89 f8\n  c3\n  return\n",
        )
        .unwrap();
        let branched = gone([0, 99], [0, 0]);
        let without = |passes: &[Pass]| {
            let style = Style { passes: Passes::without(passes), ..Style::default() };
            [&straight, &branched].map(|c| wanted_way(c, style).is_some())
        };
        assert_eq!(without(&[]), [true, true]);
        assert_eq!(without(&[Pass::SideExits]), [true, false]);
        assert_eq!(without(&[Pass::Inlining]), [false, false]);
    }

    #[test]
    fn the_path_that_is_nearly_always_taken_is_inlined() {
        assert_eq!(by([3, 97], [0, 3], false), Some(vec![0, 1]));
        assert_eq!(by([97, 3], [0, 97], false), Some(vec![0, 2, 3]));
        assert_eq!(by([4, 96], [0, 4], false), None, "too often another one");
        assert_eq!(by([98, 2], [2, 96], false), None, "together too often");
        assert_eq!(by([98, 2], [98, 0], false), None, "it leads outside");
        assert_eq!(by([0, 0], [0, 0], false), None, "nobody knows");
        assert_eq!((by([0, 32], [0, 0], false), by([0, 33], [0, 0], false)), (None, Some(vec![0, 1])));
        assert_eq!(by([50, 50], [0, 50], true), Some(vec![0, 2, 3]), "whatever can be had");
    }
}
