//! The figures of one rebuild, for the notes in the target and for the report.

use crate::analyse::program::{FuncId, Program};
use crate::build::caches::Built;
use crate::plan::candidates::Candidates;
use crate::plan::laid_out::LaidOut;
use crate::plan::samples::Samples;
use crate::rebuild::report::{Figures, FunctionCounts, round};
use crate::records::dyno;
use crate::records::notes::{NotedFunction, Notes};
use crate::records::profile_store::id_of;
use crate::records::shares;
use crate::{OptimizeOptions, Target, UserTime};
use addr::AvmaRange;
use emit::Fragments;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// The facts from which the figures of a build follow.
pub(super) struct Basis<'a, 'm> {
    pub(super) program: &'a Program<'m>,
    pub(super) laid_out: &'a Candidates<LaidOut>,
    pub(super) samples: &'a Samples,
    pub(super) options: &'a OptimizeOptions,
    /// The target before the installation.
    pub(super) now: &'a Target,
}

/// The user samples of this optimization, or of the profile that it uses.
struct Totals {
    all: u64,
    /// Samples in the program itself.
    main: u64,
}

impl Totals {
    fn new(program: &Program<'_>, samples: &Samples, options: &OptimizeOptions) -> Self {
        match &options.profile {
            Some(profile) => {
                let known = id_of(program.image().main()).and_then(|id| profile.modules.get(&id));
                // A profile has only the program's rebuilt functions.
                let main =
                    known.map_or(0, |m| m.functions.values().map(|f| f.samples).fold(0, u64::saturating_add));
                Self { all: profile.samples, main }
            }
            None => Self {
                all: samples.ips.len() as u64,
                main: samples.ips.iter().filter(|ip| program.in_main(**ip)).count() as u64,
            },
        }
    }
}

/// Returns the share of user time in each category, after the build.
fn user_time(basis: &Basis<'_, '_>, built: &Built) -> Option<UserTime> {
    let &Basis { program, laid_out, samples, options, now } = basis;
    let fates = shares::Fates::new(laid_out, built);
    UserTime::of(&match &options.profile {
        Some(p) => shares::of_profile(laid_out, &fates, p.samples, |f| program.module(f).refused),
        None => shares::of_samples(program, &fates, &samples.ips, &own_code(now), &now.maps),
    })
}

/// Returns the address ranges of whet's code in a target.
fn own_code(target: &Target) -> Vec<AvmaRange> {
    let Some(installed) = &target.installed else { return Vec::new() };
    let anchor = AvmaRange::new(installed.anchor.routine(), installed.anchor.at);
    installed.caches.iter().map(|c| c.header.text).chain([anchor]).collect()
}

impl Figures {
    /// Computes the figures of a build.
    pub(super) fn new(basis: &Basis<'_, '_>, built: &Built) -> Self {
        let &Basis { program, laid_out: candidates, samples, options, .. } = basis;
        let totals = Totals::new(program, samples, options);
        let cloned: FxHashSet<FuncId> = built.cloned.iter().map(|(f, _)| *f).collect();
        let main = |f: &FuncId| program.module_image(*f).kind == image::ModuleKind::Main;
        let sum = |keep: &dyn Fn(&FuncId) -> bool| -> u64 {
            candidates.samples.iter().filter(|(f, _)| keep(f)).map(|(_, n)| n).sum()
        };
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { round(part as f64 / whole as f64) };
        let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
        let reasons = candidates.refused.iter().map(|r| r.2).chain(built.reasons().map(|r| r.1));
        for reason in reasons {
            *refusals.entry(reason.code().to_owned()).or_default() += 1;
        }
        let functions = FunctionCounts {
            hot: candidates.chosen.len() + candidates.refused.len(),
            cloned: built.cloned.len(),
            refused: candidates.refused.len() + built.refused.len(),
            last: built.cloned.iter().map(|(f, _)| *f).max().map(|f| program.name(f)),
        };
        Self {
            coverage: share(sum(&|f| cloned.contains(f)), totals.all),
            coverage_main: share(sum(&|f| cloned.contains(f) && main(f)), totals.main),
            refusals,
            functions,
            dyno: dyno::of_caches(program, &candidates.chosen, &built.caches),
            user_time: user_time(basis, built),
        }
    }

    /// Returns the notes for a later whet, without the profile.
    pub(super) fn notes(&self, basis: &Basis<'_, '_>, built: &Built) -> Notes {
        let &Basis { program, laid_out: c, options, .. } = basis;
        let clones: FxHashMap<FuncId, &Fragments> = built.cloned.iter().map(|(f, at)| (*f, at)).collect();
        let fragment = |f: &FuncId, n| {
            let range = clones.get(f).and_then(|fragments| fragments.ranges().nth(n))?;
            Some((range.start.0, range.len()))
        };
        let mut reasons: FxHashMap<FuncId, &str> = built.reasons().map(|(f, r)| (f, r.code())).collect();
        reasons.extend(c.refused.iter().map(|(f, _, r)| (*f, r.code())));
        let wanted = c.chosen.iter().map(|x| (x.id, x.samples)).chain(c.refused.iter().map(|x| (x.0, x.1)));
        let functions = wanted
            .map(|(f, samples)| NotedFunction {
                name: program.name(f),
                at: program.extent(f).entry.0,
                samples,
                clone: fragment(&f, 0),
                warm: fragment(&f, 1),
                reason: reasons.get(&f).map(|&r| r.to_owned()),
            })
            .collect();
        Notes {
            shuffle: options.shuffle,
            without: options.left_out(),
            samples: c.samples.values().sum(),
            coverage: self.coverage,
            coverage_main: self.coverage_main,
            user_time: self.user_time.clone(),
            refusals: self.refusals.clone(),
            functions,
            dyno: self.dyno,
            ..Notes::default()
        }
    }
}
