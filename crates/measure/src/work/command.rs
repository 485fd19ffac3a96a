//! Work that a command counts.

use super::Work;
use crate::WorkError;
use engine::ExitCode;
use std::io::Read;
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

/// The longest time that the command may take to print the number.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of its output that are read. Any number is shorter.
const LONGEST: u64 = 4096;

/// Work as a shell command counts it. The command prints any number that grows with the target's work.
#[derive(Clone, Debug)]
pub struct Command {
    line: String,
}

impl Command {
    /// Creates it from a line for `sh -c`. The line is run with whet's rights, twice for each window.
    #[must_use]
    pub fn new(line: &str) -> Self {
        Self { line: line.to_owned() }
    }

    fn error(&self, what: &str) -> WorkError {
        WorkError {
            message: format!("{}: {what}", self.line),
            next: "it must print one number, and nothing else, on standard output within 10 seconds"
                .to_owned(),
            exit: ExitCode::Usage,
        }
    }

    fn printed(&self, child: &mut Child) -> Result<String, WorkError> {
        let limit = Instant::now() + PATIENCE;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() > limit => return Err(self.error("it does not come to an end")),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => return Err(self.error(&e.to_string())),
            }
        };
        if !status.success() {
            return Err(self.error(&status.to_string()));
        }
        let mut text = Vec::new();
        match child.stdout.take().map(|out| out.take(LONGEST).read_to_end(&mut text)) {
            Some(Err(e)) => Err(self.error(&e.to_string())),
            _ => Ok(String::from_utf8_lossy(&text).trim().to_owned()),
        }
    }
}

impl Work for Command {
    fn what(&self) -> String {
        format!("what `{}` prints", self.line)
    }

    fn kind(&self) -> &'static str {
        "command"
    }

    fn read(&mut self) -> Result<f64, WorkError> {
        let mut child = Process::new("/bin/sh")
            .args(["-c", &self.line])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| self.error(&e.to_string()))?;
        let printed = self.printed(&mut child);
        // A command that still runs is ended; for one that has ended, this has no effect.
        let _ = child.kill();
        let _ = child.wait();
        let text = printed?;
        let number = text.parse().ok().filter(|n: &f64| n.is_finite());
        number.ok_or_else(|| self.error(&format!("it prints {text:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_number_is_accepted() {
        let read = |line: &str| Command::new(line).read().map_err(|e| e.message);
        assert_eq!(read("echo 12"), Ok(12.0));
        assert_eq!(read("printf ' 1.5e3 \n\n'"), Ok(1500.0));
        assert_eq!(read("echo"), Err("echo: it prints \"\"".to_owned()));
        assert!(read("echo 1 2").unwrap_err().contains("it prints \"1 2\""));
        assert!(read("echo NaN").unwrap_err().contains("it prints"));
        assert!(read("echo 1; exit 3").unwrap_err().contains("exit status: 3"));
        assert!(read("kill -9 $$").unwrap_err().contains("signal: 9"));
    }
}
