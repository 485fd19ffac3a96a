//! Guest programs: builds, starts, optimizes and ends them.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(dead_code, reason = "each test program uses its part")]

pub mod paths;
pub mod server;
pub mod stranger;

use engine::{OptimizeOptions, Pid, optimize};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Returns whether the long form of the tests is wanted.
pub fn stress() -> bool {
    std::env::var_os("WHET_STRESS").is_some()
}

/// Returns options for cloning everything in random order; in the short form, a program's own functions and
/// some of the libraries'.
pub fn shuffled(seed: u64) -> OptimizeOptions {
    let max_functions = if stress() { None } else { Some(800) };
    OptimizeOptions { shuffle: Some(seed), max_functions, ..OptimizeOptions::default() }
}

pub fn guests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests")
}

/// A running guest. Its first round is done.
pub struct Guest {
    child: Child,
    stop: PathBuf,
    _dir: TempDir,
}

impl Guest {
    /// Builds `source` as its head says (`//#Flags:`, `//#With:`, `//#Link:`), and starts it.
    pub fn start(source: &Path, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("guest");
        let head = std::fs::read_to_string(source).unwrap();
        let words = |key: &str| -> Vec<String> {
            let lines = head.lines().filter_map(|l| l.strip_prefix(key));
            lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
        };
        let cxx = source.extension().is_some_and(|e| e == "cc");
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let mut args = vec!["-w".to_owned(), "-O2".to_owned()];
        args.extend(flags.iter().map(|f| (*f).to_owned()));
        args.extend(words("//#Flags:"));
        args.extend([text(source), "-I".to_owned(), text(&guests())]);
        args.extend(words("//#With:").iter().map(|w| text(&guests().join(w))));
        args.extend(words("//#Link:"));
        let compiler = if cxx { "g++" } else { "gcc" };
        assert!(testkit::build(compiler, args, &program), "this test needs {compiler}");
        let stop = dir.path().join("stop");
        let mut child = Command::new(&program)
            .env("GUEST_SECONDS", "3600")
            .env("GUEST_STOP", &stop)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{}", source.display());
        Self { child, stop, _dir: dir }
    }

    pub fn pid(&self) -> Pid {
        Pid(i32::try_from(self.child.id()).unwrap())
    }

    /// Clones everything in random order.
    pub fn shuffle(&self, seed: u64) {
        optimize(self.pid(), &shuffled(seed), &mut |_| {}).unwrap();
    }

    /// Does the same after counting for a while, so that the targets of indirect calls are known.
    pub fn shuffle_counted(&self, seed: u64) {
        self.shuffle_counted_only(seed, &[]);
    }

    /// Does the same with these functions alone, if any are named.
    pub fn shuffle_counted_only(&self, seed: u64, only: &[&str]) {
        let counting = Some(Duration::from_millis(300));
        let only = only.iter().map(ToString::to_string).collect();
        let options = OptimizeOptions { counting, only, ..shuffled(seed) };
        optimize(self.pid(), &options, &mut |_| {}).unwrap();
    }

    /// Lets it end by itself. It has checked all the while that each round gives the result of the first.
    pub fn finish(mut self) {
        File::create(&self.stop).unwrap();
        let limit = Instant::now() + Duration::from_secs(120);
        while Instant::now() < limit {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the guest does not end");
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Of a child that has been waited for, this is an error and does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
