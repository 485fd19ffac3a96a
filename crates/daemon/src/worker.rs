//! A worker as the daemon sees it: a child process with a deadline. Its output is not trusted.

use crate::states::{Outcome, State};
use crate::work::{Line, Order, failed};
use engine::Tally;
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The hidden command by which the program calls itself as a worker.
pub const COMMAND: &str = "daemon-work";
/// The most bytes of a line of output, and of messages of errors, that are kept.
const MOST: usize = 64 << 10;
/// The most warnings of a worker in the log, from one call to the next.
const MOST_WARNINGS: usize = 100;
/// The time from a request to end until the worker is killed. It may have to wait for threads that cannot be
/// stopped.
const GRACE: Duration = Duration::from_secs(30);

/// A running worker. If dropped, it is killed; its target keeps working, and its operation is recovered
/// later.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    stdout: ChildStdout,
    stderr: ChildStderr,
    stdout_bytes: Vec<u8>,
    stderr_bytes: Vec<u8>,
    deadline: Instant,
    asked_to_end: bool,
    too_long: bool,
    outcome: Option<Outcome>,
    /// Its order.
    pub order: Order,
}

/// The output of a worker since the last call.
#[derive(Debug, Default)]
pub struct Output {
    /// The last stage that it reported.
    pub stage: Option<State>,
    /// Warnings for the log.
    pub warnings: Vec<String>,
    /// The stops of its target, if it has reported them.
    pub stops: Tally,
    /// The outcome, if the worker has ended.
    pub outcome: Option<Outcome>,
}

impl Output {
    /// Adds a warning, unless there are too many.
    fn warn(&mut self, text: String) {
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(text);
        }
    }
}

impl Worker {
    /// Starts a worker.
    ///
    /// # Errors
    /// The system's error: no memory, no more processes.
    pub fn start(program: &Path, order: Order, limit: Duration) -> io::Result<Self> {
        let text = serde_json::to_string(&order)?;
        let mut child = Command::new(program)
            .arg(COMMAND)
            .arg(text)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Only the daemon talks to the service manager.
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID")
            .spawn()?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        ioctl_fionbio(&stdout, true)?;
        ioctl_fionbio(&stderr, true)?;
        Ok(Self {
            child,
            stdout,
            stderr,
            stdout_bytes: Vec::new(),
            stderr_bytes: Vec::new(),
            deadline: Instant::now() + limit,
            asked_to_end: false,
            too_long: false,
            outcome: None,
            order,
        })
    }

    /// Returns the descriptor that is readable when the worker has written something.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stdout.as_fd()
    }

    /// Returns the moment at which the worker must be served again.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Requests that the worker restore its target and end.
    pub fn interrupt(&mut self) {
        self.interrupt_within(GRACE);
    }

    /// Works like [`Worker::interrupt`], but sets the time until the worker is killed. A further call can
    /// only shorten this time.
    pub fn interrupt_within(&mut self, grace: Duration) {
        let until = Instant::now() + grace;
        if self.asked_to_end {
            self.deadline = self.deadline.min(until);
        } else {
            self.asked_to_end = true;
            self.deadline = until;
            self.signal(Signal::TERM);
        }
    }

    fn signal(&self, signal: Signal) {
        // The child was not waited for yet, so the id still belongs to it.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Takes the whole lines of the output so far.
    fn take_lines(&mut self, output: &mut Output) {
        while let Some(end) = self.stdout_bytes.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = self.stdout_bytes.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(Line::Stage(stage)) => output.stage = Some(stage),
                Ok(Line::Warning(text)) => output.warn(text),
                Ok(Line::Stops { count, longest }) => output.stops = Tally { count, longest },
                Ok(Line::Outcome(outcome)) => self.outcome = Some(outcome),
                Err(_) => output.warn("the output of a worker cannot be parsed".to_owned()),
            }
        }
    }

    /// Reads the worker's output, and acts if its deadline has passed.
    pub fn poll(&mut self, now: Instant) -> Output {
        let ended = self.child.try_wait().ok().flatten();
        let mut output = Output::default();
        let mut part = [0; 4096];
        while let Ok(n @ 1..) = self.stdout.read(&mut part) {
            keep(&part[..n], &mut self.stdout_bytes);
            self.take_lines(&mut output);
        }
        while let Ok(n @ 1..) = self.stderr.read(&mut part) {
            keep(&part[..n], &mut self.stderr_bytes);
        }
        if let Some(status) = ended {
            output.outcome = Some(self.outcome.take().unwrap_or_else(|| {
                match status.signal().and_then(Signal::from_named_raw) {
                    // The signal came before the worker caught signals, and so before it had begun anything.
                    Some(Signal::TERM) if self.asked_to_end && !self.too_long => {
                        return failed(&engine::Error::Interrupted {
                            signal: Signal::TERM.as_raw().cast_unsigned() as usize,
                        });
                    }
                    Some(Signal::KILL) if self.asked_to_end && !self.too_long => return Outcome::Killed,
                    _ => {}
                }
                let errors = String::from_utf8_lossy(&self.stderr_bytes);
                let last = errors.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("it printed nothing");
                let how = if self.too_long { "it took too long".to_owned() } else { status.to_string() };
                Outcome::Crashed(format!("its worker ended: {how}; {last}"))
            }));
        } else if now >= self.deadline {
            if self.asked_to_end {
                self.signal(Signal::KILL);
                self.deadline = now + GRACE;
            } else {
                self.too_long = true;
                self.interrupt();
            }
        }
        output
    }
}

/// Keeps bytes of output, up to [`MOST`].
fn keep(part: &[u8], to: &mut Vec<u8>) {
    let room = MOST.saturating_sub(to.len());
    to.extend_from_slice(&part[..part.len().min(room)]);
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::Job;
    use engine::Failure;
    use std::os::unix::fs::PermissionsExt;

    fn order() -> Order {
        Order {
            pid: 1,
            start: 1,
            job: Job::Check,
            family: false,
            daemon: 1,
            sampling: Duration::ZERO,
            counting: Duration::ZERO,
            memory_cap: 0,
            code_cache: engine::CodeCache::default(),
            judging: Duration::ZERO,
            profile: None,
            warm: None,
            bad_layout: false,
        }
    }

    fn to_the_end(script: &str, limit: Duration) -> (Vec<String>, Outcome) {
        begun(script, limit, |_| {})
    }

    fn begun(script: &str, limit: Duration, then: fn(&mut Worker)) -> (Vec<String>, Outcome) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("worker");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        // Another test's child may hold the file open for writing for a moment.
        let mut worker = loop {
            match Worker::start(&program, order(), limit) {
                Err(e) if e.kind() == io::ErrorKind::ExecutableFileBusy => {}
                other => break other.unwrap(),
            }
        };
        then(&mut worker);
        let mut warnings = Vec::new();
        loop {
            let output = worker.poll(Instant::now());
            warnings.extend(output.warnings);
            if let Some(outcome) = output.outcome {
                return (warnings, outcome);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn output_and_ends_of_workers_become_outcomes() {
        let (warnings, outcome) = to_the_end(r#"echo junk; echo '{"outcome":{"toggled":"undone"}}'"#, LONG);
        assert_eq!(warnings.len(), 1);
        assert_eq!(outcome, Outcome::Toggled(Some(engine::TargetState::Undone)));
        let (_, outcome) = to_the_end("echo 'thread main panicked' >&2; exit 101", LONG);
        assert!(
            matches!(&outcome, Outcome::Crashed(why) if why.contains("panicked") && why.contains("101")),
            "{outcome:?}"
        );
        // More lines than are kept as bytes: the last one counts.
        let many = r#"i=0; while [ $i -lt 2000 ]; do echo '{"warning":"0123456789012345678901234567890123456789"}'; i=$((i+1)); done
            echo '{"outcome":{"toggled":"undone"}}'"#;
        let (warnings, outcome) = to_the_end(&format!("({many}) > $0.all; cat $0.all"), LONG);
        assert_eq!(outcome, Outcome::Toggled(Some(engine::TargetState::Undone)), "{}", warnings.len());
        // Endless output without a line's end.
        let (_, outcome) = to_the_end("head -c 300000 /dev/zero; kill -9 $$", LONG);
        assert!(matches!(&outcome, Outcome::Crashed(why) if why.contains("SIGKILL")), "{outcome:?}");
        // A worker that gets the request before it catches signals has begun nothing.
        let (_, outcome) = begun("exec sleep 100", LONG, Worker::interrupt);
        assert!(matches!(&outcome, Outcome::Failed { failure: Failure::Interrupted, .. }), "{outcome:?}");
        // A worker that ignores the request and has little time is killed.
        let (_, outcome) = begun("trap '' TERM; echo ready; while :; do sleep 1; done", LONG, |w| {
            // Its first line is none that a worker prints.
            while w.poll(Instant::now()).warnings.is_empty() {}
            w.interrupt();
            w.interrupt_within(Duration::from_millis(50));
        });
        assert_eq!(outcome, Outcome::Killed);
        // A worker that takes too long gets the request to end.
        let (_, outcome) = to_the_end("exec sleep 100", Duration::from_millis(50));
        assert!(matches!(&outcome, Outcome::Crashed(why) if why.contains("too long")), "{outcome:?}");
    }

    /// The request to end excuses the signal that follows it, not a fault of the worker.
    #[test]
    fn a_worker_that_fails_after_the_request_has_crashed() {
        let script = "trap 'echo panicked >&2; exit 101' TERM; echo ready; while :; do sleep 0.01; done";
        let (_, outcome) = begun(script, LONG, |w| {
            // Its first line is none that a worker prints.
            while w.poll(Instant::now()).warnings.is_empty() {}
            w.interrupt();
        });
        assert!(matches!(&outcome, Outcome::Crashed(why) if why.contains("panicked")), "{outcome:?}");
    }
}
