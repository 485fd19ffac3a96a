//! Scenarios without a database, scaled down, on the real programs; and failures.

use crate::support::long::Long;
use crate::support::{count, lab, left_behind, records, run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Makes an A/A control, and returns its records.
fn works(scenario: &str, more: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let options = ["--null", "--seed=7", "--warm-up=0.5", "--pairs=2", "--window=0.2"];
    let (code, _, err) = run(lab().arg(scenario).args(options).args(more).arg("--out").arg(&out));
    assert_eq!(code, Some(0), "{err}");
    assert!(!out.join("work").exists(), "the program's folder is still there");
    assert_eq!(left_behind(&out), Vec::<String>::new());
    let records = records(&out);
    // On a busy machine a single window may be too short for a unit of work.
    for done in records.iter().filter(|r| r["kind"] == "done") {
        let windows: Vec<&Value> =
            records.iter().filter(|r| r["kind"] == "window" && r["step"] == done["step"]).collect();
        assert!(windows.iter().any(|w| w["queries"].as_u64() > Some(0)), "{windows:?}");
        assert!(windows.iter().all(|w| w["cpu"].as_f64() > Some(0.0)), "{windows:?}");
    }
    records
}

fn is_here(program: &str) -> bool {
    let is_here = ["/usr/bin", "/usr/sbin"].iter().any(|d| Path::new(d).join(program).exists());
    if !is_here {
        println!("skipped: no {program} here");
    }
    is_here
}

#[test]
fn key_value_servers() {
    for (scenario, program) in [("redis", "redis-server"), ("memcached", "memcached")] {
        if is_here(program) {
            let records = works(scenario, &["--threads=1,2", "--keys=100", "--writes=0,50"]);
            assert_eq!((count(&records, "done"), count(&records, "window")), (4, 16));
            let loads: BTreeSet<&str> = records.iter().filter_map(|r| r["step"]["load"].as_str()).collect();
            assert_eq!(loads.into_iter().collect::<Vec<_>>(), ["0% writes", "50% writes"]);
            let kinds: BTreeSet<&str> =
                records.iter().filter(|r| r["kind"] == "latency").filter_map(|r| r["of"].as_str()).collect();
            assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["read", "write"]);
        }
    }
}

#[test]
fn web_servers_with_and_without_tls() {
    for (server, programs) in
        [("nginx", &["nginx"][..]), ("haproxy", &["haproxy"]), ("haproxy-nginx", &["haproxy", "nginx"])]
    {
        if programs.iter().all(|program| is_here(program)) {
            let servers = format!("--servers={server}");
            for tls in [None, Some("--tls")] {
                let mut more = vec!["--threads=2", "--files=3", &servers];
                more.extend(tls);
                let records = works("web", &more);
                assert_eq!((count(&records, "done"), count(&records, "window")), (1, 4));
                let load = records.first().and_then(|r| r["step"]["load"].as_str()).unwrap();
                assert_eq!(load.ends_with(", TLS"), tls.is_some());
            }
        }
    }
}

#[test]
fn interpreters() {
    let all = [("python", "python3"), ("ruby", "ruby"), ("php", "php"), ("sqlite", "sqlite3")];
    let here: Vec<&str> =
        all.iter().filter(|(_, program)| is_here(program)).map(|(language, _)| *language).collect();
    if !here.is_empty() {
        let records = works("interpreters", &[&format!("--languages={}", here.join(","))]);
        assert_eq!((count(&records, "done"), count(&records, "window")), (here.len(), here.len() * 4));
    }
}

#[test]
fn missing_programs_and_languages_are_named_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    for (scenario, more, code, said) in [
        ("interpreters", "--languages=cobol", 2, "is none of python, ruby, php, sqlite"),
        ("interpreters", "--languages=python,ruby", 3, "apt-get install ruby"),
        ("redis", "--keys=1", 3, "apt-get install redis-server"),
        ("memcached", "--keys=1", 3, "apt-get install memcached"),
    ] {
        // Debian has none of these programs in /usr/sbin, where the lab looks as well.
        let mut command = lab();
        command.env("PATH", "/nowhere").args([scenario, "--null", more]).arg("--out").arg(&out);
        let (found, _, err) = run(&mut command);
        assert!(found == Some(code) && err.contains(said) && !out.exists(), "{found:?} {err}");
    }
}

/// The test uses a server: an interpreter ends by itself when its output has no reader.
#[test]
fn the_program_ends_with_a_killed_lab() {
    if !is_here("redis-server") {
        return;
    }
    let mut long = Long::of("redis", ["--threads=1", "--settle=0.2"].map(Into::into));
    long.wait_for_data();
    let children = long.children();
    assert_eq!(children.len(), 1);
    long.child.kill().unwrap();
    long.child.wait().unwrap();
    long.nothing_is_left();
    assert!(!Path::new(&format!("/proc/{}/exe", children[0])).exists());
}

#[test]
fn a_crashed_program_is_named_and_the_run_can_be_resumed() {
    if !is_here("python3") {
        return;
    }
    let mut long = Long::of("interpreters", ["--languages=python", "--settle=0.2"].map(Into::into));
    long.wait_for_data();
    Long::signal(long.children()[0], "KILL");
    let code = long.child.wait().unwrap().code();
    let err = long.err();
    assert!(code == Some(10) && err.contains("ended in the middle of the run"), "{code:?} {err}");
    long.nothing_is_left();
    let (code, _, err) = run(lab().arg("resume").arg(&long.out));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(count(&records(&long.out), "done"), 1);
}
