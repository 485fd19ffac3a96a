//! A guest that does the same work again and again, on request: `tests/guests/paths.c`.

use addr::Avma;
use engine::{CountedFunction, OptimizeOptions, Pid, Progress, count_during};
use oracle::count_steps;
use profile::Counts;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A guest that works on request.
pub struct Paths {
    child: Child,
    _dir: TempDir,
}

impl Paths {
    pub fn start(compiler: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program: PathBuf = dir.path().join("paths");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/paths.c");
        let always = ["-w", "-pthread", source.to_str().unwrap()];
        assert!(testkit::build(compiler, always.iter().chain(flags), &program), "this test needs {compiler}");
        let child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut paths = Self { child, _dir: dir };
        paths.wait();
        paths
    }

    pub fn pid(&self) -> Pid {
        Pid(i32::try_from(self.child.id()).unwrap())
    }

    pub fn tell(&mut self, what: u8) {
        self.child.stdin.as_mut().unwrap().write_all(&[what]).unwrap();
    }

    pub fn wait(&mut self) {
        self.child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }

    pub fn work(&mut self, what: u8) {
        self.tell(what);
        self.wait();
    }

    /// Returns the counts of the work by counters. `what` says how the work is done.
    pub fn counted(&mut self, options: &OptimizeOptions, what: u8) -> Vec<CountedFunction> {
        let pid = self.pid();
        let paths = std::cell::RefCell::new(self);
        // Without samples, none of the work would be hot.
        let mut progress = |p| {
            if let Progress::Sampling { .. } = p {
                (0..500).for_each(|_| paths.borrow_mut().work(what));
            }
        };
        let mut work = || paths.borrow_mut().work(what);
        count_during(pid, options, &mut progress, &mut work).unwrap()
    }

    /// Returns the counts of the same functions by a single-step run; `each` gets every step.
    pub fn stepped(
        &mut self,
        functions: &[&CountedFunction],
        each: &mut dyn FnMut(Avma, Avma),
    ) -> Vec<Counts> {
        let all = functions.iter().find(|f| f.name == "p_all").unwrap().cfg.entry;
        let cfgs: Vec<_> = functions.iter().map(|f| &f.cfg).collect();
        let pid = self.pid();
        let patience = Duration::from_secs(60);
        let counts = count_steps(pid, all, &cfgs, &mut || self.tell(b's'), patience, each).unwrap();
        self.wait();
        counts
    }

    pub fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        // Of a child that has been waited for, this is an error and does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the functions of the work. If threads do the work, nothing calls the function for all of them.
pub fn own(counted: &[CountedFunction]) -> Vec<&CountedFunction> {
    counted.iter().filter(|f| f.name.starts_with("p_")).collect()
}
