//! Shared by the lab's tests: runs of the program, folders, and a run made up without a server.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part, and a test may fail")]

pub mod long;
pub mod prepared;
pub mod processes;
pub mod running;
pub mod tables;

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Returns the command of the lab, without standard input and without a password in its environment.
pub fn lab() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_whet-lab"));
    command.stdin(Stdio::null()).env_remove("WHET_LAB_PASSWORD");
    command
}

/// Runs a command to its end. Returns its exit code, standard output and standard error.
pub fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (
        status.code(),
        String::from_utf8_lossy(&stdout).into_owned(),
        String::from_utf8_lossy(&stderr).into_owned(),
    )
}

/// Returns the path of whet beside the lab, where a build of the whole workspace puts it. Otherwise prints that the
/// test is skipped.
pub fn whet() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_whet-lab")).with_file_name("whet");
    if !path.is_file() {
        println!("skipped: whet is not built here; a test run of the whole workspace builds it");
        return None;
    }
    Some(path)
}

/// Returns the raw data of a run, without lines that cannot be read.
pub fn records(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("data.jsonl")).unwrap_or_default();
    text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect()
}

/// Counts the records of a kind.
pub fn count(records: &[Value], kind: &str) -> usize {
    records.iter().filter(|r| r["kind"] == kind).count()
}

/// Returns the processes whose command line names `folder`: what a run has left behind.
pub fn left_behind(folder: &Path) -> Vec<String> {
    let wanted = folder.display().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let own = entry.file_name().to_str() == Some(&std::process::id().to_string());
        if !own && line.contains(&wanted) {
            found.push(line);
        }
    }
    found
}

/// Writes a made-up run of `stalls` in the lab's form. `rates` has threads, and queries with and without
/// clones.
pub fn made_up(folder: &Path, rates: &[(usize, u64, u64)], whole: bool) {
    fs::create_dir_all(folder).unwrap();
    let head = json!({
        "version": 1, "lab": "0", "whet": "whet 0", "begun": "2026-01-01T00:00:00Z", "seed": 5,
        "scenario": { "stalls": {
            "common": { "server_binary": [], "dsn": [], "datadir": [], "port": null, "server_option": [], "buffer_pool": null,
                "whet": null, "null": false, "sysbench": null, "warm_up": 1.0, "sampling": null },
            "tests": ["oltp_read_only"], "threads": [1], "tables": 1, "rows": null, "pairs": 9, "window": 0.2, "settle": 0.03 } },
        "machine": { "cpu": "Some <CPU> & more", "cpus": 2, "memory_mib": 1024, "kernel": "6", "virtual_machine": true,
            "governor": null, "steal": 0.0, "busy": 0.0, "noise": 0.01, "pmu": false,
            "findings": ["Too few </script> CPUs."] }
    });
    fs::write(folder.join("run.json"), head.to_string()).unwrap();
    let mut lines = String::new();
    let mut add = |step: &Value, event: Value| {
        let mut record = event;
        record["step"] = step.clone();
        lines += &format!("{record}\n");
    };
    for (threads, with, without) in rates {
        let step = json!({ "server": "mariadb-1.2.3", "load": "oltp_read_only", "threads": threads });
        add(
            &step,
            json!({ "kind": "begin", "at": "2026-01-01T00:00:00Z", "server_version": "1.2.3", "exe": "/x" }),
        );
        for pair in 0..9_u64 {
            for (side, queries) in [("with", *with), ("without", *without)] {
                add(
                    &step,
                    json!({ "kind": "window", "pair": pair, "side": side, "seconds": 1.0, "queries": queries + pair, "cpu": 1.0,
                    "user": 0.7, "system": 0.3, "idle": 0.5, "steal": 0.0, "capacity": 2.0 }),
                );
            }
        }
        if whole {
            add(&step, json!({ "kind": "done", "at": "2026-01-01T00:01:00Z", "retried": 0 }));
        }
    }
    fs::write(folder.join("data.jsonl"), lines).unwrap();
}
