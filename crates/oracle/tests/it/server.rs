//! A private database server under load: hot functions are examined, and no query fails.

use crate::support::{shuffled, stress};
use engine::{OptimizeOptions, Pid, optimize};
use oracle::{Options, Report, examine};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A command of `tools/server.py`. When it gets SIGTERM, it ends what it started.
struct Tool(Child);

impl Tool {
    fn start(args: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/server.py");
        Self(Command::new("python3").arg(script).args(args).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }

    /// Ends it. Returns whether it succeeded, and its output.
    fn end(mut self) -> (bool, String) {
        self.tell();
        let mut said = String::new();
        self.0.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().success(), said)
    }

    fn tell(&self) {
        // SIGTERM.
        Command::new("kill").arg(self.0.id().to_string()).status().unwrap();
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            self.tell();
            let _ = self.0.wait();
        }
    }
}

/// Returns the value of a key in one flat JSON object.
fn field<'a>(json: &'a str, key: &str) -> &'a str {
    let (_, rest) = json.split_once(&format!("\"{key}\": ")).unwrap_or_else(|| panic!("no {key} in {json}"));
    rest.split([',', '}']).next().unwrap().trim_matches('"')
}

fn look(pid: Pid, what: &str, options: &Options) -> Report {
    let start = Instant::now();
    let report = examine(pid, options).unwrap();
    for m in report.mismatches.iter().chain(&report.by_code_address) {
        eprintln!("{m}");
    }
    eprintln!("{what}, {:.0} s: {report}", start.elapsed().as_secs_f64());
    report
}

#[test]
fn a_server_under_load() {
    let mut server = Tool::start(&["run"]);
    let running = server.line();
    let pid = Pid(field(&running, "pid").parse().unwrap());
    let socket = ["--socket", field(&running, "socket"), "--tables", "2", "--rows", "5000"];
    let prepared = Tool::start(&[&["prepare"], &socket[..]].concat()).0.wait().unwrap();
    assert!(prepared.success());
    let kind = ["--test", "oltp_read_only", "--threads", "4"];
    let load = Tool::start(&[&["load"], &socket[..], &kind].concat());

    let sampling = Duration::from_secs(2);
    // Without counting, the targets of indirect calls are not known.
    let counting = Some(Duration::from_secs(1));
    optimize(pid, &OptimizeOptions { sampling, counting, ..OptimizeOptions::default() }, &mut |_| {})
        .unwrap();
    let options = if stress() {
        Options { max_functions: 600, max_steps: 20_000, time: Duration::from_secs(300), seed: 1 }
    } else {
        Options { max_functions: 40, max_steps: 2000, time: Duration::from_secs(25), seed: 1 }
    };
    let hot = look(pid, "hot functions", &options);
    let mut reports = vec![hot];
    if stress() {
        optimize(pid, &shuffled(1), &mut |_| {}).unwrap();
        reports.push(look(pid, "all functions in random order", &options));
    }

    let (clean, said) = load.end();
    assert!(clean, "queries failed: {said}");
    eprintln!("{} queries", field(&said, "queries"));
    drop(server);
    assert!(reports[0].inlined > 0 && reports[0].guards > 0, "{}", reports[0]);
    // Of all functions in random order, most run too rarely to be met in the given time.
    let enough = if stress() { [300, 100] } else { [20, 0] };
    for (report, enough) in reports.iter().zip(enough) {
        assert!(report.mismatches.is_empty(), "{} mismatches", report.mismatches.len());
        assert!(report.examined.len() >= enough, "{report}");
    }
}
