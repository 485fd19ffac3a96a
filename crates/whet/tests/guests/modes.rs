//! What is done to a guest while it runs.

use crate::build::build;
use crate::directives::{End, Guest};
use crate::process::{Ended, Running};
use crate::variants::Variant;
use crate::{Harness, count};
use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The most time a guest or a whet may take.
const LIMIT: Duration = Duration::from_secs(90);
/// How long a guest runs on in the state it was brought to.
const RUN_ON: Duration = Duration::from_millis(200);
/// The most functions that are shuffled in the short form, if not all are: the program's own, and some of the
/// libraries'.
const SHORT_FUNCTIONS: &str = "500";
/// whet's exit codes that are no failure, or not at once.
const REFUSED: i32 = 5;
const BUSY: i32 = 6;
const NOTHING_HOT: i32 = 7;
const DIFFERS: i32 = 8;
const TARGET_ENDED: i32 = 10;

/// A way to run a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Alone.
    Plain,
    /// Optimized by a profile.
    Optimized,
    /// Everything that can be cloned is cloned, in random order.
    Shuffled,
    /// Shuffled, undone and redone again and again, undone and verified in the end.
    Toggled,
    /// Shuffled, undone and verified.
    Undone,
    /// Shuffled, after clones in another random order have counted.
    Counted,
}

impl Mode {
    /// All modes, each at the index of its number.
    pub(crate) const ALL: [Mode; 6] =
        [Mode::Plain, Mode::Optimized, Mode::Shuffled, Mode::Toggled, Mode::Undone, Mode::Counted];

    /// Returns its part of a trial's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Optimized => "optimized",
            Mode::Shuffled => "shuffled",
            Mode::Toggled => "toggled",
            Mode::Undone => "undone",
            Mode::Counted => "counted",
        }
    }
}

/// A guest built in one way.
pub(crate) struct Subject {
    pub(crate) guest: Arc<Guest>,
    variant: Variant,
    program: OnceLock<Result<PathBuf, String>>,
    plain: OnceLock<Result<Ended, String>>,
}

/// One run of whet that succeeded, or that failed for a reason that is allowed.
enum Answer {
    Done(Value),
    Nothing,
}

/// A running guest, and what whet needs to work on it.
struct Live<'a> {
    harness: &'a Harness,
    guest: &'a Guest,
    folder: &'a Path,
    running: Running,
}

impl Subject {
    pub(crate) fn new(guest: Arc<Guest>, variant: Variant) -> Self {
        Self { guest, variant, program: OnceLock::new(), plain: OnceLock::new() }
    }

    /// Runs it in one mode. The error says what went wrong.
    pub(crate) fn run(&self, harness: &Harness, mode: Mode, name: &str) -> Result<(), String> {
        let plain = self.plain.get_or_init(|| self.run_plain(harness)).as_ref().map_err(Clone::clone)?;
        if mode == Mode::Plain {
            return Ok(());
        }
        let mut hasher = DefaultHasher::new();
        (name, harness.stress).hash(&mut hasher);
        // Small, so that it is easily typed again.
        let seed = hasher.finish() % 1_000_000;

        let folder = self.folder(harness, mode)?;
        let stop = folder.join("stop");
        let mut command = Command::new(self.program(harness)?);
        command.env("GUEST_SECONDS", "60").env("GUEST_STOP", &stop);
        if harness.stress.is_none() {
            // Half of the CPU is left to whet.
            command.env("GUEST_REST", "");
        }
        let running = Running::start(command, &folder, "guest", LIMIT)?;
        let mut live = Live { harness, guest: &self.guest, folder: &folder, running };
        let worked = live.work(mode, seed);
        std::fs::write(&stop, "").map_err(|e| format!("{}: {e}", stop.display()))?;
        // The end of the guest is reported even if whet failed.
        let ended = live.running.finish();
        let compared = same(plain, ended.as_ref());
        match (worked, compared) {
            (Ok(()), Ok(())) => {
                drop(std::fs::remove_dir_all(&folder));
                Ok(())
            }
            (worked, compared) => {
                let lines: Vec<String> = [worked.err(), compared.err()].into_iter().flatten().collect();
                let failure = format!("{}\n(seed {seed}; kept in {})", lines.join("\n"), folder.display());
                // Kept there too, for a run of all trials that is cut short.
                drop(std::fs::write(folder.join("failure"), &failure));
                Err(failure)
            }
        }
    }

    fn program(&self, harness: &Harness) -> Result<&Path, String> {
        let built = self.program.get_or_init(|| build(harness, &self.guest, self.variant));
        built.as_deref().map_err(Clone::clone)
    }

    /// Returns an empty folder for one run.
    fn folder(&self, harness: &Harness, mode: Mode) -> Result<PathBuf, String> {
        let name = format!("{}-{}-{}", self.guest.name, self.variant.name(), mode.name());
        let folder = harness.cache.join("runs").join(name);
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(folder)
    }

    fn run_plain(&self, harness: &Harness) -> Result<Ended, String> {
        let folder = self.folder(harness, Mode::Plain)?;
        let mut command = Command::new(self.program(harness)?);
        command.env("GUEST_SECONDS", "0.1").env_remove("GUEST_STOP");
        let ended = Running::start(command, &folder, "guest", LIMIT)?.finish()?;
        if ended.end != self.guest.end || ended.stdout.starts_with("mismatch") {
            return Err(format!("wrong without whet: {ended:?}, not {:?}", self.guest.end));
        }
        if !ended.stderr.lines().any(|l| l == "ready") {
            return Err(format!("never ready: {ended:?}"));
        }
        drop(std::fs::remove_dir_all(&folder));
        Ok(ended)
    }
}

impl Live<'_> {
    fn work(&mut self, mode: Mode, seed: u64) -> Result<(), String> {
        self.running.wait_for_line("ready")?;
        let whole = mode == Mode::Toggled && seed.is_multiple_of(4);
        let seed = seed.to_string();
        let mut how: Vec<&str> = match mode {
            Mode::Optimized => vec!["--seconds", "0.4", "--count", &self.guest.count],
            Mode::Counted => vec!["--shuffle", &seed, "--count", "0.3"],
            _ => vec!["--shuffle", &seed],
        };
        if self.harness.stress.is_none() && mode != Mode::Optimized && !whole {
            how.extend(["--max-functions", SHORT_FUNCTIONS]);
        }
        let Answer::Done(report) = self.whet("optimize", &how)? else { return Ok(()) };
        if let Some(reason) = &self.guest.refused {
            return Err(format!("not refused ({reason}): {report}"));
        }
        state(&report, "optimized")?;
        match mode {
            Mode::Plain | Mode::Optimized | Mode::Shuffled | Mode::Counted => {}
            Mode::Toggled => {
                self.toggle()?;
                self.undo_and_verify()?;
            }
            Mode::Undone => {
                self.running.run_on(RUN_ON)?;
                self.undo_and_verify()?;
            }
        }
        self.running.run_on(RUN_ON)
    }

    fn toggle(&mut self) -> Result<(), String> {
        let time = if self.harness.stress.is_some() { 2000 } else { 700 };
        let until = Instant::now() + Duration::from_millis(time);
        while Instant::now() < until {
            for (command, word) in [("undo", "undone"), ("redo", "optimized")] {
                let Answer::Done(answer) = self.whet(command, &[])? else { return Ok(()) };
                state(&answer, word)?;
                count(&self.harness.counts.toggles);
            }
        }
        Ok(())
    }

    fn undo_and_verify(&mut self) -> Result<(), String> {
        let Answer::Done(answer) = self.whet("undo", &[])? else { return Ok(()) };
        state(&answer, "undone")?;
        self.running.run_on(RUN_ON)?;
        let Answer::Done(report) = self.whet("verify", &[])? else { return Ok(()) };
        match report.get("identical") {
            Some(Value::Bool(true)) => Ok(()),
            _ => Err(format!("verify: not identical: {report}")),
        }
    }

    /// Runs `whet COMMAND PID ARGUMENTS... --format json`, again while it is busy or the guest gets no CPU.
    fn whet(&mut self, what: &str, arguments: &[&str]) -> Result<Answer, String> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let mut command = Command::new(env!("CARGO_BIN_EXE_whet"));
            command.arg(what).arg(self.running.pid().to_string()).args(arguments).args(["--format", "json"]);
            let ended = Running::start(command, self.folder, what, LIMIT)?.finish()?;
            let counts = &self.harness.counts;
            match ended.end {
                End::Exit(0) => {
                    let parsed = serde_json::from_str(&ended.stdout);
                    return parsed.map(Answer::Done).map_err(|e| format!("whet {what}: {e} in {ended:?}"));
                }
                End::Exit(BUSY) if Instant::now() < until => {
                    count(&counts.busy);
                    self.running.run_on(Duration::from_millis(30))?;
                }
                // On a busy machine a guest may get no CPU while it is sampled.
                End::Exit(NOTHING_HOT)
                    if !self.guest.idle
                        && ended.stdout.contains("it used no CPU time")
                        && Instant::now() < until =>
                {
                    count(&counts.busy);
                }
                End::Exit(NOTHING_HOT) if self.guest.idle => {
                    count(&counts.nothing_hot);
                    return Ok(Answer::Nothing);
                }
                End::Exit(REFUSED) if self.guest.refused.is_some() => {
                    let parsed: Value =
                        serde_json::from_str(&ended.stdout).map_err(|e| format!("{e} in {ended:?}"))?;
                    let code = parsed.pointer("/error/code").and_then(Value::as_str);
                    if code != self.guest.refused.as_deref() {
                        return Err(format!("refused for another reason: {parsed}"));
                    }
                    count(&counts.refused);
                    return Ok(Answer::Nothing);
                }
                End::Exit(DIFFERS) if self.guest.patches => return Ok(Answer::Nothing),
                // Its output shows whether it ended as it should.
                End::Exit(TARGET_ENDED) => {
                    count(&counts.ended_before);
                    return Ok(Answer::Nothing);
                }
                _ => return Err(format!("whet {what} failed: {ended:?}")),
            }
        }
    }
}

fn state(answer: &Value, wanted: &str) -> Result<(), String> {
    match answer.get("state") {
        Some(Value::String(s)) if s == wanted => Ok(()),
        _ => Err(format!("the state is not {wanted}: {answer}")),
    }
}

/// Checks that a run gave what the plain run gave.
fn same(plain: &Ended, ended: Result<&Ended, &String>) -> Result<(), String> {
    let ended = ended.map_err(Clone::clone)?;
    if ended.end == plain.end && ended.stdout == plain.stdout {
        return Ok(());
    }
    Err(format!("the guest gave {ended:?}, plain {:?} {:?}", plain.end, plain.stdout))
}
