//! Seeks another place if the target has mapped something at the chosen one meanwhile.

use crate::{Error, Target};
use addr::{Avma, AvmaRange};
use image::Mapping;
use splice::Limit;

/// How many places to try at most.
const PLACES: usize = 4;

/// The places that were taken so far.
#[derive(Debug, Default)]
pub(crate) struct Taken(Vec<AvmaRange>);

impl Taken {
    /// Opens the target again if a place was taken: the attempt may have made the anchor.
    ///
    /// # Errors
    /// Same as [`Target::again`].
    pub(crate) fn reopened(&self, target: &Target) -> Result<Option<Target>, Error> {
        if self.0.is_empty() { Ok(None) } else { target.again().map(Some) }
    }

    /// Returns the limits of the free address space: the present mappings, marking those that grow, and the
    /// places taken before.
    pub(crate) fn limits(&self, maps: &[Mapping]) -> Vec<(AvmaRange, Limit)> {
        let mut limits = limits(maps);
        limits.extend(self.0.iter().map(|range| (*range, Limit::Taken)));
        limits.sort_by_key(|(range, _)| range.start);
        limits
    }
}

/// Returns all mappings by address, marking those that grow.
pub(crate) fn limits(maps: &[Mapping]) -> Vec<(AvmaRange, Limit)> {
    let kind = |path: Option<&str>| match path {
        Some("[heap]") => Limit::Heap,
        Some("[stack]") => Limit::Stack,
        _ => Limit::Plain,
    };
    let mut limits: Vec<_> = maps.iter().map(|m| (m.range, kind(m.path.as_deref()))).collect();
    limits.sort_by_key(|(range, _)| range.start);
    limits
}

/// Returns the place of a new anchor, or of a further page of its list.
///
/// # Errors
/// [`Error::Splice`] if there is no room.
pub(crate) fn anchor(limits: &[(AvmaRange, Limit)], near: AvmaRange) -> Result<Avma, Error> {
    let request = splice::Request { limits, near: &[near], len: 2 << 20, low: false };
    Ok(splice::place(&request).map_err(splice::Error::from)?)
}

/// Calls `attempt` until the place that it chooses is not taken.
///
/// # Errors
/// Returns the errors of the last call.
pub(crate) fn seek<T>(mut attempt: impl FnMut(&Taken) -> Result<T, Error>) -> Result<T, Error> {
    let mut taken = Taken::default();
    for _ in 1..PLACES {
        match attempt(&taken) {
            Err(Error::Splice(splice::Error::PlaceTaken(range))) => taken.0.push(range),
            other => return other,
        }
    }
    attempt(&taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(n: usize) -> Error {
        Error::Splice(splice::Error::PlaceTaken(AvmaRange::with_len(Avma(n as u64), 1)))
    }

    #[test]
    fn each_attempt_knows_the_places_taken_before() {
        let mut seen = Vec::new();
        let outcome = seek(|t| {
            seen.push(t.limits(&[]));
            if seen.len() < 3 { Err(taken(seen.len())) } else { Ok(()) }
        });
        let at = |n| (AvmaRange::with_len(Avma(n), 1), Limit::Taken);
        assert!(outcome.is_ok());
        assert_eq!(seen, [vec![], vec![at(1)], vec![at(1), at(2)]]);
    }

    #[test]
    fn the_attempts_end() {
        let mut attempts = 0;
        let outcome: Result<(), Error> = seek(|_| {
            attempts += 1;
            Err(taken(attempts))
        });
        assert!(matches!(outcome, Err(Error::Splice(splice::Error::PlaceTaken(r))) if r.start == Avma(4)));
        let outcome: Result<(), Error> = seek(|_| Err(Error::Build(String::new())));
        assert!(matches!(outcome, Err(Error::Build(_))));
    }
}
