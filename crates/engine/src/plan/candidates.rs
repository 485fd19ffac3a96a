//! Which functions are cloned.

use crate::analyse::program::{FuncId, Program};
use crate::base::parallel;
use crate::base::passes::Pass;
use crate::plan::candidate::Candidate;
use crate::plan::samples::Samples;
use crate::plan::shuffle::Rng;
use crate::{Error, OptimizeOptions};
use addr::{Avma, AvmaRange};
use code::Refusal;
use profile::Coverage;
use rustc_hash::{FxHashMap, FxHashSet};

/// This many functions are analysed before a check whether they are enough.
pub(crate) const AT_ONCE: usize = 1024;
/// The largest amount of code that a shuffle clones at once. Bytes. Cloning one byte takes some 200 bytes of
/// memory. Clones with their tables take three times the room of their originals.
const SHUFFLED: u64 = 16 << 20;

/// The result of choosing. The functions to be cloned are in one phase.
#[derive(Clone, Debug)]
pub struct Candidates<F> {
    /// The functions to be cloned, sorted by id.
    pub chosen: Vec<F>,
    /// Hot functions that are left alone, with their samples and the reason.
    pub refused: Vec<(FuncId, u64, Refusal)>,
    /// Samples by function, for all functions with any.
    pub samples: FxHashMap<FuncId, u64>,
    /// Functions that a shuffle left out.
    pub not_drawn: usize,
}

/// Counts samples by function.
#[must_use]
pub fn by_function(program: &Program<'_>, samples: &Samples) -> FxHashMap<FuncId, u64> {
    let mut ips = samples.ips.clone();
    ips.sort_unstable();
    let mut by: FxHashMap<FuncId, u64> = FxHashMap::default();
    for same in ips.chunk_by(|a, b| a == b) {
        if let Some(f) = same.first().and_then(|&ip| program.find(ip)) {
            *by.entry(f).or_default() += same.len() as u64;
        }
    }
    by
}

/// Returns the functions named on the command line: by symbol, or by a process address inside them.
///
/// # Errors
/// Returns the name for which there is no function.
pub fn named<'a>(program: &Program<'_>, names: &'a [String]) -> Result<FxHashSet<FuncId>, &'a str> {
    let mut found = FxHashSet::default();
    for name in names {
        let before = found.len();
        match name.strip_prefix("0x").and_then(|h| u64::from_str_radix(h, 16).ok()) {
            Some(at) => found.extend(program.find(Avma(at))),
            None => found.extend(program.functions().filter(|&f| program.name(f) == *name)),
        }
        if found.len() == before {
            return Err(name);
        }
    }
    Ok(found)
}

/// Returns whether the options allow the rebuild of a function.
pub(crate) fn may_be_rebuilt(program: &Program<'_>, f: FuncId, options: &OptimizeOptions) -> bool {
    options.passes.has(Pass::Libraries) || program.module_image(f).kind == image::ModuleKind::Main
}

/// Chooses functions by samples, or all functions when shuffling. With `only`, chooses among the given
/// functions.
///
/// # Errors
/// [`Error::Interrupted`].
pub fn choose(
    program: &Program<'_>,
    samples: &Samples,
    options: &OptimizeOptions,
    only: Option<&FxHashSet<FuncId>>,
) -> Result<Candidates<Candidate>, Error> {
    let by = by_function(program, samples);
    let mut wanted: Vec<FuncId> = match options.shuffle {
        Some(_) => program.functions().filter(|&f| program.module(f).refused.is_none()).collect(),
        None => hot(&by, led_to(program, samples)),
    };
    if let Some(only) = only {
        wanted.retain(|f| only.contains(f));
    }
    let all = wanted.len();
    if let Some(seed) = options.shuffle {
        draw(&mut wanted, seed, SHUFFLED, |&f| program.extent(f).parts.iter().map(AvmaRange::len).sum());
    }
    wanted.sort_unstable();
    let mut out = Candidates { not_drawn: all - wanted.len(), ..Candidates::default() };
    let enough =
        |out: &Candidates<Candidate>| options.max_functions.is_some_and(|max| out.chosen.len() >= max);
    for some in wanted.chunks(AT_ONCE) {
        options.interrupt.check()?;
        for (&id, analysed) in some.iter().zip(parallel::map(some, |&id| program.analyse(id))) {
            if enough(&out) {
                break;
            }
            let samples = by.get(&id).copied().unwrap_or(0);
            match analysed {
                Ok(analysed) => out.chosen.push(Candidate { id, analysed, samples }),
                Err(reason) => out.refused.push((id, samples, reason)),
            }
        }
    }
    out.samples = by;
    Ok(out)
}

impl<F> Default for Candidates<F> {
    fn default() -> Self {
        Self { chosen: Vec::new(), refused: Vec::new(), samples: FxHashMap::default(), not_drawn: 0 }
    }
}

impl<F> Candidates<F> {
    /// Brings all functions into another phase.
    pub(crate) fn map<G>(self, to: impl FnOnce(Vec<F>) -> Vec<G>) -> Candidates<G> {
        let Self { chosen, refused, samples, not_drawn } = self;
        Candidates { chosen: to(chosen), refused, samples, not_drawn }
    }
}

impl<F: AsRef<Candidate>> Candidates<F> {
    /// Refuses the functions for which `why` has a reason.
    pub(crate) fn refuse(&mut self, why: impl Fn(&Candidate) -> Option<Refusal>) {
        let chosen = std::mem::take(&mut self.chosen);
        for f in chosen {
            let c = f.as_ref();
            match why(c) {
                Some(reason) => self.refused.push((c.id, c.samples, reason)),
                None => self.chosen.push(f),
            }
        }
    }
}

/// Keeps items with at most `most` bytes in all; the seed draws them.
fn draw<T: Ord>(all: &mut Vec<T>, seed: u64, most: u64, size: impl Fn(&T) -> u64) {
    all.sort_unstable();
    if all.iter().map(&size).fold(0, u64::saturating_add) <= most {
        return;
    }
    Rng::new(seed).shuffle(all);
    let mut sum = 0u64;
    let fits = |f: &T| {
        sum = sum.saturating_add(size(f));
        sum <= most
    };
    let kept = all.iter().map(fits).take_while(|fits| *fits).count();
    all.truncate(kept);
}

/// Returns the functions with samples: the cold ones take little room and their clones make calls direct.
/// Adds the functions that are known to have run otherwise.
fn hot(by: &FxHashMap<FuncId, u64>, ran: FxHashSet<FuncId>) -> Vec<FuncId> {
    let mut ids: Vec<FuncId> = by.keys().copied().collect();
    ids.sort_unstable();
    let counts: Vec<u64> = ids.iter().map(|f| by[f]).collect();
    let coverage = Coverage { per_10k: 9_990, at_least: 1 };
    let sampled = profile::choose(&counts, coverage).into_iter().map(|i| ids[i]);
    sampled.chain(ran.into_iter().filter(|f| !by.contains_key(f))).collect()
}

/// Returns the functions that recorded branches led to.
fn led_to(program: &Program<'_>, samples: &Samples) -> FxHashSet<FuncId> {
    let firsts = samples.stacks.runs().into_iter().map(|(run, _)| samples.original(run.first));
    firsts.filter_map(|at| program.find(at)).filter(|&f| program.module(f).refused.is_none()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_respects_its_limit_and_depends_on_the_seed() {
        let drawn = |seed, most| {
            let mut all: Vec<u64> = (1..=100).collect();
            draw(&mut all, seed, most, |n| *n);
            all.sort_unstable();
            all
        };
        assert_eq!(drawn(1, 5050), (1..=100).collect::<Vec<_>>());
        let some = drawn(1, 1000);
        assert!((900..=1000).contains(&some.iter().sum::<u64>()), "{some:?}");
        assert_eq!((some == drawn(1, 1000), some == drawn(2, 1000)), (true, false));
    }
}
