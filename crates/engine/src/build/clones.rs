//! The functions of one generation: laid out to run, or instrumented to count.

use crate::build::round::Offsets;
use crate::plan::candidate::Measured;
use crate::plan::laid_out::{Instrumented, LaidOut, ToClone};
use code::Cfg;

/// The functions to clone in one generation.
#[derive(Clone, Copy, Debug)]
pub enum Clones<'a> {
    /// The clones run from now on.
    ToRun(&'a [LaidOut]),
    /// The clones count for a moment.
    ToCount(Counting<'a>),
}

/// The functions to clone for one round of counting.
#[derive(Clone, Copy, Debug)]
pub struct Counting<'a> {
    /// The functions.
    pub clones: &'a [Instrumented<'a>],
    /// Functions of earlier rounds: their direct calls lead to the clones, too.
    pub callers: &'a [Measured],
    /// The offsets of the counters.
    pub(crate) offsets: Offsets,
}

impl<'a> Clones<'a> {
    /// Returns the functions.
    pub fn all(self) -> impl Iterator<Item = ToClone<'a>> {
        let (run, count) = match self {
            Self::ToRun(all) => (all, &[][..]),
            Self::ToCount(round) => (&[][..], round.clones),
        };
        run.iter().map(ToClone::ToRun).chain(count.iter().map(ToClone::ToCount))
    }

    /// Returns the graphs of the functions whose direct calls are redirected.
    pub fn callers(self) -> impl Iterator<Item = &'a Cfg> {
        let before = match self {
            Self::ToRun(_) => &[][..],
            Self::ToCount(round) => round.callers,
        };
        self.all().map(ToClone::measured).chain(before).map(|c| &c.analysed.cfg)
    }
}
