//! Runs programs. `commands.log` records each program with its output. A program ends with the lab, and also
//! when its handle is dropped.

use crate::clock;
use crate::error::Error;
use crate::interrupt::Interrupt;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Starts programs and records them in the log.
#[derive(Clone, Debug)]
pub struct Commands {
    log: PathBuf,
    file: Arc<Mutex<File>>,
    lab: PathBuf,
    /// The user's interrupt, which ends waits for commands.
    pub interrupt: Interrupt,
}

/// A program with its arguments and CPUs, not yet started.
#[derive(Clone, Debug)]
pub struct Spec {
    program: PathBuf,
    arguments: Vec<OsString>,
    cpus: Vec<usize>,
    /// A command that becomes the program.
    before: Vec<OsString>,
    /// The signal that ends it in order.
    end: Signal,
    /// Whether its standard input is a pipe.
    reads: bool,
}

impl Spec {
    /// Describes a program without arguments.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        let (program, arguments) = (program.into(), Vec::new());
        Self { program, arguments, cpus: Vec::new(), before: Vec::new(), end: Signal::TERM, reads: false }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds several arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Binds the program to these CPUs. An empty list means no limit.
    #[must_use]
    pub fn on(mut self, cpus: &[usize]) -> Self {
        self.cpus = cpus.to_vec();
        self
    }

    /// Gives the program a pipe to read from.
    #[must_use]
    pub fn reads(mut self) -> Self {
        self.reads = true;
        self
    }

    /// Ends the program with this signal instead of SIGTERM.
    #[must_use]
    pub fn ends_by(mut self, signal: Signal) -> Self {
        self.end = signal;
        self
    }

    /// Runs the program as another user, if the lab is root. It may enter any folder, since the run's folder
    /// may lie in one of root's. If the lab is killed, the kernel sends SIGQUIT to the program.
    #[must_use]
    pub fn run_as(mut self, user: &str) -> Self {
        if !rustix::process::geteuid().is_root() {
            return self;
        }
        // A change of the user cancels the signal that the lab sets for each child.
        let mut words =
            vec!["setpriv", "--pdeathsig", "QUIT", "--reuid", user, "--regid", user, "--init-groups"];
        if may_enter_any_folder() {
            words.extend(["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]);
        }
        self.before = words.into_iter().chain(["--"]).map(OsString::from).collect();
        self
    }

    fn name(&self) -> String {
        self.program.file_name().unwrap_or(self.program.as_os_str()).to_string_lossy().into_owned()
    }

    /// Returns the command as a shell reads it.
    pub fn line(&self) -> String {
        let before = self.before.iter().map(OsString::as_os_str);
        before
            .chain([self.program.as_os_str()])
            .chain(self.arguments.iter().map(OsString::as_os_str))
            .map(|word| quote(&word.to_string_lossy()))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// Returns a word as a shell reads it.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// The result of a command.
#[derive(Debug)]
pub struct Answer {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Answer {
    /// Returns the result of a command that has ended.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if Ctrl-C ended the command. A child is in the lab's process group until it has one of
    /// its own, so a terminal's Ctrl-C may reach it as well in that moment.
    fn of(status: ExitStatus, out: String, err: String) -> Result<Self, Error> {
        if status.signal() == Some(Signal::INT.as_raw()) {
            return Err(Error::Interrupted);
        }
        Ok(Self { status, out, err })
    }

    /// Returns the standard output of a command that must succeed.
    ///
    /// # Errors
    /// [`Error::Command`] if the command failed.
    pub fn must(self, spec: &Spec) -> Result<String, Error> {
        if self.status.success() {
            return Ok(self.out);
        }
        let words = tail(&format!("{}{}", self.out, self.err));
        Err(Error::Command { program: spec.name(), how: format!("failed ({})", self.status), words })
    }
}

impl Commands {
    /// Opens, or creates, `commands.log` in a run's folder.
    ///
    /// # Errors
    /// [`Error::File`] if the log cannot be opened.
    pub fn new(folder: &Path, interrupt: Interrupt) -> Result<Self, Error> {
        let log = folder.join("commands.log");
        let file = OpenOptions::new().create(true).append(true).open(&log).map_err(Error::file(&log))?;
        let lab = std::env::current_exe().map_err(Error::file("/proc/self/exe"))?;
        Ok(Self { log, file: Arc::new(Mutex::new(file)), lab, interrupt })
    }

    /// Writes a line to the log, with the time before it.
    ///
    /// # Errors
    /// [`Error::File`], most likely because the disk is full.
    pub fn note(&self, text: &str) -> Result<(), Error> {
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut text = format!("{} {}", clock::now(), text.trim_end());
        text.push('\n');
        file.write_all(text.as_bytes()).map_err(Error::file(&self.log))
    }

    /// Starts a command and does not wait for it. Its output goes to `out` and `err`.
    ///
    /// # Errors
    /// [`Error::File`] if the lab's own program, which starts the command, cannot be started. If the
    /// command's program is missing, the exit status is 127.
    pub fn spawn(&self, spec: &Spec, out: Stdio, err: Stdio) -> Result<Running, Error> {
        self.note(&format!("$ {}", spec.line()))?;
        let cpus: Vec<String> = spec.cpus.iter().map(ToString::to_string).collect();
        let mut guarded = Command::new(&self.lab);
        guarded.args(["guard", "--parent", &std::process::id().to_string()]);
        if !cpus.is_empty() {
            guarded.args(["--cpus", &cpus.join(",")]);
        }
        // The child gets a process group of its own. So a Ctrl-C at the terminal reaches only the lab, which
        // ends its children in order.
        let child = guarded
            .arg("--")
            .args(&spec.before)
            .arg(&spec.program)
            .args(&spec.arguments)
            .stdin(if spec.reads { Stdio::piped() } else { Stdio::null() })
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .map_err(Error::file(&self.lab))?;
        Ok(Running { child, name: spec.name(), end: spec.end })
    }

    /// Runs a command to its end. The caller judges the exit status.
    ///
    /// # Errors
    /// An error if the command cannot be started or takes longer than `limit`; [`Error::Interrupted`] on an
    /// interrupt.
    pub fn run(&self, spec: &Spec, limit: Duration) -> Result<Answer, Error> {
        let mut running = self.spawn(spec, Stdio::piped(), Stdio::piped())?;
        let out = gather(running.child.stdout.take());
        let err = gather(running.child.stderr.take());
        let until = Instant::now() + limit;
        let status = loop {
            if let Some(status) = running.ended()? {
                break status;
            }
            self.interrupt.check()?;
            if Instant::now() > until {
                let how = format!("did not end within {} s", limit.as_secs());
                return Err(Error::Command { program: running.name.clone(), how, words: String::new() });
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = |t: Option<JoinHandle<String>>| t.and_then(|t| t.join().ok()).unwrap_or_default();
        let (out, err) = (text(out), text(err));
        self.note(&format!("> {status}\n{out}{err}"))?;
        Answer::of(status, out, err)
    }

    /// Runs a command that must succeed, and returns its standard output.
    ///
    /// # Errors
    /// As [`Self::run`]; [`Error::Command`] if the command fails.
    pub fn must(&self, spec: &Spec, limit: Duration) -> Result<String, Error> {
        self.run(spec, limit)?.must(spec)
    }
}

fn gather(stream: Option<impl Read + Send + 'static>) -> Option<JoinHandle<String>> {
    stream.map(|mut stream| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    })
}

/// Returns the last 20 lines of an output.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines.get(lines.len().saturating_sub(20)..).unwrap_or_default().join("\n")
}

/// A running command. Dropping it ends its whole process group.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
    end: Signal,
}

impl Running {
    /// Returns the process id of the command.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(-1)
    }

    /// Returns its standard input at the first call, if that is a pipe.
    pub fn stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// Returns its standard output at the first call, if that is a pipe.
    pub fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Returns its standard error at the first call, if that is a pipe.
    pub fn stderr(&mut self) -> Option<std::process::ChildStderr> {
        self.child.stderr.take()
    }

    /// Returns the exit status if the command has ended.
    ///
    /// # Errors
    /// [`Error::File`] if the wait fails.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.child.try_wait().map_err(Error::file(&self.name))
    }

    /// Ends the command with its signal, and with SIGKILL after `patience`. Returns the exit status, or `None`
    /// if the command had ended before.
    pub fn end(&mut self, patience: Duration) -> Option<ExitStatus> {
        let group = Pid::from_raw(self.pid()).filter(|_| !matches!(self.child.try_wait(), Ok(Some(_))))?;
        let _ = kill_process_group(group, self.end);
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = kill_process_group(group, Signal::KILL);
        self.child.wait().ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Long enough for an interrupted whet to undo its work.
        self.end(Duration::from_secs(10));
    }
}

/// Returns the first file `name` in PATH, /usr/sbin or /sbin, or in the folders of PostgreSQL's versions, the
/// newest first. Debian puts servers there.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .chain(versions(Path::new("/usr/lib/postgresql")))
        .map(|dir| dir.join(name))
        .find(|p| p.is_file())
}

/// Returns the `bin` folders in the folders whose names are numbers, the highest number first.
fn versions(parent: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let mut all: Vec<(u32, PathBuf)> =
        entries.filter_map(|e| Some((e.file_name().to_str()?.parse().ok()?, e.path().join("bin")))).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.into_iter().map(|(_, folder)| folder).collect()
}

/// Returns whether this process may enter folders of all users, and let its children do so.
fn may_enter_any_folder() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::DAC_READ_SEARCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_ctrl_c_ended_has_not_failed() {
        for (raw, is_interrupt) in
            [(Signal::INT.as_raw(), true), (Signal::KILL.as_raw(), false), (1 << 8, false)]
        {
            let status = ExitStatus::from_raw(raw);
            let answer = Answer::of(status, String::new(), String::new());
            let error = answer.and_then(|answer| answer.must(&Spec::new("chown"))).unwrap_err();
            assert_eq!(matches!(error, Error::Interrupted), is_interrupt, "{error}");
        }
    }
}
