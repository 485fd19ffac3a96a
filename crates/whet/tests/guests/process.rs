//! Child processes with a time limit and their output in files.
//!
//! Files are used instead of pipes, because children of a child may hold a pipe open. A child that is given
//! up is ended by its own handle.

use crate::directives::End;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time between two looks at a child.
const LOOK: Duration = Duration::from_millis(4);

/// A child that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    pub(crate) end: End,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A running child.
pub(crate) struct Running {
    child: Child,
    name: String,
    limit: Instant,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Running {
    /// Starts a command whose output goes to files in `folder`.
    pub(crate) fn start(
        mut command: Command,
        folder: &Path,
        name: &str,
        limit: Duration,
    ) -> Result<Self, String> {
        let create = |path: &Path| File::create(path).map_err(|e| format!("{}: {e}", path.display()));
        let stdout = folder.join(format!("{name}.stdout"));
        let stderr = folder.join(format!("{name}.stderr"));
        command.stdin(Stdio::null()).stdout(create(&stdout)?).stderr(create(&stderr)?);
        let child = command.spawn().map_err(|e| format!("{command:?}: {e}"))?;
        Ok(Self { child, name: name.to_owned(), limit: Instant::now() + limit, stdout, stderr })
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has written a line on its standard error, or has ended.
    pub(crate) fn wait_for_line(&mut self, line: &str) -> Result<(), String> {
        while !text(&self.stderr).lines().any(|l| l == line) {
            if self.look()?.is_some() {
                return Ok(());
            }
            sleep(LOOK);
        }
        Ok(())
    }

    /// Lets it run on for a while, or until it ends.
    pub(crate) fn run_on(&mut self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        while Instant::now() < until && self.look()?.is_none() {
            sleep(LOOK);
        }
        Ok(())
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) -> Result<Ended, String> {
        loop {
            if let Some(end) = self.look()? {
                return Ok(Ended { end, stdout: text(&self.stdout), stderr: text(&self.stderr) });
            }
            sleep(LOOK);
        }
    }

    /// Returns how it ended, if it has ended. Returns an error when its time is over.
    fn look(&mut self) -> Result<Option<End>, String> {
        let status = self.child.try_wait().map_err(|e| format!("{}: {e}", self.name))?;
        if let Some(status) = status {
            let code = status.code().map(End::Exit);
            return code
                .or_else(|| status.signal().map(End::Signal))
                .map(Some)
                .ok_or_else(|| format!("{}: {status}", self.name));
        }
        if Instant::now() < self.limit {
            return Ok(None);
        }
        let (out, err) = (text(&self.stdout), text(&self.stderr));
        Err(format!("{} did not end in its time\nstdout: {out}\nstderr: {err}", self.name))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The file that whet leaves for profilers, which is to outlive the process.
        drop(std::fs::remove_file(format!("/tmp/perf-{}.map", self.pid())));
        // Of a child that has been waited for, this is an error and does nothing.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
