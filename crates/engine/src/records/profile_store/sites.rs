//! The targets of indirect calls, carried from one process to another.

use super::loaded::{Loaded, id_of};
use crate::analyse::program::Program;
use crate::plan::candidate::{Candidate, Measured, Others, SiteTargets};
use crate::plan::targets;
use addr::{Addr, Avma, AvmaRange};
use profile::{BuildId, FunctionProfile, Looks, Place, SiteProfile};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// The number of most frequent targets that are kept for each site; the others are only counted.
const MOST: usize = 8;

/// Records observations of a candidate's sites that remain valid after the process: entries of functions, and
/// tables that never change.
pub(super) fn take_down(program: &Program<'_>, c: &Measured) -> BTreeMap<i64, SiteProfile> {
    let own = id_of(program.module_image(c.id));
    let function = |at: Avma| program.entered_at(at).is_some();
    let table = |at: Avma| program.image().is_readonly_data(AvmaRange::with_len(at, 8));
    let mut sites = BTreeMap::new();
    for s in &c.targets {
        let Some(inst) = c.analysed.cfg.insts.get(s.inst.index()) else { continue };
        let site = SiteProfile {
            callees: looks(program, own.as_ref(), &s.callees, s.others.callees, &function),
            tables: looks(program, own.as_ref(), &s.bases, s.others.bases, &table),
        };
        if site != SiteProfile::default() {
            sites.insert(inst.at.distance(c.analysed.cfg.entry), site);
        }
    }
    sites
}

fn looks(
    program: &Program<'_>,
    own: Option<&BuildId>,
    seen: &[(Avma, u64)],
    others: u64,
    outlives: &dyn Fn(Avma) -> bool,
) -> Looks {
    let all = seen.iter().fold(others, |sum, s| sum.saturating_add(s.1));
    let place = |at: Avma| {
        let module = program.image().module_of(at)?;
        let id = id_of(module)?;
        Some(Place { module: Some(id).filter(|id| own != Some(id)), at: module.bias.svma(at) })
    };
    let kept = seen.iter().filter(|s| outlives(s.0)).filter_map(|&(at, n)| Some((place(at)?, n)));
    Looks { all, saw: kept.take(MOST).collect() }
}

/// Returns a profile's observations of a candidate's sites.
pub(super) fn of(
    program: &Program<'_>,
    loaded: &Loaded,
    c: &Candidate,
    f: &FunctionProfile,
) -> Vec<SiteTargets> {
    let cfg = &c.analysed.cfg;
    let avma = |p: &Place| {
        let module = p.module.as_ref().map_or(Some(c.id.module), |id| loaded.get(id).copied())?;
        Some(program.image().module(module).bias.avma(p.at))
    };
    let seen = |looks: &Looks| {
        let known: FxHashMap<Avma, u64> =
            looks.saw.iter().filter_map(|(place, &n)| Some((avma(place)?, n))).collect();
        let others = looks.all.saturating_sub(known.values().sum());
        (targets::ranked(known), others)
    };
    let insts = cfg.numbered_insts().filter(|_| !f.sites.is_empty());
    let of_inst = insts.filter_map(|(n, inst)| Some((n, f.sites.get(&inst.at.distance(cfg.entry))?)));
    of_inst
        .map(|(inst, site)| {
            let ((callees, other_callees), (bases, other_bases)) = (seen(&site.callees), seen(&site.tables));
            SiteTargets {
                inst,
                callees,
                bases,
                others: Others { callees: other_callees, bases: other_bases },
            }
        })
        .collect()
}
