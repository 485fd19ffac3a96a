//! Compares one live target's work and CPU time with clones and without: does the rebuild gain?
//!
//! The input is an optimized process under load and a counter of its work ([`Work`]). The output is ratios
//! with 95% intervals, and whether they can be trusted ([`Report`]). The target is left in the state in which
//! it was found.
//!
//! The method ([`paired()`]): two short windows make a pair, one with clones and one without, in random
//! order. Whatever drifts (the host's other guests, the caches, the clock rate) is nearly the same for both
//! windows. So the ratio within a pair is good even if single runs differ by half. The result is the median
//! of the ratios. The computations on windows are pure ([`evaluate()`], [`Estimate`]).
#![forbid(unsafe_code)]

mod classic;
mod cpu;
mod error;
mod estimate;
mod evaluate;
mod gauge;
mod guard;
mod hardware;
mod options;
mod paired;
mod report;
mod sample;
mod session;
mod steadiness;
mod window;
mod work;

pub use classic::classic;
pub use engine::{Interrupt, Pid, TargetState};
pub use error::{Error, WorkError};
pub use estimate::Estimate;
pub use evaluate::{Figures, LEAST_EFFECT, evaluate, verdict};
pub use guard::guard;
pub use options::{Options, Progress};
pub use paired::paired;
pub use report::{Comparison, EventSource, Events, Method, Report, Verdict, Warning, WorkName};
pub use session::check;
pub use window::{HardwareCounts, Side, Window};
pub use work::{Command, MySql, MySqlOptions, SystemCalls, Work};

/// The hidden command by which whet calls itself as the guard, to restore a target if the comparing process
/// is killed.
pub const GUARD_COMMAND: &str = "restore-after-death";
