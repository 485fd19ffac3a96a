//! A long run that tests disturb.

use super::{count, lab, left_behind, prepared, records};
use rustix::process::{Pid, Signal, getpgid, kill_process_group};
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A lab that measures for some time, so that a test can disturb it.
pub struct Long {
    /// The lab.
    pub child: Child,
    /// The folder of its run.
    pub out: PathBuf,
    _dir: tempfile::TempDir,
}

impl Long {
    /// Starts the lab on the prepared database.
    pub fn begin() -> Self {
        let of = [
            "--tests=oltp_point_select",
            "--threads=1,2",
            "--tables=1",
            "--rows=1000",
            "--buffer-pool=64",
            "--pairs=5",
            "--window=0.1",
        ];
        let prepared = prepared::options();
        Self::of("stalls", of.into_iter().map(OsString::from).chain(prepared.into_iter().map(Into::into)))
    }

    /// Starts an A/A control with a scenario's own options.
    pub fn of(scenario: &str, more: impl IntoIterator<Item = OsString>) -> Self {
        Self::start(lab(), scenario, [OsString::from("--null")].into_iter().chain(more))
    }

    /// Starts the lab with a scenario's own options, in a session of its own. Its process group is then what the
    /// foreground is at a terminal: the lab, and those of its children that have no group of their own.
    pub fn in_session(scenario: &str, more: impl IntoIterator<Item = OsString>) -> Self {
        let lab = lab();
        let mut command = Command::new("setsid");
        command.arg(lab.get_program()).stdin(Stdio::null()).env_remove("WHET_LAB_PASSWORD");
        Self::start(command, scenario, more)
    }

    fn start(mut lab: Command, scenario: &str, more: impl IntoIterator<Item = OsString>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().canonicalize().unwrap().join("run");
        lab.args([scenario, "--seed=1", "--warm-up=0.5", "--out"]).arg(&out).args(more);
        let child = lab.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        Self { child, out, _dir: dir }
    }

    /// Waits until the first window is recorded.
    pub fn wait_for_data(&mut self) {
        let until = Instant::now() + Duration::from_secs(120);
        while count(&records(&self.out), "window") == 0 {
            assert!(self.child.try_wait().unwrap().is_none(), "ended early: {}", self.err());
            assert!(Instant::now() < until, "no window");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns all that the lab has written to standard error, once it has ended.
    pub fn err(&mut self) -> String {
        let mut text = String::new();
        std::io::Read::read_to_string(self.child.stderr.as_mut().unwrap(), &mut text).unwrap();
        text
    }

    /// Returns the data folder of the run's server.
    pub fn data(&self) -> PathBuf {
        fs::read_dir(self.out.join("work")).unwrap().flatten().next().unwrap().path()
    }

    /// Returns the pid of the run's server.
    pub fn server(&self) -> i32 {
        fs::read_to_string(self.data().join("server.pid")).unwrap().trim().parse().unwrap()
    }

    /// Returns the pids of the lab's children.
    pub fn children(&self) -> Vec<i32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let all: Vec<String> = tasks.map(of).collect();
        all.iter().flat_map(|pids| pids.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
    }

    /// Sends a signal to a process.
    pub fn signal(pid: i32, name: &str) {
        assert!(
            Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().unwrap().success()
        );
    }

    /// Interrupts a lab that has a session of its own, as Ctrl-C at a terminal does: the signal goes to the lab's
    /// process group. `kill` of procps 4.0.2 takes the negative number of a group for all processes, so it is
    /// not used here.
    pub fn interrupt_group(&self) {
        let group = Pid::from_child(&self.child);
        assert_eq!(getpgid(Some(group)).unwrap(), group, "the lab has no group of its own");
        kill_process_group(group, Signal::INT).unwrap();
    }

    /// Waits until no process of the run is left.
    pub fn nothing_is_left(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        while !left_behind(&self.out).is_empty() {
            assert!(Instant::now() < until, "{:?}", left_behind(&self.out));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Long {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
