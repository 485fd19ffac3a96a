//! The figures of one rebuild, for the notes in the target and for the report.

use crate::analyse::program::{FuncId, Program};
use crate::build::caches::Built;
use crate::plan::candidates::Candidates;
use crate::plan::laid_out::LaidOut;
use crate::plan::samples::Samples;
use crate::rebuild::report::{Figures, FunctionCounts, round};
use crate::records::dyno;
use crate::records::notes::{NotedFunction, Notes};
use crate::records::shares;
use crate::{OptimizeOptions, Target, UserTime};
use addr::AvmaRange;
use emit::Fragments;
use profile::BuildId;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// The user samples of this optimization, or of the profile that it uses.
pub(super) struct Totals {
    all: u64,
    /// Samples in the program itself.
    main: u64,
}

impl Totals {
    pub(super) fn new(program: &Program<'_>, samples: &Samples, options: &OptimizeOptions) -> Self {
        match &options.profile {
            Some(profile) => {
                let main = program.image().main().build_id.as_deref().and_then(BuildId::new);
                let known = main.and_then(|id| profile.modules.get(&id));
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

/// Returns the share of user time in each category, after the build that is installed in `now`.
fn user_time(
    program: &Program<'_>,
    candidates: &Candidates<LaidOut>,
    built: &Built,
    samples: &Samples,
    options: &OptimizeOptions,
    now: &Target,
) -> Option<UserTime> {
    let fates = shares::Fates::new(candidates, built);
    UserTime::of(&match &options.profile {
        Some(p) => shares::of_profile(candidates, &fates, p.samples, |f| program.module(f).refused),
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
    /// Computes the figures of a build. `now` is the target before its installation.
    pub(super) fn new(
        program: &Program<'_>,
        candidates: &Candidates<LaidOut>,
        built: &Built,
        totals: &Totals,
        samples: &Samples,
        options: &OptimizeOptions,
        now: &Target,
    ) -> Self {
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
            user_time: user_time(program, candidates, built, samples, options, now),
        }
    }

    /// Returns the notes for a later whet, without the profile.
    pub(super) fn notes(
        &self,
        program: &Program<'_>,
        c: &Candidates<LaidOut>,
        built: &Built,
        options: &OptimizeOptions,
    ) -> Notes {
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
