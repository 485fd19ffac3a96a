//! The types of a target's life: states, jobs, their outcomes, and events.

use engine::{Failure, Fit, TargetState};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time since the daemon's start.
pub type Moment = Duration;

/// The state of a target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The original code runs, and the process is observed.
    Watching,
    /// A worker samples the target.
    Profiling,
    /// Clones that count are in force.
    Counting,
    /// Clones are built and installed.
    Optimizing,
    /// Clones are in force.
    Optimized,
    /// The clones were undone.
    Undone,
    /// The target is left alone.
    Refused,
    /// The process has ended, or has become another program.
    Lost,
}

impl State {
    /// All states.
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

    /// Returns the word for JSON and metrics.
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

/// A worker's job on a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Rebuilds the target.
    Optimize {
        /// Takes new samples, even if a profile is kept.
        fresh: bool,
    },
    /// Compares the layout with the load.
    Check,
    /// Compares work with clones and without.
    Judge,
    /// Undoes the clones.
    Undo,
    /// Puts the undone clones in force again.
    Redo,
    /// Recovers the operation that a worker's death has interrupted.
    Mend,
    /// Puts the parent's clones in force in the members of its family that lack them.
    Align,
}

impl Job {
    /// Returns whether the job brings all members of a family into the state of their parent.
    #[must_use]
    pub fn visits_members(self) -> bool {
        !matches!(self, Job::Check | Job::Judge)
    }

    /// Returns whether the job needs one of the `at_once` worker slots. Checks, undo, redo, recovery and
    /// alignment never wait for a slot.
    #[must_use]
    pub fn takes_a_place(self) -> bool {
        matches!(self, Job::Optimize { .. } | Job::Judge)
    }
}

/// The cause of an undo.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// An operator, by hand. The target is left alone until an operator redoes it.
    User,
    /// The daemon, because the clones did harm.
    Harm,
    /// The kill-switch file. The clones are put back when the file is gone.
    Switch,
    /// A worker in the course of its job. The daemon must put the clones back.
    Whet,
    /// The daemon, after a worker died while it installed. A rebuild begins anew.
    Mended,
}

/// A change that is about to be made by hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// Undo. The daemon leaves the target alone from now on.
    Undo,
    /// Redo. The daemon works on the target again from now on.
    Redo,
}

/// The result of a comparison: work per user CPU second with clones, divided by work per user CPU second
/// without.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The best estimate.
    pub factor: f64,
    /// The lower end of its 95% interval.
    pub low: f64,
    /// The upper end of its 95% interval.
    pub high: f64,
}

/// The origin of a rebuild's layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// It was made for the present load.
    New,
    /// It was made from a kept profile.
    Warm,
    /// It was made from a kept profile of another build: not all functions were found again.
    WarmFromOtherBuild,
    /// It is an earlier rebuild's layout, which serves the present load.
    Earlier,
    /// It is an earlier rebuild's layout, because there is no room for new clones.
    EarlierAsFull,
}

impl Layout {
    /// Returns whether it was made from a kept profile, without sampling and counting.
    #[must_use]
    pub fn is_warm(self) -> bool {
        matches!(self, Self::Warm | Self::WarmFromOtherBuild)
    }
}

/// The origin of a profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Kept by this host, of the target's build.
    Own,
    /// The fleet's, of the target's build.
    Fleet,
    /// Kept by this host, of another build of the program.
    OwnOfOtherBuild,
    /// The fleet's, of another build of the program.
    FleetOfOtherBuild,
}

impl Source {
    /// Returns the words for the log.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Own => "this host's profile of its build",
            Self::Fleet => "the fleet's profile of its build",
            Self::OwnOfOtherBuild => "this host's profile of another build",
            Self::FleetOfOtherBuild => "the fleet's profile of another build",
        }
    }
}

/// The end of a job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Clones are in force.
    Optimized {
        /// The number of the new generation.
        generation: u32,
        /// Share of the user samples in cloned functions.
        coverage: f64,
        /// The origin of its layout.
        layout: Layout,
    },
    /// The layout was compared with the load.
    Checked(Fit),
    /// Work was compared. The verdict is `None` if the comparison showed nothing, for the reason in the text.
    Judged(Option<Verdict>, String),
    /// The target was undone or redone, or an operation was recovered. Its journal has this state; `None`
    /// without a journal.
    Toggled(Option<TargetState>),
    /// The job failed, for a reason that the worker reports.
    Failed {
        /// The kind of the failure.
        failure: Failure,
        /// The stable name of the cause.
        code: String,
        /// The cause in words.
        message: String,
    },
    /// The worker died, or was ended because it took too long.
    Crashed(String),
    /// The daemon had requested the worker's end, and killed the worker because it did not end in time. This is
    /// no fault of the worker, but its operation must be recovered.
    Killed,
}

/// An event in a target's life.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The process was seen in a scan.
    Seen {
        /// User CPU time since the previous scan, percent of one CPU.
        cpu_percent: f64,
        /// How long it has been running.
        age: Duration,
    },
    /// The state in its journal; `None` if there is no journal.
    Journal(Option<TargetState>),
    /// The state in the journal of a member of the target's family that may differ from its parent; `None` if
    /// there is no journal.
    Member(Option<TargetState>),
    /// The worker has begun another stage of its work.
    Stage(State),
    /// A job has ended.
    Ended(Outcome),
    /// An operator undoes or redoes the target by hand, right now.
    ByHand(Wish),
    /// The process has ended, or has become another program.
    Gone,
}

/// The record of a target for a later daemon, beside the journal.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// The cause of the undo.
    pub undone_by: Option<By>,
    /// The reason for the state.
    pub reason: String,
    /// The target is left alone for as long as it lives.
    pub refused: bool,
    /// The stable name of the cause, if the target is left alone.
    #[serde(default)]
    pub code: String,
}
