//! A daemon that is installed and started once. It watches for processes on a list, keeps them optimized, and
//! undoes rebuilds that do harm.
//!
//! The input is a [`Config`]. The daemon is a process that follows each target's life ([`states`]) and
//! answers calls on a socket ([`client`]). Whenever it ends, and however it ends, it leaves every target
//! sound.
//!
//! **One thread, no tracing.** The daemon only observes and decides. Whatever touches a target is done by a
//! *worker*: whet's own program, started for one job on one target ([`Order`]), with a deadline. The reasons:
//! - A worker's crash ends neither the daemon nor the work on other targets.
//! - The memory of an analysis (hundreds of megabytes for a large server) returns to the system at once.
//! - No two threads of one process wait for stops of different tracees, which the kernel reports to any
//!   waiting thread.
//! - The daemon needs no defence of its own against what a hostile target might cause in engine, image or
//!   code.
//!
//! The cost is the start of a process for each job: some milliseconds, while a job takes seconds. The worker
//! is `/proc/self/exe`, so an upgrade of the file on disk does not mix versions. If the daemon is killed, the
//! kernel sends a signal to its workers (`PR_SET_PDEATHSIG`). They bring their targets in order and end.
//!
//! **The truth is in the targets.** On disk the daemon keeps only profiles and reasons ([`store`]). The
//! journals in the processes record what was done to them. A new daemon finds its targets by these journals
//! and adopts them.
#![forbid(unsafe_code)]

mod answers;
pub mod client;
mod config;
mod drop_ins;
mod exchange;
mod exposition;
mod families;
mod jobs;
mod judge;
mod log;
mod machine;
mod metrics;
mod pace;
mod profiles;
pub mod proto;
mod rollout;
mod roster;
mod server;
mod signals;
pub mod states;
pub mod store;
mod supervisor;
mod target_metrics;
mod units;
mod warm;
mod watch;
mod work;
mod worker;

pub use config::{CONFIG_FILE, CONFIG_VARIABLE, Config, ConfigError, Rule};
pub use log::{LogTo, begin as begin_log};
pub use supervisor::{DaemonError, run};
pub use units::{Bytes, Hours, Span};
pub use work::{Order, run as run_order};
pub use worker::COMMAND as WORKER_COMMAND;

/// Makes this process a background process, with a session of its own and the root folder as its working
/// folder.
pub fn detach() {
    // If this fails, the process leads a session already.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
}

/// Formats a share as a percentage.
fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}
