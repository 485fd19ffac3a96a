//! Ctrl-C in the midst of each scenario, then `resume`.
//!
//! The short form interrupts one scenario of each kind while it measures. The scenarios of a kind share the
//! code that starts the server and the load, and so the code that ends both. The long form, `WHET_STRESS=1`,
//! interrupts all of them, and at more moments.

use crate::support::long::Long;
use crate::support::processes::{Process, descendants, running};
use crate::support::tables::small_tables;
use crate::support::{count, lab, left_behind, prepared, records, run, whet};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// A scenario in small.
struct Small {
    name: &'static str,
    /// The programs without which it is skipped: each by the paths that it may have.
    needs: &'static [&'static [&'static str]],
    /// Whether the short form has it, as the one of its kind.
    is_short: bool,
    /// Whether it measures a server of the MySQL family.
    is_database: bool,
    options: &'static [&'static str],
    pairs: usize,
    steps: usize,
}

const MARIADB: &[&str] = &["/usr/sbin/mariadbd"];
const SYSBENCH: &[&str] = &["/usr/bin/sysbench"];
const OTHER: Small =
    Small { name: "", needs: &[], is_short: false, is_database: false, options: &[], pairs: 5, steps: 2 };
const DATABASE: Small = Small { needs: &[MARIADB, SYSBENCH], is_database: true, ..OTHER };

/// All scenarios. The pairs of a step last seconds, so that a busy machine lets the test see the first window
/// before the step ends.
const ALL: [Small; 10] = [
    // The load is a process of its own.
    Small {
        name: "stalls",
        is_short: true,
        options: &["--tests=oltp_point_select", "--threads=1,2", "--tables=1", "--rows=1000", "--window=0.1"],
        ..DATABASE
    },
    Small {
        name: "oltp-rw",
        options: &["--threads=1,2", "--tables=1", "--rows=1000", "--window=0.1"],
        // Two loads.
        steps: 4,
        ..DATABASE
    },
    Small {
        name: "fixed-rate",
        options: &["--threads=2", "--tables=1", "--rows=1000", "--rate=100", "--window=0.1"],
        steps: 1,
        ..DATABASE
    },
    // Windows end when the work is done, which is soon.
    Small { name: "scaling", is_short: true, options: &["--cpus=1", "--threads=1,2"], pairs: 60, ..DATABASE },
    // The load is the lab's own, and the data is checked before and after.
    Small {
        name: "tpcc",
        needs: &[MARIADB],
        is_short: true,
        options: &["--warehouses=1", "--shrink=100", "--threads=1,2", "--window=0.1"],
        ..DATABASE
    },
    // The server is a family of processes.
    Small {
        name: "pgbench",
        needs: &[&["/usr/lib/postgresql"]],
        is_short: true,
        options: &["--tests=select-only", "--scale=1", "--threads=1,2", "--window=0.1"],
        ..OTHER
    },
    // The server is one process.
    Small {
        name: "redis",
        needs: &[&["/usr/bin/redis-server"]],
        is_short: true,
        options: &["--threads=1,2", "--keys=100", "--window=0.1"],
        ..OTHER
    },
    Small {
        name: "memcached",
        needs: &[&["/usr/bin/memcached"]],
        options: &["--threads=1,2", "--keys=100", "--window=0.1"],
        ..OTHER
    },
    Small {
        name: "web",
        needs: &[&["/usr/sbin/nginx"]],
        options: &["--servers=nginx", "--threads=1,2", "--files=3", "--window=0.1"],
        ..OTHER
    },
    Small {
        name: "interpreters",
        needs: &[&["/usr/bin/python3"]],
        options: &["--languages=python", "--window=0.1"],
        steps: 1,
        ..OTHER
    },
];

/// When the interrupt comes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Moment {
    /// The run's folder is there, and no step has begun: servers are set up and filled.
    Setup,
    /// The first step has begun, and has no window.
    WarmUp,
    /// whet samples the server. At all other moments the run is an A/A control.
    Sampling,
    /// A window is measured.
    Window,
    /// The first step is done.
    Later,
}

impl Moment {
    /// Returns whether a run has come this far.
    fn has_come(self, out: &Path) -> bool {
        let records = records(out);
        match self {
            Self::Setup => out.join("work").exists(),
            Self::WarmUp => count(&records, "begin") > 0,
            Self::Sampling => {
                let log = fs::read_to_string(out.join("commands.log")).unwrap_or_default();
                log.contains("/whet optimize ")
            }
            Self::Window => count(&records, "window") > 0,
            Self::Later => count(&records, "done") > 0,
        }
    }
}

impl Small {
    /// Returns whether all of its programs are here. Otherwise prints which is not.
    fn is_here(&self) -> bool {
        let missing = self.needs.iter().find(|paths| !paths.iter().any(|p| Path::new(p).exists()));
        if let Some(paths) = missing {
            println!("skipped: {} needs {}", self.name, paths.join(" or "));
        }
        missing.is_none()
    }

    /// Starts a run that is to be interrupted at a moment. `dir` takes its data, where that is generated.
    fn start(&self, moment: Moment, dir: &Path) -> Long {
        let mut options: Vec<OsString> = self.options.iter().map(Into::into).collect();
        options.push(format!("--pairs={}", self.pairs).into());
        if moment == Moment::Sampling {
            options.push("--sampling=5".into());
        } else {
            options.push("--null".into());
        }
        if self.is_database {
            options.push("--buffer-pool=64".into());
            options.extend(prepared::options().map(OsString::from));
        }
        if self.name == "scaling" {
            let tables = dir.join(self.name);
            if !tables.exists() {
                small_tables(&tables);
            }
            options.push(format!("--data={}", tables.display()).into());
        } else {
            options.push("--settle=0.2".into());
        }
        Long::in_session(self.name, options)
    }
}

/// Waits for the moment, and returns the descendants that the lab has then.
fn wait_for(moment: Moment, long: &mut Long, name: &str) -> BTreeSet<Process> {
    let until = Instant::now() + Duration::from_secs(120);
    while !moment.has_come(&long.out) {
        assert!(long.child.try_wait().unwrap().is_none(), "{name} ended early: {}", long.err());
        assert!(Instant::now() < until, "{name}: no {moment:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    descendants(pid_of(long))
}

fn pid_of(long: &Long) -> i32 {
    long.child.id().try_into().unwrap()
}

/// Interrupts a run at a moment, as a terminal does: the signal goes to the process group of the lab. Checks
/// what the interrupt leaves.
fn interrupt(small: &Small, moment: Moment, dir: &Path) -> Long {
    let name = small.name;
    let mut long = small.start(moment, dir);
    let known = wait_for(moment, &mut long, name);
    long.interrupt_group();
    let code = long.child.wait().unwrap().code();
    // The children have ended before the lab, so nothing is waited for here.
    let left = running(pid_of(&long), &known);
    let err = long.err();
    assert_eq!(code, Some(11), "{name}, {moment:?}: {err}");
    assert!(err.contains("what was measured is kept"), "{name}, {moment:?}: {err}");
    assert_eq!(left, Vec::<String>::new(), "{name}, {moment:?}");
    assert_eq!(left_behind(&long.out), Vec::<String>::new(), "{name}, {moment:?}");
    assert!(!long.out.join("work").exists(), "{name}, {moment:?}: the server's data is still there");
    if moment != Moment::Setup {
        assert!(!known.is_empty(), "{name}: the lab has no children");
        let html = fs::read_to_string(long.out.join("report.html")).unwrap();
        assert!(html.contains("Not whole"), "{name}, {moment:?}");
    }
    long
}

/// Resumes an interrupted run, and checks that all steps are in the report.
fn resume(small: &Small, moment: Moment, long: &Long) {
    let name = small.name;
    let before = records(&long.out);
    let done = count(&before, "done");
    assert!(done < small.steps, "{name}: the run had ended before the interrupt");
    if moment == Moment::Window {
        assert!(count(&before, "window") > 0, "{name}: windows are lost");
    }
    let (code, _, err) = run(lab().arg("resume").arg(&long.out));
    assert_eq!(code, Some(0), "{name}, {moment:?}: {err}");
    let after = records(&long.out);
    assert_eq!(after[..before.len()], before[..], "{name}, {moment:?}: what was there is still there");
    assert_eq!(count(&after, "done"), small.steps, "{name}, {moment:?}");
    let (code, out, err) = run(lab().arg("report").arg(&long.out).args(["--format", "json"]));
    assert_eq!(code, Some(0), "{name}, {moment:?}: {err}");
    let summary: Value = serde_json::from_str(&out).unwrap();
    let points = summary["points"].as_array().unwrap();
    let whole = points.iter().filter(|p| p["whole"] == true && p["broken"].is_null()).count();
    assert_eq!((points.len(), whole), (small.steps, small.steps), "{name}, {moment:?}: {out}");
    let html = fs::read_to_string(long.out.join("report.html")).unwrap();
    assert!(!html.contains("Not whole"), "{name}, {moment:?}");
}

fn interrupt_and_resume(small: &Small, moment: Moment, dir: &Path) {
    resume(small, moment, &interrupt(small, moment, dir));
}

/// Interrupts a run twice. The second signal ends the lab at once, and the kernel ends its children. A lab that
/// has ended by then has done so in order.
fn interrupt_twice_and_resume(small: &Small, moment: Moment, dir: &Path) {
    let name = small.name;
    let mut long = small.start(moment, dir);
    let known = wait_for(moment, &mut long, name);
    long.interrupt_group();
    std::thread::sleep(Duration::from_millis(5));
    long.interrupt_group();
    let status = long.child.wait().unwrap();
    assert!(status.signal() == Some(2) || status.code() == Some(11), "{name}: {status}");
    let until = Instant::now() + Duration::from_secs(20);
    while !running(pid_of(&long), &known).is_empty() {
        assert!(Instant::now() < until, "{name}: {:?}", running(pid_of(&long), &known));
        std::thread::sleep(Duration::from_millis(50));
    }
    resume(small, moment, &long);
}

fn is_long_form() -> bool {
    let is_long = std::env::var_os("WHET_STRESS").is_some();
    if !is_long {
        println!("skipped in part: the long form is WHET_STRESS=1");
    }
    is_long
}

/// Does `check` with all scenarios of the form that have the moment. They mostly wait, so they run at once.
fn each_scenario(moment: Moment, check: fn(&Small, Moment, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    let chosen = |small: &&Small| small.is_short || is_long_form();
    // A scenario of one step has no moment between steps.
    let has_moment = |small: &&Small| moment != Moment::Later || small.steps > 1;
    let here: Vec<&Small> = ALL.iter().filter(chosen).filter(has_moment).filter(|s| s.is_here()).collect();
    std::thread::scope(|scope| {
        for small in here {
            let dir = dir.path();
            scope.spawn(move || check(small, moment, dir));
        }
    });
}

#[test]
fn no_run_of_the_lab_is_missing_here() {
    let (_, help, _) = run(lab().arg("--help"));
    let list = help.split_once("Commands:").unwrap().1.split_once("Options:").unwrap().0;
    let names =
        list.lines().filter_map(|l| l.strip_prefix("  ")?.split(' ').next().filter(|w| !w.is_empty()));
    let no_runs = ["resume", "report", "compare", "index", "power", "help"];
    let found: BTreeSet<&str> = names.filter(|name| !no_runs.contains(name)).collect();
    assert_eq!(found, ALL.iter().map(|small| small.name).collect());
}

#[test]
fn ctrl_c_while_a_window_is_measured() {
    each_scenario(Moment::Window, interrupt_and_resume);
}

#[test]
fn ctrl_c_at_other_moments_and_twice() {
    if is_long_form() {
        for moment in [Moment::Setup, Moment::WarmUp, Moment::Later] {
            each_scenario(moment, interrupt_and_resume);
        }
        each_scenario(Moment::Window, interrupt_twice_and_resume);
    }
}

/// whet is a child of the lab as well. It undoes its work before it ends.
#[test]
fn ctrl_c_while_whet_samples() {
    let stalls = &ALL[0];
    if is_long_form() && stalls.is_here() && whet().is_some() {
        let dir = tempfile::tempdir().unwrap();
        interrupt_and_resume(stalls, Moment::Sampling, dir.path());
    }
}
