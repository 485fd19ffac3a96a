//! Chooses the source of the counts by which clones are laid out, and counts. Only this module decides.

use crate::build::installer::Installer;
use crate::count::counting::ToCount;
use crate::count::member;
use crate::count::prepare::{Found, Prepared};
use crate::count::rounds::CountingReport;
use crate::family::kin::Kin;
use crate::plan::candidate::Counted;
use crate::plan::candidates::Candidates;
use crate::plan::estimate::{self, StacksReport};
use crate::plan::samples::Samples;
use crate::records::profile_store;
use crate::{Error, OptimizeOptions, Progress};
use std::time::Duration;

/// The source of counts, the best first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountSource {
    /// A file that an earlier run wrote.
    Profile,
    /// The CPU's records of taken branches: measured edges, at no cost.
    BranchStacks,
    /// Counting clones, with the time of a round: exact edges, while the target briefly runs slower.
    Counters(Duration),
    /// None: the layout is random, and nothing is counted.
    Chance,
    /// Samples of program counters: edges are inferred.
    Samples,
}

impl CountSource {
    /// Returns the best available source.
    #[must_use]
    pub fn decide(options: &OptimizeOptions, samples: &Samples) -> Self {
        match *options {
            _ if options.profile.is_some() => Self::Profile,
            _ if !samples.stacks.is_empty() => Self::BranchStacks,
            OptimizeOptions { counting: Some(time), .. } => Self::Counters(time),
            OptimizeOptions { shuffle: Some(_), .. } => Self::Chance,
            _ => Self::Samples,
        }
    }

    /// Returns the stable name of a profile's source.
    #[must_use]
    pub fn name(self, samples: &Samples) -> &'static str {
        match (self, samples.source) {
            (Self::Profile, _) => "profile",
            (Self::BranchStacks, _) => "branch-stacks",
            (_, Some(name)) => name,
            (_, None) => "none",
        }
    }
}

/// The functions of a rebuild with their counts, and where the counts come from.
pub(crate) struct Counts {
    /// The functions.
    pub(crate) candidates: Candidates<Counted>,
    /// The source of the counts.
    pub(crate) source: CountSource,
    /// The result of counting, if edges were counted.
    pub(crate) counting: Option<CountingReport>,
    /// What branch stacks contributed, if they were used.
    pub(crate) stacks: Option<StacksReport>,
}

/// Counts the functions of a rebuild by the best available source.
///
/// # Errors
/// Returns the errors of [`member::count`].
pub(crate) fn count(
    installer: &Installer<'_, '_>,
    kin: &Kin,
    Prepared { found, samples }: Prepared<'_>,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Counts, Error> {
    let source = CountSource::decide(options, samples);
    let (mut counting, mut stacks) = (None, None);
    let measured = match (found, source) {
        (Found::Profiled(candidates, _), _) => return Ok(Counts { candidates, source, counting, stacks }),
        (Found::Sampled(chosen), CountSource::BranchStacks) => {
            let (measured, report) = estimate::by_stacks(chosen, samples);
            stacks = Some(report);
            measured
        }
        (Found::Sampled(chosen), CountSource::Counters(time)) => {
            let candidates = estimate::first(chosen, samples, options.shuffle);
            let functions = ToCount { candidates, time, options };
            let (measured, report) = member::count(installer, kin, functions, progress)?;
            counting = Some(report);
            measured
        }
        (Found::Sampled(chosen), _) => estimate::first(chosen, samples, options.shuffle),
    };
    let candidates = match options.shuffle {
        Some(_) => estimate::counted(measured, samples, |c| c),
        None => profile_store::counted(measured, samples),
    };
    Ok(Counts { candidates, source, counting, stacks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::Avma;
    use profile::{Profile, Run};
    use std::sync::Arc;

    #[test]
    fn the_best_available_source_is_chosen() {
        let plain = OptimizeOptions::default();
        let counting = OptimizeOptions { counting: Some(Duration::from_secs(1)), ..plain.clone() };
        let shuffle = OptimizeOptions { shuffle: Some(1), ..plain.clone() };
        let profile = OptimizeOptions { profile: Some(Arc::new(Profile::default())), ..counting.clone() };
        let by_clock = Samples { source: Some("cpu-clock"), ..Samples::default() };
        let mut stacks = Samples { source: Some("cycles"), ..Samples::default() };
        let of = |options: &OptimizeOptions, samples: &Samples| {
            let source = CountSource::decide(options, samples);
            (source, source.name(samples))
        };
        assert_eq!(of(&plain, &by_clock), (CountSource::Samples, "cpu-clock"));
        assert_eq!(of(&counting, &by_clock), (CountSource::Counters(Duration::from_secs(1)), "cpu-clock"));
        // A sampler that delivered no stack counts as one without stacks.
        assert_eq!(of(&counting, &stacks).1, "cycles");
        stacks.stacks.add_run(Run { first: Avma(1), last: Avma(2) }, 1);
        assert_eq!(of(&counting, &stacks), (CountSource::BranchStacks, "branch-stacks"));
        assert_eq!(of(&plain, &stacks), (CountSource::BranchStacks, "branch-stacks"));
        assert_eq!(of(&profile, &Samples::default()), (CountSource::Profile, "profile"));
        assert_eq!(of(&shuffle, &Samples::default()), (CountSource::Chance, "none"));
    }
}
