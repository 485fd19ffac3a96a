//! Guests: C programs, compiled by the tests, that print addresses of their words and are killed when
//! dropped.

use addr::{Avma, ReadMemory};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use tracee::{Pid, Process, Seized, StopError, StopReport, Stopped};

/// Taken for writing by tests that measure or need all CPUs, and by the others for reading.
static CPUS: RwLock<()> = RwLock::new(());

/// Runs a test while no other runs.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    CPUS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test beside others that call this.
pub fn beside_others() -> RwLockReadGuard<'static, ()> {
    CPUS.read().unwrap_or_else(PoisonError::into_inner)
}

pub struct Guest {
    pub child: Child,
    pub process: Process,
    pub words: Vec<u64>,
    exe: PathBuf,
    _dir: tempfile::TempDir,
}

impl Guest {
    /// Compiles `tests/guests/NAME.c`, starts it, and waits for its line `READY` with addresses in hex.
    pub fn start(name: &str, args: &[&str]) -> Self {
        Self::start_by("gcc", &["-pthread"], name, args)
    }

    /// As [`Guest::start`], with another compiler and other flags.
    pub fn start_by(compiler: &str, flags: &[&str], name: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let exe = dir.path().join(name);
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/guests/{name}.c"));
        let always = ["-O1", "-g", "-Wall", "-Wno-return-type", "-D_GNU_SOURCE", source.to_str().unwrap()];
        assert!(testkit::build(compiler, always.iter().chain(flags), &exe), "this test needs {compiler}");
        Self::run(dir, &exe, args)
    }

    /// Ends this guest and starts another.
    pub fn again(mut self, args: &[&str]) -> Self {
        let dir = std::mem::replace(&mut self._dir, tempfile::tempdir().unwrap());
        let exe = dir.path().join(self.exe.file_name().unwrap());
        drop(self);
        Self::run(dir, &exe, args)
    }

    fn run(dir: tempfile::TempDir, exe: &Path, args: &[&str]) -> Self {
        let mut child =
            Command::new(exe).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let words = line.strip_prefix("READY").expect(&line).split_whitespace();
        let words = words.map(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16).unwrap()).collect();
        let process = Process::open(Pid(child.id().cast_signed())).unwrap();
        Self { child, process, words, exe: exe.to_owned(), _dir: dir }
    }

    /// Returns the word at the `i`th address that it printed.
    pub fn word(&self, i: usize) -> u64 {
        self.process.u64(Avma(self.words[i])).unwrap()
    }

    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Waits until the `i`th word has grown by `by`.
    pub fn progress(&self, i: usize, by: u64) {
        let from = self.word(i);
        until("progress", || self.word(i) >= from + by);
    }

    pub fn state(&self) -> char {
        self.process.status().unwrap().state
    }

    pub fn signal(&self, sig: &str) {
        let kill = Command::new("kill").args([sig, &self.pid().to_string()]).status().unwrap();
        assert!(kill.success());
    }

    pub fn tell(&self, text: &str) {
        self.child.stdin.as_ref().unwrap().write_all(text.as_bytes()).unwrap();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < Duration::from_secs(20), "no {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn stop(p: &Process) -> Result<Stopped<'_>, StopError> {
    Seized::seize(p)?.stop(Duration::from_secs(5))
}

pub fn stop_and_go(p: &Process) -> StopReport {
    stop(p).unwrap().release().unwrap()
}
