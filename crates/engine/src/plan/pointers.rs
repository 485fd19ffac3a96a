//! Chooses the function that a guard on a function pointer expects.
//!
//! The guard compares the pointer with the function's original entry. So the module of the function must stay
//! loaded as long as the caller: another module could be loaded at the same address. A slot of a virtual table
//! that leads to a clone never holds the original entry, so functions in such slots get no guard.
//!
//! A comparison changes the status flags. By the ABI no call passes any, but a function in assembly may read
//! them. If one of the observed callees reads a status flag before it writes it, the call is left alone.

use crate::analyse::program::Program;
use crate::plan::candidate::{Candidate, SiteTargets};
use crate::plan::targets::MOST_CALLEES;
use addr::Avma;
use code::{BlockId, Inst, Liveness, STATUS_FLAGS};
use rustc_hash::{FxHashMap, FxHashSet};

/// A callee must be observed in this share of all observations. Thousandths.
const MOSTLY: u64 = 900;
/// The smallest number of observations for such a decision.
const LOOKS: u64 = 8;

/// The functions to which guards may lead.
pub(crate) struct Callees<'a> {
    program: &'a Program<'a>,
    /// Functions in redirected slots of virtual tables.
    in_tables: FxHashSet<Avma>,
    /// Whether a candidate, by its entry, reads status flags that its caller left.
    reads_flags: FxHashMap<Avma, bool>,
}

impl<'a> Callees<'a> {
    /// Prepares the choice for all calls of `chosen`.
    pub(crate) fn new(program: &'a Program<'a>, chosen: &[Candidate]) -> Self {
        let observed: FxHashSet<Avma> =
            chosen.iter().flat_map(|c| &c.targets).flat_map(|s| &s.callees).map(|s| s.0).collect();
        let reads = |c: &Candidate| {
            let cfg = &c.analysed.cfg;
            observed
                .contains(&cfg.entry)
                .then(|| (cfg.entry, Liveness::compute(cfg).live_in(BlockId(0)).flags & STATUS_FLAGS != 0))
        };
        Self {
            program,
            in_tables: program.vtables().iter().map(|v| v.function).collect(),
            reads_flags: chosen.iter().filter_map(reads).collect(),
        }
    }

    /// Returns the function that a call in the function at `caller` nearly always goes to, if a guard can
    /// expect it. With `all`, the function that was observed most often.
    pub(crate) fn usual(&self, caller: Avma, site: &SiteTargets, inst: &Inst, all: bool) -> Option<Avma> {
        let &(callee, most) = site.callees.first()?;
        let reads_flags = |at: &Avma| self.reads_flags.get(at).copied().unwrap_or(false);
        let observed = site.callees.iter().map(|s| s.0).filter(|&at| self.program.entered_at(at).is_some());
        let fits = emit::can_guard_pointer(inst)
            && (all || is_mostly(most, site))
            && self.program.entered_at(callee).is_some()
            && self.program.lasts_for(caller, callee)
            && !self.in_tables.contains(&callee)
            && !observed.take(MOST_CALLEES).any(|at| reads_flags(&at));
        fits.then_some(callee)
    }
}

/// Returns whether `most` is nearly all of the observations of a call.
fn is_mostly(most: u64, site: &SiteTargets) -> bool {
    let looks = site.callees.iter().fold(site.others.callees, |sum, s| sum.saturating_add(s.1));
    looks >= LOOKS && u128::from(most) * 1000 >= u128::from(looks) * u128::from(MOSTLY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::candidate::Others;

    #[test]
    fn nearly_all_observations_must_agree() {
        let site = |callees: &[u64], others| SiteTargets {
            inst: 0,
            callees: callees.iter().map(|&n| (Avma(n), n)).collect(),
            bases: Vec::new(),
            others: Others { callees: others, bases: 0 },
        };
        assert!(is_mostly(90, &site(&[90, 10], 0)));
        assert!(!is_mostly(90, &site(&[90, 10], 1)), "observations without a known callee count");
        assert!(!is_mostly(7, &site(&[7], 0)), "too few");
        assert!(is_mostly(8, &site(&[8], 0)));
    }
}
