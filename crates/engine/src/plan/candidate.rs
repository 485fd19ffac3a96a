//! A function to be cloned, with its execution counts.
//!
//! A function to be cloned goes through phases, each a type that holds the phase before it: [`Candidate`],
//! [`Measured`], [`Counted`], and the phases in [`super::laid_out`]. Code that needs a phase takes its type.
//! So no layout is made without counts, and no clone is built without a layout. A later phase can be read as
//! any phase before it ([`Deref`]).

use crate::analyse::program::{Analysed, FuncId};
use addr::Avma;
use code::InstId;
use profile::Counts;
use std::ops::Deref;

/// A function that was chosen, and its analysed code.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Identifies the function.
    pub id: FuncId,
    /// Its analysed code.
    pub analysed: Analysed,
    /// Samples in it.
    pub samples: u64,
}

/// A candidate with the counts that are known so far. Counting replaces them by better ones.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The function.
    pub candidate: Candidate,
    /// How often its blocks and edges ran, up to a factor common to all functions.
    pub counts: Counts,
    /// The origin of the counts.
    pub certainty: Certainty,
    /// Observed targets of its indirect calls and jumps.
    pub targets: Vec<SiteTargets>,
}

/// The origin of counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Certainty {
    /// They are inferred from samples or from the CPU's records of branches, or nothing is known.
    Estimated,
    /// Counters counted them.
    Counted,
    /// Counters determined all of them without contradiction, and all of the function ran in its clone.
    Exact,
}

/// A candidate with the counts by which it is laid out. These are the counts that a profile keeps, so a warm
/// start from the profile makes the same clone.
#[derive(Debug)]
pub struct Counted {
    /// The function, and its counts.
    pub measured: Measured,
    /// Samples in each of its blocks; empty without samples.
    pub hits: Vec<u64>,
}

/// The targets of an indirect call or jump.
#[derive(Clone, Debug)]
pub struct SiteTargets {
    /// The call or jump.
    pub inst: InstId,
    /// The destinations with the number of observations, the most frequent first. Originals, never clones.
    pub callees: Vec<(Avma, u64)>,
    /// If its address comes from one register, the register's values; in the same form.
    pub bases: Vec<(Avma, u64)>,
    /// How many observations of both are not listed.
    pub others: Others,
}

/// Observations without a known value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Others {
    /// Destinations.
    pub callees: u64,
    /// Values of registers.
    pub bases: u64,
}

impl SiteTargets {
    /// Returns the destinations, each with its share of `count` executions, in whole thousandths.
    pub fn parts(&self, count: u64) -> impl Iterator<Item = (Avma, u64)> {
        let all: u128 =
            self.callees.iter().map(|s| u128::from(s.1)).sum::<u128>() + u128::from(self.others.callees);
        self.callees.iter().map(move |&(to, n)| {
            let share = (u128::from(n) * 1000).checked_div(all).unwrap_or(0);
            (to, u64::try_from(u128::from(count) * share / 1000).unwrap_or(u64::MAX))
        })
    }
}

impl Measured {
    /// Creates a function without any counts.
    #[must_use]
    pub fn unknown(candidate: Candidate) -> Self {
        let certainty = Certainty::Estimated;
        Self { candidate, counts: Counts::default(), certainty, targets: Vec::new() }
    }

    /// Returns whether counters counted, now or when the profile was taken.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.certainty >= Certainty::Counted
    }
}

impl AsRef<Candidate> for Candidate {
    fn as_ref(&self) -> &Candidate {
        self
    }
}

impl AsRef<Candidate> for Counted {
    fn as_ref(&self) -> &Candidate {
        &self.measured.candidate
    }
}

impl Deref for Measured {
    type Target = Candidate;

    fn deref(&self) -> &Candidate {
        &self.candidate
    }
}

impl Deref for Counted {
    type Target = Measured;

    fn deref(&self) -> &Measured {
        &self.measured
    }
}
