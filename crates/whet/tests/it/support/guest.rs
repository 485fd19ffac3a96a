//! Programs at work, observed through a page of memory that they share with the test.

use super::command::finish;
use super::program::scratch;
use super::wait_until;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running program. Ended when dropped.
#[derive(Debug)]
pub struct Guest {
    child: Option<Child>,
    pid: i32,
    page: File,
    stdout: File,
    path: PathBuf,
}

/// Indices of words in the page: see `page.h`.
const STOP: u64 = 0;
const GO: u64 = 1;
const TID: u64 = 2;
const WORK: u64 = 3;

impl Guest {
    /// Starts a program with its page as the first argument.
    pub fn start(program: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        Self::start_by(|page| {
            command.arg(page).args(args);
            command
        })
    }

    /// Starts a command that is made from the page's path.
    pub fn start_by(command: impl FnOnce(&Path) -> Command) -> Self {
        let (path, output) = (scratch("page"), scratch("stdout"));
        let open = |p: &Path| File::options().read(true).write(true).create_new(true).open(p).unwrap();
        let (page, stdout) = (open(&path), open(&output));
        page.set_len(4096).unwrap();
        std::fs::remove_file(output).unwrap();
        let mut command = command(&path);
        command.stdin(Stdio::null()).stdout(stdout.try_clone().unwrap());
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Self { pid: pid_of(&child), child: Some(child), page, stdout, path }
    }

    /// Starts a program, and waits until so many of its counters move.
    pub fn working(program: &Path, args: &[&str], counters: u64) -> Self {
        let guest = Self::start(program, args);
        guest.progresses(counters);
        guest
    }

    /// Returns whether its first counter has moved.
    pub fn has_begun(&self) -> bool {
        self.word(WORK) != 0
    }

    /// Returns its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns its process id as an argument.
    pub fn arg(&self) -> String {
        self.pid().to_string()
    }

    /// Returns a shell command that prints how many rounds its first thread has made.
    pub fn rounds(&self) -> String {
        format!("od -An -tu8 -j{} -N8 {}", WORK * 8, self.path.display())
    }

    fn word(&self, i: u64) -> u64 {
        let mut b = [0; 8];
        self.page.read_exact_at(&mut b, i * 8).unwrap();
        u64::from_le_bytes(b)
    }

    fn set(&self, i: u64, value: u64) {
        self.page.write_all_at(&value.to_le_bytes(), i * 8).unwrap();
    }

    /// Returns its output so far.
    pub fn said(&self) -> String {
        let mut bytes = vec![0; usize::try_from(self.stdout.metadata().unwrap().len()).unwrap()];
        self.stdout.read_exact_at(&mut bytes, 0).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns one of its counters, or a word behind them.
    pub fn counter(&self, i: u64) -> u64 {
        self.word(WORK + i)
    }

    /// Requests its special action.
    pub fn go(&self) {
        self.go_to(1);
    }

    /// Requests one of its special actions.
    pub fn go_to(&self, what: u64) {
        self.set(GO, what);
    }

    /// Returns the id of its second thread.
    pub fn second_thread(&self) -> i32 {
        wait_until("a second thread", || self.word(TID) != 0);
        i32::try_from(self.word(TID)).unwrap()
    }

    /// Waits until each of the first `counters` counters has gone through a whole round from now on.
    #[track_caller]
    pub fn progresses(&self, counters: u64) {
        for i in WORK..WORK + counters {
            let from = self.word(i);
            wait_until(&format!("work of thread {} of {}", i - WORK, self.pid()), || {
                assert!(!self.has_ended(), "it has ended: {}", self.said());
                self.word(i) >= from + 2
            });
        }
    }

    /// Returns whether it has ended. It may not have been waited for yet. It lives on in other threads if its
    /// first thread alone has ended.
    pub fn has_ended(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).map_or(0, Iterator::count);
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z') && threads < 2)
    }

    /// Requests its end. Returns its exit code, the signal it died of, and its output.
    pub fn finish(mut self) -> (Option<i32>, Option<i32>, String) {
        self.set(STOP, 1);
        let (code, signal) = finish(self.child.take().unwrap());
        (code, signal, self.said())
    }

    /// Requests the end of processes that outlive it.
    pub fn stop(&self) {
        self.set(STOP, 1);
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        self.child.as_mut().unwrap().kill().unwrap();
    }

    /// Waits for its end, which comes by itself. Returns its exit code, or the signal it died of.
    pub fn ended(&mut self) -> (Option<i32>, Option<i32>) {
        finish(self.child.take().unwrap())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        // The file that whet leaves for profilers, which is to outlive the process.
        let _ = std::fs::remove_file(format!("/tmp/perf-{}.map", self.pid));
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns a child's process id.
pub fn pid_of(child: &Child) -> i32 {
    i32::try_from(child.id()).unwrap()
}
