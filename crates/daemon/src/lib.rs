//! What a DBA installs, starts once and forgets: watches for processes on a list, keeps them optimized, takes harm back.
//!
//! You give a [`Config`]; it gives a process that follows each target's life ([`machine`]), answers on a socket ([`client`])
//! and leaves every target sound whenever it ends, however it ends.
//!
//! **One thread, no tracing.** The daemon only looks and decides. Whatever touches a target is done by a *worker*: whet's own program,
//! started for one job on one target ([`Order`]), with a deadline. So a crash of the worker takes neither the daemon nor other targets along;
//! the memory of an analysis (hundreds of megabytes for a large server) goes back to the system at once; no two threads of one
//! process wait for stops of different tracees, which the kernel reports to any thread that asks; and the daemon needs no defence of its own
//! against what engine, image or code might do with a hostile target. It costs a start of a process for each job, some milliseconds where
//! a job takes seconds. The worker is `/proc/self/exe`: an upgrade of the file on disk does not mix versions. Should the daemon be
//! killed, the kernel tells its workers (`PR_SET_PDEATHSIG`), which put their targets in order and end.
//!
//! **The truth is in the targets.** What the daemon keeps on disk ([`store`]) are profiles and reasons. Journals in the processes say
//! what is done to them; a new daemon finds and adopts them by those.
#![forbid(unsafe_code)]

mod answers;
pub mod client;
mod config;
mod jobs;
mod judge;
mod log;
pub mod machine;
mod metrics;
pub mod proto;
mod roster;
mod server;
mod signals;
mod states;
pub mod store;
mod supervisor;
mod units;
mod watch;
mod work;
mod worker;

pub use config::{CONFIG_FILE, CONFIG_VARIABLE, Config, ConfigError, Rule};
pub use log::{LogTo, begin as begin_log};
pub use supervisor::{DaemonError, run};
pub use units::{Bytes, Hours, Span};
pub use work::{Order, run as run_order};
pub use worker::COMMAND as WORKER_COMMAND;

/// Makes this process one of the background: of a session of its own, and in nobody's folder.
pub fn detach() {
    // It leads a session already where this does not work.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
}

/// A share as people read it.
fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}
