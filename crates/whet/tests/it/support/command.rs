//! Commands with a limit of time.

use super::program::scratch;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The most time any command here may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The result of a command.
#[derive(Debug)]
pub struct Answer {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Answer {
    /// Returns the one JSON object on standard output.
    pub fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "one line, one object: {self:?}");
        let value: Value = serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"));
        assert!(value.is_object(), "{self:?}");
        value
    }

    /// Returns itself, if the command ended with this exit code.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

/// Returns the command for whet with some arguments. Its output is not a terminal.
pub fn whet_command<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_whet"));
    command.args(args).env_remove("WHET_FAULT").env_remove("WHET_TAKEN");
    command
}

/// Runs whet to its end.
pub fn whet<S: AsRef<OsStr>>(args: &[S]) -> Answer {
    run(whet_command(args))
}

/// Runs a command to its end.
pub fn run(mut command: Command) -> Answer {
    // Files, not pipes: what the command starts may hold a pipe open.
    let (mut stdout, mut stderr) = (unnamed(), unnamed());
    command.stdin(Stdio::null());
    command.stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
    let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (code, signal) = finish(child);
    Answer { code, signal, stdout: text(&mut stdout), stderr: text(&mut stderr) }
}

/// Waits for a child. Returns its exit code, or the signal it died of.
pub fn finish(mut child: Child) -> (Option<i32>, Option<i32>) {
    let limit = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return (status.code(), status.signal());
        }
        if Instant::now() > limit {
            let _ = child.kill();
            let _ = child.wait();
            panic!("a command did not end in {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn unnamed() -> File {
    let path = scratch("output");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}
