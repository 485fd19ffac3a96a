//! `whet start` and `whet stop`, and what other commands do with a daemon that runs.

use crate::interrupt;
use crate::output::{Failure, Output};
use crate::text::printable;
use daemon::client::{self, AskError};
use daemon::proto::DaemonStatus;
use daemon::states::Wish;
use daemon::store::Store;
use daemon::{Config, LogTo};
use engine::{Error, ExitCode, StatusReport};
use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for a daemon to start, and to end.
const PATIENCE: Duration = Duration::from_secs(90);

/// Why the daemon cannot be started, reached or ended.
#[derive(Debug)]
pub struct Trouble {
    code: &'static str,
    message: String,
    next: &'static str,
    exit: ExitCode,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Trouble {}

impl Failure for Trouble {
    fn exit_code(&self) -> ExitCode {
        self.exit
    }

    fn code(&self) -> &'static str {
        self.code
    }

    fn next_step(&self) -> String {
        self.next.to_owned()
    }
}

/// The answer of `start` and `stop`.
#[derive(Debug, Serialize)]
struct Running {
    /// The daemon's process.
    pid: i32,
    /// Whether it runs now.
    running: bool,
}

/// The answer of `status`: journals, and what a daemon adds to them.
#[derive(Debug, Serialize)]
pub struct FullStatus {
    /// What the journals say.
    #[serde(flatten)]
    pub journals: StatusReport,
    /// The daemon's status, if a daemon runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon: Option<DaemonStatus>,
}

/// Reads the configuration, for commands that continue without it. If it cannot be used, warns and returns
/// the defaults.
pub fn config(out: &Output) -> Config {
    Config::read_or_default(&Config::file()).unwrap_or_else(|e| {
        out.warn(&e.to_string());
        Config::default()
    })
}

fn failed(code: &'static str, message: impl fmt::Display, next: &'static str, exit: ExitCode) -> Trouble {
    Trouble { code, message: message.to_string(), next, exit }
}

fn config_file(given: Option<&Path>) -> Result<(PathBuf, Config), Trouble> {
    let path = given.map_or_else(Config::file, Path::to_path_buf);
    let wrong = |e: &dyn fmt::Display| {
        failed("configuration", e.to_string(), "correct the configuration, then try again", ExitCode::Usage)
    };
    let path = std::path::absolute(&path).map_err(|e| wrong(&e))?;
    let config = if given.is_some() { Config::read(&path) } else { Config::read_or_default(&path) };
    config.map(|c| (path, c)).map_err(|e| wrong(&e))
}

/// Reads one file alone, or the configuration in force with its drop-ins. Returns it with its files.
///
/// # Errors
/// [`Trouble`]
pub fn configuration(file: Option<&Path>) -> Result<(Config, Vec<PathBuf>), Trouble> {
    let wrong = |e: daemon::ConfigError| {
        failed("configuration", e.to_string(), "correct the configuration, then try again", ExitCode::Usage)
    };
    match file {
        Some(file) => Config::read_alone(file).map(|c| (c, vec![file.to_owned()])).map_err(wrong),
        None => {
            let path = Config::file();
            let config = Config::read_or_default(&path).map_err(wrong)?;
            Ok((config, Config::files(&path).map_err(wrong)?))
        }
    }
}

/// Starts the daemon in the foreground or in the background.
///
/// # Errors
/// [`Trouble`]
pub fn start(
    foreground: bool,
    detached: bool,
    given: Option<&Path>,
    out: &Output,
) -> Result<ExitCode, Trouble> {
    let (path, config) = config_file(given)?;
    if foreground {
        in_foreground(&path, &config, detached).map(|()| ExitCode::Ok)
    } else {
        in_background(given.map(|_| path.as_path()), &config, out)
    }
}

fn in_foreground(path: &Path, config: &Config, detached: bool) -> Result<(), Trouble> {
    let next = engine::rights("run as root, or name other places under [paths] in the configuration");
    let state = &config.paths.state;
    let to = if detached { LogTo::File(state.join("log")) } else { LogTo::Starter };
    if detached {
        daemon::detach();
    }
    // Makes the folder.
    let _ = Store::new(state);
    daemon::begin_log(&to).map_err(|e| {
        failed("state_folder", format!("cannot log in {}: {e}", state.display()), next, ExitCode::Permission)
    })?;
    daemon::run(path).map_err(|e| match &e {
        daemon::DaemonError::Running { .. } => {
            failed("running", &e, "`whet status` shows its state; `whet stop` ends it", ExitCode::Busy)
        }
        daemon::DaemonError::Config(_) => {
            failed("configuration", &e, "correct the configuration, then try again", ExitCode::Usage)
        }
        daemon::DaemonError::System { .. } => failed("daemon", &e, next, ExitCode::Permission),
    })
}

fn in_background(given: Option<&Path>, config: &Config, out: &Output) -> Result<ExitCode, Trouble> {
    let socket = &config.paths.socket;
    if let Ok(running) = client::status(socket, client::PATIENCE) {
        let message = format!("a daemon is running already: process {}", running.pid);
        return Err(failed(
            "running",
            message,
            "`whet status` shows its state; `whet stop` ends it",
            ExitCode::Busy,
        ));
    }
    let child = Command::new("/proc/self/exe")
        .args(["start", "--foreground", "--detached"])
        .args(given.iter().flat_map(|path| ["--config".as_ref(), path.as_os_str()]))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|e| {
        failed(
            "cannot_run",
            format!("cannot start the daemon: {e}"),
            "free memory or process slots, then try again",
            ExitCode::Bug,
        )
    })?;
    let pid = i32::try_from(child.id()).unwrap_or(0);
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Ok(Some(_)) = child.try_wait() {
            return Err(failed(
                "daemon",
                complaint(&mut child),
                "`whet start --foreground` prints the reason",
                ExitCode::Permission,
            ));
        }
        if client::status(socket, client::PATIENCE).is_ok_and(|s| s.pid == pid) {
            out.answer(&Running { pid, running: true }, |r| format!("the daemon runs: process {}", r.pid));
            return Ok(ExitCode::Ok);
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(failed(
        "daemon",
        "the daemon does not come up",
        "`whet start --foreground` prints the reason",
        ExitCode::Bug,
    ))
}

/// Returns a message with the first line that a daemon wrote which did not come up.
fn complaint(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut text);
    }
    let first = text.lines().next().unwrap_or("it said nothing");
    format!("the daemon ended: {}", first.strip_prefix("whet: ").unwrap_or(first))
}

/// Ends the daemon; targets stay optimized.
///
/// # Errors
/// [`Trouble`]
pub fn stop(given: Option<&Path>, out: &Output) -> Result<ExitCode, Trouble> {
    let (_, config) = config_file(given)?;
    let socket = &config.paths.socket;
    let answer = client::call(socket, "whet.Stop", Value::Null).map_err(|e| cannot_ask(&e))?;
    let pid = answer["pid"].as_i64().and_then(|p| i32::try_from(p).ok()).unwrap_or(0);
    let until = Instant::now() + PATIENCE;
    // The daemon first lets its workers bring their targets in order. Meanwhile it answers other callers.
    loop {
        match client::status(socket, client::PATIENCE) {
            Err(AskError::NoDaemon { .. }) => break,
            Ok(another) if another.pid != pid => break,
            Ok(_) | Err(_) => {}
        }
        if Instant::now() > until {
            return Err(failed(
                "busy",
                format!("the daemon, process {pid}, has not ended yet"),
                "its workers bring their targets in order; wait, or kill it: targets stay sound",
                ExitCode::Busy,
            ));
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    out.answer(&Running { pid, running: false }, |_| {
        "the daemon has ended; what is optimized stays so".to_owned()
    });
    Ok(ExitCode::Ok)
}

fn cannot_ask(e: &AskError) -> Trouble {
    match e {
        AskError::NoDaemon { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            failed("permission", e, engine::rights("run as root"), ExitCode::Permission)
        }
        AskError::NoDaemon { .. } => failed("no_daemon", e, "`whet start` starts one", ExitCode::NoDaemon),
        AskError::NoAnswer { .. } => {
            failed("no_answer", e, "look at its log; `systemctl restart whet`", ExitCode::Busy)
        }
        AskError::Refused { .. } => {
            failed("permission", e, engine::rights("run as root"), ExitCode::Permission)
        }
    }
}

/// Combines the journals with the status of a running daemon. Also returns the reason if a running daemon
/// does not answer.
///
/// # Errors
/// The error in `journals`, unless the daemon has targets to report.
pub fn status(
    pid: Option<i32>,
    journals: Result<StatusReport, Error>,
    socket: &Path,
    patience: Duration,
) -> Result<(FullStatus, Option<AskError>), Error> {
    let (mut daemon, silent) = match client::status(socket, patience) {
        Ok(status) => (Some(status), None),
        Err(AskError::NoDaemon { .. }) => (None, None),
        Err(e) => (None, Some(e)),
    };
    if let (Some(pid), Some(daemon)) = (pid, &mut daemon) {
        daemon.targets.retain(|t| t.pid == pid);
    }
    let journals = match journals {
        // The daemon also lists processes that have ended.
        Err(_) if daemon.as_ref().is_some_and(|d| !d.targets.is_empty()) => {
            StatusReport { targets: Vec::new(), unreadable: 0 }
        }
        journals => journals?,
    };
    Ok((FullStatus { journals, daemon }, silent))
}

/// Returns what a daemon does, in a line or two.
pub fn headline(daemon: &DaemonStatus) -> String {
    let processes = if daemon.watched == 1 { "process" } else { "processes" };
    let mut text = format!("the daemon (pid {}) watches {} {processes}", daemon.pid, daemon.watched);
    if daemon.switched_off {
        text.push_str("; the kill-switch file exists");
    }
    if let Some(e) = &daemon.config_error {
        let _ = write!(text, "\n  its configuration was not read again: {}", printable(e));
    }
    text
}

/// Formats the status for people.
pub fn human(status: &FullStatus) -> String {
    let mut text = crate::human::status(&status.journals);
    let Some(daemon) = &status.daemon else { return text };
    let _ = write!(text, "\n{}", headline(daemon));
    for t in &daemon.targets {
        let (exe, reason) = (printable(&t.exe), printable(&t.reason));
        let _ = write!(text, "\n  {exe}, pid {}: {} since {}: {reason}", t.pid, t.state.word(), t.since);
    }
    text
}

/// Informs a daemon that a process is about to be changed by hand. Returns whether a daemon was informed.
pub fn stand_back(pid: Option<i32>, wish: Wish, out: &Output) -> bool {
    match client::stand_back(&config(out).paths.socket, pid, wish) {
        Ok(()) => true,
        // No daemon runs, or it belongs to another user.
        Err(AskError::NoDaemon { .. } | AskError::Refused { .. }) => false,
        Err(e) => {
            out.warn(&e.to_string());
            false
        }
    }
}

/// Changes a process by `act`. If a daemon was `informed`, waits up to 30 s until it lets go of the
/// process.
///
/// # Errors
/// Those of `act`.
pub fn patiently<R>(informed: bool, mut act: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match act() {
            Err(Error::Locked { .. }) if informed && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

/// Returns the error for the kill-switch file, if that file is there.
pub fn switched_off(out: &Output) -> Option<Trouble> {
    let config = config(out);
    config.is_switched_off().then(|| {
        let file = config.paths.kill_switch.display();
        failed(
            "kill_switch",
            format!("the kill-switch file {file} is there"),
            "remove it to optimize again",
            ExitCode::Refused,
        )
    })
}

/// Runs a job of the daemon, as its worker.
pub fn work(order: &str) -> ExitCode {
    daemon::run_order(order, interrupt::listen)
}
