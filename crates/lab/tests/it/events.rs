//! Events, with a `perf` that prints what the files in `tests/perf` have, and a `whet` that changes nothing.

use crate::support::{count, lab, records, run};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Runs the command that it is given to time, and prints a file.
const PERF: &str = "#!/bin/sh
while [ \"$1\" != -- ]; do shift; done
shift
\"$@\"
cat \"$0.txt\" >&2
";

/// Its comparison allows no conclusion (7). In the shortest windows it sees no work, and has no model then.
const WHET: &str = r#"#!/bin/sh
events='"instructions":1000,"taken_branches":100,"icache_misses":20,"itlb_misses":3,"itlb_walks":1,"btb_misses":2,"direction_misses":4,"target_misses":1,"return_misses":0'
case $1 in
    --version) echo 'whet 0' ;;
    status) echo '{"targets":[{"state":null}]}' ;;
    measure) case $* in *'--window 0.05'*) echo '{"qps":null}'; exit 7 ;; esac
        echo "{\"modelled\":{\"cpu\":\"some CPU\",\"coverage\":0.9,\"with\":{$events},\"without\":{$events}}}"; exit 7 ;;
    *) echo '{}' ;;
esac
"#;

fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Measures two steps with a perf that prints `said`. Returns the records, the findings and the page.
fn measured(said: &str) -> Option<(Vec<Value>, String, String)> {
    if !Path::new("/usr/bin/redis-server").exists() {
        println!("skipped: no redis-server here");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let (perf, whet, out) = (dir.path().join("perf"), dir.path().join("whet"), dir.path().join("run"));
    script(&perf, PERF);
    script(&whet, WHET);
    fs::write(dir.path().join("perf.txt"), said).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    // On a busy host a shorter window may see no work, and is in no chart then.
    let options = ["redis", "--threads=1,2", "--keys=100", "--pairs=3", "--control=0", "--window=0.3"];
    let mut command = lab();
    command.env("PATH", path).args(options).args(["--warm-up=0.5", "--seed=7"]);
    let (code, _, err) = run(command.arg("--whet").arg(whet).arg("--out").arg(&out));
    assert_eq!(code, Some(0), "{err}");
    let head: Value = serde_json::from_str(&fs::read_to_string(out.join("run.json")).unwrap()).unwrap();
    let findings = head["machine"]["findings"].to_string();
    Some((records(&out), findings, fs::read_to_string(out.join("report.html")).unwrap()))
}

#[test]
fn counted_events_are_in_each_window_and_nothing_is_modelled() {
    let Some((records, findings, html)) = measured(include_str!("../perf/skylake-multiplexed.txt")) else {
        return;
    };
    assert!(!findings.contains("modelled"), "{findings}");
    assert_eq!((count(&records, "window"), count(&records, "modelled")), (12, 0));
    for window in records.iter().filter(|r| r["kind"] == "window") {
        assert_eq!(
            (&window["events"]["instructions"], &window["counted"]),
            (&1_843_902_117.0.into(), &(66.6 / 100.0).into())
        );
    }
    assert!(html.contains(": instructions per cycle") && !html.contains("MODELLED"), "no chart: {records:?}");
    assert!(html.contains(">67%<"), "multiplexing is shown");
}

#[test]
fn the_model_replaces_counters_that_are_refused_and_the_report_says_why() {
    let Some((records, findings, html)) = measured(include_str!("../perf/refused.txt")) else { return };
    assert!(
        findings.contains("perf may not count events here (kernel.perf_event_paranoid is "),
        "{findings}"
    );
    assert!(html.contains("perf may not count events here") && html.contains("MODELLED, not measured"));
    assert!(
        html.contains(": cycles per instruction (modelled)") && !html.contains(": instructions per cycle")
    );
    // Each number of threads has its own.
    assert_eq!((count(&records, "done"), count(&records, "modelled")), (2, 2));
    assert!(
        records.iter().all(|r| r["events"].as_object().is_none_or(serde_json::Map::is_empty)),
        "{records:?}"
    );
}
