//! Makes candidates from a profile, without sampling or counting.

use super::loaded::{Loaded, id_of, loaded};
use super::other_build::Adapted;
use super::sites;
use crate::analyse::program::{FuncId, Program};
use crate::base::parallel;
use crate::plan::candidate::{Candidate, Certainty, Counted, Measured};
use crate::plan::candidates::{self, Candidates};
use crate::{Error, OptimizeOptions};
use addr::Addr;
use code::Block;
use profile::{Counts, FunctionKey, FunctionProfile, Origin, Profile};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use tracee::Pid;

/// How a profile was used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileUse {
    /// Functions whose counts were used.
    pub functions: usize,
    /// Functions that have changed since the profile was taken, or that another version of whet reads
    /// differently.
    pub stale: usize,
    /// Functions that are now left alone for another reason.
    pub refused: usize,
    /// Functions of another build that were found again in this one, by their instructions.
    #[serde(default)]
    pub found_again: usize,
    /// Functions of modules of another build that were not found again, or of modules that are not loaded.
    pub foreign: usize,
    /// These modules, with the build id in the profile.
    pub foreign_modules: Vec<String>,
}

/// Returns the functions of an adapted profile that are unchanged in the process, with their counts. With
/// `only`, returns only the given ones.
///
/// # Errors
/// Returns [`Error::ProfileUnfit`] if there is none.
pub(crate) fn candidates(
    program: &Program<'_>,
    pid: Pid,
    adapted: &Adapted,
    options: &OptimizeOptions,
    only: Option<&FxHashSet<FuncId>>,
) -> Result<Candidates<Counted>, Error> {
    let mut tame = adapted.profile.clone();
    tame.tame();
    let mut found: Vec<(FuncId, FunctionKey, &FunctionProfile)> = each(program, &tame)
        .filter_map(|(key, f, id)| Some((id?, key, f)))
        .filter(|(id, _, _)| only.is_none_or(|o| o.contains(id)))
        .collect();
    found.sort_by_key(|&(id, key, _)| (id, key));
    let loaded = loaded(program.image());
    let mut out = Candidates::default();
    let functions: Vec<&[(FuncId, FunctionKey, &FunctionProfile)]> =
        found.chunk_by(|a, b| a.0 == b.0).collect();
    let analyse = |same: &&[(FuncId, FunctionKey, &FunctionProfile)]| {
        let &(id, _, _) = same.first()?;
        let analysed = program.analyse(id).map(|analysed| {
            let hash = profile::hash(&analysed.cfg);
            let &(_, _, f) = same.iter().find(|(_, key, _)| key.hash == hash)?;
            Some(with_profile(program, &loaded, Candidate { id, analysed, samples: f.samples }, f))
        });
        Some((id, same.iter().fold(0, |sum: u64, (_, _, f)| sum.saturating_add(f.samples)), analysed))
    };
    for some in functions.chunks(candidates::AT_ONCE) {
        options.interrupt.check()?;
        for (id, samples, analysed) in parallel::map(some, analyse).into_iter().flatten() {
            if options.max_functions.is_some_and(|max| out.chosen.len() >= max) {
                break;
            }
            match analysed {
                Ok(Some(c)) => {
                    out.samples.insert(id, c.samples);
                    out.chosen.push(c);
                }
                // Another version of whet divided it into other blocks.
                Ok(None) => {}
                Err(reason) => out.refused.push((id, samples, reason)),
            }
        }
    }
    if out.chosen.is_empty() {
        return Err(Error::ProfileUnfit { pid, why: why_unfit(program, adapted, &out) });
    }
    Ok(out)
}

/// Returns a candidate with all data that a profile has about it.
fn with_profile(program: &Program<'_>, loaded: &Loaded, c: Candidate, f: &FunctionProfile) -> Counted {
    let cfg = &c.analysed.cfg;
    let hits = |b: &Block| f.hits.get(&b.range.start.distance(cfg.entry)).copied().unwrap_or(0);
    let hits = cfg.blocks.iter().map(hits).collect();
    // For functions in which threads stayed, samples show what ran. Their counts have another unit and are
    // for other tools.
    let counts = if f.origin == Origin::Stayed { Counts::zero(cfg) } else { f.counts(cfg) };
    let certainty = if f.origin >= Origin::Stayed { Certainty::Counted } else { Certainty::Estimated };
    let targets = sites::of(program, loaded, &c, f);
    Counted { measured: Measured { candidate: c, counts, certainty, targets }, hits }
}

/// Returns every function of a profile, with the process's function at its place in the same build.
fn each<'a>(
    program: &'a Program<'_>,
    profile: &'a Profile,
) -> impl Iterator<Item = (FunctionKey, &'a FunctionProfile, Option<FuncId>)> {
    let loaded = loaded(program.image());
    profile.modules.iter().flat_map(move |(build_id, module)| {
        let image = loaded.get(build_id).map(|&id| program.image().module(id));
        module.functions.iter().map(move |(&key, f)| {
            let id = image.and_then(|m| {
                let entry = m.bias.avma(key.at);
                program.find(entry).filter(|&id| program.extent(id).entry == entry)
            });
            (key, f, id)
        })
    })
}

/// Counts how each function of a profile was used.
pub(crate) fn used<F: AsRef<Candidate>>(
    program: &Program<'_>,
    adapted: &Adapted,
    candidates: &Candidates<F>,
) -> ProfileUse {
    let Adapted { profile, found_again } = adapted;
    let chosen: FxHashSet<FuncId> = candidates.chosen.iter().map(|c| c.as_ref().id).collect();
    let refused: FxHashSet<FuncId> = candidates.refused.iter().map(|c| c.0).collect();
    let loaded = loaded(program.image());
    let mut out = ProfileUse { found_again: *found_again, ..ProfileUse::default() };
    for (build_id, module) in profile.modules.iter().filter(|(id, _)| !loaded.contains_key(id)) {
        out.foreign += module.functions.len();
        out.foreign_modules.push(format!("{} {build_id}", module.name));
    }
    for (_, _, id) in each(program, profile) {
        match id {
            Some(id) if chosen.contains(&id) => out.functions += 1,
            Some(id) if refused.contains(&id) => out.refused += 1,
            _ => out.stale += 1,
        }
    }
    out.stale -= out.foreign;
    out
}

/// Returns why a profile cannot be used for a process.
fn why_unfit(program: &Program<'_>, adapted: &Adapted, candidates: &Candidates<Counted>) -> String {
    let (used, functions) = (used(program, adapted, candidates), adapted.profile.functions());
    if used.foreign < functions {
        return format!(
            "of its {} functions {} are not what they were, {} are left alone, {} are of other builds",
            functions, used.stale, used.refused, used.foreign
        );
    }
    let main = program.image().main();
    let own = id_of(main);
    let mut why = format!(
        "it is of other builds: the program {} is build {}; the profile has",
        main.file_name().unwrap_or("?"),
        own.map_or("unknown".to_owned(), |id| id.to_string())
    );
    for (i, module) in used.foreign_modules.iter().enumerate() {
        let _ = write!(why, "{} {module}", if i == 0 { "" } else { "," });
    }
    why
}
