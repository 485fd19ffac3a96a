//! The daemon, end to end: it optimizes a process of the test's, and the process stays sound whatever happens
//! to the daemon.

use crate::support::{
    Answer, Guest, build, changed_text, copy, run, scratch, skip, tracers, wait_until, whet, whet_command,
};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A daemon with a folder for everything that it needs. Ended when dropped.
pub(crate) struct Daemon {
    folder: PathBuf,
    child: Option<Child>,
    pub(crate) bad_layout: bool,
}

impl Daemon {
    /// Starts a daemon for one program, which no other daemon or test has on its list.
    pub(crate) fn for_program(program: &Path, more: &str) -> Self {
        let folder = scratch("daemon");
        fs::create_dir(&folder).unwrap();
        let (f, exe) = (folder.display(), program.display());
        let config = format!(
            "[[target]]\nexe = \"{exe}\"\n[take]\ncpu_percent = 1.0\nmin_age = \"1s\"\nwarm_min_age = \"0s\"\nevery = \"200ms\"\n\
             [profile]\nsampling = \"600ms\"\ncounting = \"200ms\"\n\
             [paths]\nsocket = \"{f}/run/socket\"\nstate = \"{f}/state\"\nkill_switch = \"{f}/off\"\nmetrics = \"{f}/metrics\"\n{more}"
        );
        fs::write(folder.join("whet.toml"), config).unwrap();
        Self { folder, child: None, bad_layout: false }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = whet_command(args);
        command.env("WHET_CONFIG", self.folder.join("whet.toml"));
        if self.bad_layout {
            command.env("WHET_BAD_LAYOUT", "1");
        }
        command
    }

    pub(crate) fn whet(&self, args: &[&str]) -> Answer {
        run(self.command(args))
    }

    pub(crate) fn start(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.folder.join("log")).unwrap();
        let mut command = self.command(&["start", "--foreground"]);
        self.child = Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap());
        wait_until("a daemon", || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.log());
            self.ask("whet.Status", &Value::Null).is_some()
        });
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Returns the answer to a call.
    fn ask(&self, method: &str, parameters: &Value) -> Option<Value> {
        let mut stream = UnixStream::connect(self.folder.join("run/socket")).ok()?;
        stream
            .write_all(json!({ "method": method, "parameters": parameters }).to_string().as_bytes())
            .ok()?;
        stream.write_all(&[0]).ok()?;
        let mut answer = Vec::new();
        BufReader::new(stream).read_until(0, &mut answer).ok()?;
        answer.pop();
        serde_json::from_slice(&answer).ok()
    }

    /// Returns the daemon's status of a process.
    pub(crate) fn target(&self, pid: i32) -> Value {
        self.targets().iter().find(|t| t["pid"] == pid).cloned().unwrap_or_default()
    }

    /// Returns the daemon's status of all processes.
    pub(crate) fn targets(&self) -> Vec<Value> {
        let status = self.ask("whet.Status", &Value::Null).unwrap_or_default();
        status["parameters"]["targets"].as_array().cloned().unwrap_or_default()
    }

    /// Makes the kill-switch file, or removes it.
    pub(crate) fn switch(&self, off: bool) {
        let file = self.folder.join("off");
        if off { fs::write(file, "").unwrap() } else { fs::remove_file(file).unwrap() }
    }

    /// Returns state and reason of a process.
    fn state(&self, pid: i32) -> (String, String) {
        let target = self.target(pid);
        let text = |key: &str| target[key].as_str().unwrap_or_default().to_owned();
        (text("state"), text("reason"))
    }

    #[track_caller]
    pub(crate) fn comes_to(&self, pid: i32, state: &str) -> String {
        let mut last = Default::default();
        wait_until(&format!("{state}; the log: {}", self.log()), || {
            last = self.state(pid);
            last.0 == state
        });
        last.1
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Makes a program with a name of its own, so that only this daemon takes it.
fn own_program() -> PathBuf {
    own_copy("cases.c")
}

/// Makes a copy of a program with a name of its own.
pub(crate) fn own_copy(source: &str) -> PathBuf {
    let program = scratch("program");
    copy(&build(source), &program);
    program
}

pub(crate) fn finish(guest: Guest, program: &Path) {
    let (code, signal, _) = guest.finish();
    assert_eq!((code, signal), (Some(0), None));
    fs::remove_file(program).unwrap();
}

#[test]
fn a_target_is_optimized_adopted_undone_and_started_warm() {
    let program = own_program();
    let mut daemon = Daemon::for_program(&program, "[harm]\njudge = false\n");
    let guest = Guest::working(&program, &["spin"], 1);
    let pid = guest.pid();
    daemon.start();
    daemon.comes_to(pid, "optimized");
    guest.progresses(1);
    let status = daemon.whet(&["status", &guest.arg(), "--format", "json"]).exits(0).json();
    assert_eq!(status["targets"][0]["state"], "optimized");
    assert_eq!(status["daemon"]["targets"][0]["state"], "optimized");
    let metrics = || fs::read_to_string(daemon.folder.join("metrics")).unwrap_or_default();
    wait_until("a rebuild in the metrics", || metrics().contains("whet_rebuilds_total 1"));
    // The target's own metrics, in both forms.
    let figure = |text: &str, name: &str| {
        let begin = format!("{name}{{pid=\"{pid}\",exe=\"{}\"", program.display());
        let line = text.lines().find(|l| l.starts_with(&begin))?;
        line.rsplit_once(' ')?.1.parse::<f64>().ok()
    };
    wait_until("its journal in the metrics", || figure(&metrics(), "whet_target_generation") == Some(1.0));
    let answer = daemon.ask("whet.Metrics", &Value::Null).unwrap();
    let open = answer["parameters"]["text"].as_str().unwrap();
    for text in [&metrics(), open] {
        assert!(figure(text, "whet_target_stops_total").unwrap() >= 2.0, "{text}");
        let longest = figure(text, "whet_target_longest_stop_seconds").unwrap();
        assert!(longest > 0.0 && longest < 60.0, "{text}");
        assert!(figure(text, "whet_target_mapped_bytes").unwrap() >= 4096.0, "{text}");
        assert_eq!(figure(text, "whet_target_state"), Some(1.0), "{text}");
    }
    assert!(open.ends_with("# EOF\n") && !metrics().contains("EOF"), "{open}");
    // Only one daemon can use a socket.
    daemon.whet(&["start"]).exits(6);
    daemon.whet(&["start", "--foreground"]).exits(6);

    // Killed and started again, the daemon finds the target by its journal and changes nothing.
    daemon.kill();
    daemon.start();
    assert!(daemon.comes_to(pid, "optimized").contains("found"), "{}", daemon.log());
    // A target that was undone by hand is left alone, also by a later daemon, until it is redone by hand.
    daemon.whet(&["undo", &guest.arg()]).exits(0);
    assert_eq!(daemon.comes_to(pid, "undone"), "by hand");
    daemon.kill();
    daemon.start();
    assert_eq!(daemon.comes_to(pid, "undone"), "by hand");
    daemon.whet(&["redo", &guest.arg()]).exits(0);
    wait_until("optimized again", || {
        let answer = daemon.whet(&["status", &guest.arg(), "--format", "json"]).json();
        answer["targets"][0]["state"] == "optimized"
    });
    daemon.whet(&["stop"]).exits(0);
    daemon.whet(&["stop"]).exits(12);
    assert!(daemon.child.take().unwrap().wait().unwrap().success());
    assert_eq!(tracers(pid), Vec::<i32>::new());
    guest.progresses(1);

    // A second process of the same build gets the profile at once.
    daemon.start();
    let second = Guest::working(&program, &["spin"], 1);
    daemon.comes_to(second.pid(), "optimized");
    assert!(daemon.log().contains("warm, by the profile"), "{}", daemon.log());
    drop(second);

    // With the kill-switch file, everything is undone and nothing is started.
    fs::write(daemon.folder.join("off"), "").unwrap();
    daemon.comes_to(pid, "undone");
    daemon.whet(&["optimize", &guest.arg()]).exits(5);
    assert_eq!(changed_text(pid), Vec::<String>::new());
    finish(guest, &program);
}

#[test]
fn harm_is_undone_within_a_minute() {
    let program = own_program();
    let mut daemon = Daemon::for_program(&program, "[harm]\nwithin = \"8s\"\nmin_gain_percent = 100.0\n");
    daemon.bad_layout = true;
    let guest = Guest::working(&program, &["serve"], 1);
    daemon.start();
    let mut last = (String::new(), String::new());
    wait_until("a verdict", || {
        last = daemon.state(guest.pid());
        last.0 == "undone" || last.1.contains("could not be measured")
    });
    if last.0 == "undone" {
        assert!(last.1.contains("does not pay"), "{last:?}");
        assert_eq!(changed_text(guest.pid()), Vec::<String>::new());
        assert!(daemon.log().contains("does not pay"), "it is said");
    } else {
        skip(&format!("nothing can be measured on this machine now: {}", last.1));
    }
    guest.progresses(1);
    finish(guest, &program);
}

/// This holds also for a target that is busy only part of the time, of which the samples of one second say
/// too little.
#[test]
fn a_changed_load_is_rebuilt_for() {
    let program = own_program();
    let more = "[harm]\njudge = false\n[reoptimize]\nevery = \"1s\"\nmin_interval = \"1s\"\n";
    let mut daemon = Daemon::for_program(&program, more);
    let guest = Guest::working(&program, &["now_and_then"], 1);
    daemon.start();
    daemon.comes_to(guest.pid(), "optimized");
    wait_until("a look at what fits", || daemon.target(guest.pid())["hot_share"].is_number());
    guest.go();
    wait_until("a look that reports it", || daemon.log().contains("again, as the load has changed"));
    wait_until("a second rebuild", || {
        let metrics = fs::read_to_string(daemon.folder.join("metrics")).unwrap_or_default();
        metrics.contains("whet_rebuilds_total 2")
    });
    guest.progresses(1);
    finish(guest, &program);
}

#[test]
fn a_wrong_configuration_changes_nothing() {
    let program = own_program();
    let mut daemon = Daemon::for_program(&program, "");
    let file = daemon.folder.join("whet.toml");
    let good = fs::read_to_string(&file).unwrap();
    let bad = good.replace("min_age = \"1s\"", "min_age = \"soon\"");
    fs::write(&file, &bad).unwrap();
    let answer = daemon.whet(&["start", "--foreground"]).exits(2);
    assert!(answer.stderr.contains("whet.toml:5:11: \"soon\" is no duration"), "{answer:?}");
    fs::write(&file, &good).unwrap();
    daemon.start();
    fs::write(&file, &bad).unwrap();
    let answer = daemon.ask("whet.Reload", &Value::Null).unwrap();
    assert_eq!(answer["error"], "whet.BadConfig");
    let status = daemon.ask("whet.Status", &Value::Null).unwrap();
    assert!(status["parameters"]["config_error"].as_str().unwrap().contains(":5:11:"));
    fs::write(&file, &good).unwrap();
    assert_eq!(daemon.ask("whet.Reload", &Value::Null).unwrap()["error"], Value::Null);
    for (method, error) in [("whet.Nonsense", "whet.UnknownMethod"), ("whet.StandBack", "whet.BadCall")] {
        assert_eq!(daemon.ask(method, &json!({ "pid": "x" })).unwrap()["error"], error);
    }
    assert!(
        daemon.ask("whet.Metrics", &Value::Null).unwrap()["parameters"]["text"]
            .as_str()
            .unwrap()
            .ends_with("# EOF\n")
    );
    fs::remove_file(program).unwrap();
}

/// The kill switch does not wait for the next look, which would come an hour later here.
#[test]
fn the_kill_switch_acts_between_looks() {
    let program = own_program();
    let mut daemon = Daemon::for_program(&program, "[harm]\njudge = false\n");
    let off = daemon.folder.join("off");
    let guest = Guest::working(&program, &["spin"], 1);
    let pid = guest.pid();
    daemon.start();
    daemon.comes_to(pid, "optimized");
    let file = daemon.folder.join("whet.toml");
    let often = fs::read_to_string(&file).unwrap();
    let rarely = often.replace("every = \"200ms\"", "every = \"1h\"").replace("\"600ms\"", "\"10m\"");
    assert_ne!(rarely, often);
    let looks = || {
        let text = daemon.ask("whet.Metrics", &Value::Null).unwrap()["parameters"]["text"].to_string();
        let rest = text.split_once("whet_looks_total ").unwrap().1;
        rest.chars().take_while(char::is_ascii_digit).collect::<String>()
    };
    let reload = |text: &str| {
        fs::write(&file, text).unwrap();
        let before = looks();
        assert_eq!(daemon.ask("whet.Reload", &Value::Null).unwrap()["error"], Value::Null);
        wait_until("the look after that", || looks() != before);
    };
    reload(&rarely);
    fs::write(&off, "").unwrap();
    assert_eq!(daemon.comes_to(pid, "undone"), "the kill-switch file exists");
    assert_eq!(changed_text(pid), Vec::<String>::new());
    fs::remove_file(&off).unwrap();
    daemon.comes_to(pid, "optimized");

    // The unit `whet-off.service` undoes everything for the file as well, by `whet undo --all`.
    fs::write(&off, "").unwrap();
    let answer = daemon.ask("whet.StandBack", &json!({ "pid": null, "wish": "undo" })).unwrap();
    assert_eq!(answer["error"], Value::Null);
    whet(&["undo", &guest.arg()]).exits(0);
    daemon.comes_to(pid, "undone");
    assert_eq!(changed_text(pid), Vec::<String>::new());
    fs::remove_file(&off).unwrap();
    daemon.comes_to(pid, "optimized");

    // A worker that would sample for ten minutes is ended too.
    let second = Guest::working(&program, &["spin"], 1);
    fs::remove_dir_all(daemon.folder.join("state")).unwrap();
    reload(&often.replace("\"600ms\"", "\"10m\""));
    daemon.comes_to(second.pid(), "profiling");
    reload(&rarely);
    fs::write(&off, "").unwrap();
    daemon.comes_to(pid, "undone");
    daemon.comes_to(second.pid(), "watching");
    drop(second);
    finish(guest, &program);
}

#[test]
fn a_target_that_has_ended_is_in_no_gauge() {
    let program = own_program();
    let mut daemon = Daemon::for_program(&program, "");
    let guest = Guest::working(&program, &["spin"], 1);
    let pid = guest.pid();
    daemon.start();
    wait_until("the target", || daemon.target(pid)["state"] == "watching" || !daemon.target(pid).is_null());
    finish(guest, &program);
    daemon.comes_to(pid, "lost");
    let answer = daemon.ask("whet.Metrics", &Value::Null).unwrap();
    let metrics = answer["parameters"]["text"].as_str().unwrap();
    let mut gauge = metrics.lines().filter(|l| l.starts_with("whet_targets{"));
    assert!(gauge.all(|l| l.ends_with(" 0")), "{metrics}");
    assert!(!metrics.contains("whet_target_"), "{metrics}");
    assert!(metrics.contains("\nwhet_targets_ended_total 1\n"), "{metrics}");
}
