//! whet as a program, run on programs that are built and started here.
#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    reason = "each test uses its own part, and a test may fail"
)]

mod command;
mod guest;
mod open;
mod program;
mod text;

pub use command::{Answer, finish, run, whet, whet_command};
pub use guest::{Guest, pid_of};
pub use open::OpenFolder;
pub use program::{build, build_with, copy, have, scratch};
pub use text::{changed_text, stray_code, tracers};

use std::time::{Duration, Instant};

/// Returns whether the long forms are wanted.
pub fn stress() -> bool {
    std::env::var_os("WHET_STRESS").is_some()
}

/// Writes why something was not tested.
pub fn skip(what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}

/// Waits until a condition holds. On a busy machine this takes its time.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
