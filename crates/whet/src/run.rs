//! `whet run -- CMD`: starts a command, and optimizes it while it runs.

use crate::daemon;
use crate::output::Output;
use engine::Pid;
use engine::{Error, ExitCode, OptimizeOptions, OptimizeReport};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// Starts the command, optimizes it after `delay` seconds, and ends with its exit code. A command that cannot
/// be optimized runs on unchanged; the reason is written to standard error.
pub fn run(
    command: &[OsString],
    delay: f64,
    report: Option<&Path>,
    options: &OptimizeOptions,
    out: &Output,
) -> Result<ExitCode, Error> {
    let Some((program, args)) = command.split_first() else { return Ok(ExitCode::Usage) };
    let mut child = Command::new(program)
        .args(args)
        .spawn()
        .map_err(|source| Error::Spawn { program: program.to_string_lossy().into_owned(), source })?;
    std::thread::sleep(Duration::from_secs_f64(delay));
    let pid = i32::try_from(child.id()).unwrap_or_default();
    match child.try_wait() {
        Ok(Some(status)) => {
            out.warn("the command ended before it could be optimized");
            finish(status)
        }
        Ok(None) => match optimize(pid, options, out) {
            Ok(None) => {}
            Ok(Some(answer)) => {
                if let Some(path) = report {
                    let text = serde_json::to_string(&answer).unwrap_or_default();
                    if let Err(e) = std::fs::write(path, text + "\n") {
                        out.warn(&format!("cannot write {}: {e}", path.display()));
                    }
                }
            }
            Err(e) => out.warn(&format!("not optimized: {e}")),
        },
        Err(e) => out.warn(&format!("cannot read the command's state: {e}")),
    }
    match child.wait() {
        Ok(status) => finish(status),
        Err(source) => Err(Error::Spawn { program: program.to_string_lossy().into_owned(), source }),
    }
}

/// Optimizes the process. Returns `None` if the kill-switch file is there.
fn optimize(pid: i32, options: &OptimizeOptions, out: &Output) -> Result<Option<OptimizeReport>, Error> {
    if let Some(off) = daemon::switched_off(out) {
        out.warn(&format!("not optimized: {off}"));
        return Ok(None);
    }
    engine::optimize(Pid(pid), options, &mut |_| {}).map(Some)
}

/// Ends as the command did: with its exit code, or with 128 plus the signal's number as a shell does.
fn finish(status: ExitStatus) -> ! {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    #[expect(clippy::exit, reason = "the command's own exit code, which is not one of ours")]
    std::process::exit(code)
}
