//! What is said of a target: its states, what is done to it, how that ends, what comes in.

use crate::proto::Wish;
use engine::{Fit, TargetState};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Where a target is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It runs its original code, and is looked at.
    Watching,
    /// Samples are taken.
    Profiling,
    /// Clones that count run.
    Counting,
    /// Clones are built and put in place.
    Optimizing,
    /// Clones run.
    Optimized,
    /// They were taken back.
    Undone,
    /// It is left alone.
    Refused,
    /// It has ended.
    Lost,
}

impl State {
    /// All of them.
    pub const ALL: [State; 8] = [
        State::Watching,
        State::Profiling,
        State::Counting,
        State::Optimizing,
        State::Optimized,
        State::Undone,
        State::Refused,
        State::Lost,
    ];

    /// The word in JSON and metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            State::Watching => "watching",
            State::Profiling => "profiling",
            State::Counting => "counting",
            State::Optimizing => "optimizing",
            State::Optimized => "optimized",
            State::Undone => "undone",
            State::Refused => "refused",
            State::Lost => "lost",
        }
    }
}

/// What a worker does to a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Rebuilds it.
    Optimize {
        /// From new samples, even where a profile is kept.
        fresh: bool,
    },
    /// Holds the layout against the load.
    Check,
    /// Compares work with and without.
    Judge,
    /// Takes the clones back.
    Undo,
    /// Puts them in place again.
    Redo,
    /// Brings it in order after a worker that died.
    Mend,
}

impl Job {
    /// Whether it takes one of the places of `at_once`: what helps a target is never kept waiting.
    #[must_use]
    pub fn takes_a_place(self) -> bool {
        matches!(self, Job::Optimize { .. } | Job::Judge)
    }
}

/// Who had a target's clones taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Somebody by hand: it is left alone until somebody puts them back by hand.
    User,
    /// The daemon, as they did harm.
    Harm,
    /// The kill-switch file: they are put back when it goes.
    Switch,
    /// A worker on its way; it is the daemon's to put them back.
    Whet,
    /// The daemon, after a worker died while it installed: a rebuild begins anew.
    Mended,
}

/// What a comparison with and without came to: work per user CPU second with clones, divided by that without.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The best estimate.
    pub factor: f64,
    /// The lower end of its 95% interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// Where the layout of a rebuild comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// It was made for the load of now.
    New,
    /// From a profile that was kept.
    Warm,
    /// An earlier rebuild's, which serves the load of now.
    Earlier,
    /// An earlier rebuild's, as there is no room for new clones.
    EarlierAsFull,
}

/// How a job ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Clones are in place.
    Optimized {
        /// The number of this rebuild.
        generation: u32,
        /// Share of the user samples in cloned functions.
        coverage: f64,
        /// Where its layout comes from.
        layout: Layout,
    },
    /// The layout was held against the load.
    Checked(Fit),
    /// Work was compared; `None` where that told nothing, for the reason given.
    Judged(Option<Verdict>, String),
    /// The target was brought to this state of its journal.
    Toggled(Option<TargetState>),
    /// The worker says why not.
    Failed {
        /// The stable name of the cause.
        code: String,
        /// The exit code that the command line has for it.
        exit: u8,
        /// In words.
        message: String,
    },
    /// The worker died, or was ended as it took too long.
    Crashed(String),
}

/// What comes in.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A look at it.
    Seen {
        /// User CPU time since the look before, percent of one CPU.
        cpu_percent: f64,
        /// How long it has been running.
        age: Duration,
    },
    /// What its journal says; `None` for none.
    Journal(Option<TargetState>),
    /// The worker has come to another part of its work.
    Stage(State),
    /// A job has ended.
    Ended(Outcome),
    /// Somebody undoes or redoes it by hand, right now.
    ByHand(Wish),
    /// It has ended, or become another program.
    Gone,
}

/// What a daemon that comes after this one must know, beside the journal.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Who took the clones back.
    pub undone_by: Option<By>,
    /// Why it is as it is.
    pub reason: String,
    /// Left alone for as long as it lives.
    pub refused: bool,
}
