//! Answers for people. Free to change; scripts read `--format json`.

use engine::{DoctorReport, ExplainReport, OptimizeReport, StatusReport, ToggleAnswer, VerifyReport};
use std::collections::BTreeMap;
use std::fmt::Write;

pub fn optimize(r: &OptimizeReport) -> String {
    let mut s = format!(
        "{} (pid {}) is {}: generation {}, {} of {} hot functions rebuilt, {} of clones{}",
        r.exe,
        r.pid,
        r.state.word(),
        r.generation,
        r.functions.cloned,
        r.functions.hot,
        bytes(r.code_bytes),
        if r.huge_page { " on huge pages" } else { "" }
    );
    if r.samples > 0 {
        let _ = write!(
            s,
            "\n  they hold {} of its user time ({} of the program's own), by {} samples of {}",
            percent(r.coverage),
            percent(r.coverage_main),
            r.samples,
            r.source
        );
    }
    let _ = write!(s, "\n  redirects: {}", counts(&r.redirects));
    if r.skipped_redirects > 0 {
        let _ = write!(s, ", {} left out", r.skipped_redirects);
    }
    if !r.refusals.is_empty() {
        let _ = write!(s, "\n  left alone: {}", counts(&r.refusals));
    }
    let _ = write!(
        s,
        "\n  stopped for {:.1} ms; {:.1} s in all\n  `whet undo {}` takes it out again",
        r.stop_ms.max, r.seconds, r.pid
    );
    s
}

pub fn toggle(a: &ToggleAnswer) -> String {
    let mut s = format!(
        "pid {} is {}: {} redirects, stopped for {:.1} ms",
        a.pid,
        a.state.word(),
        a.redirects.values().sum::<usize>(),
        a.stop_ms.max
    );
    if a.skipped_redirects > 0 {
        let _ = write!(s, "; {} left as they were", a.skipped_redirects);
    }
    s
}

pub fn status(r: &StatusReport) -> String {
    let mut s = if r.targets.is_empty() {
        "no process on this host carries a journal of whet's".to_owned()
    } else {
        let lines = r.targets.iter().map(|t| {
            format!(
                "{}, pid {}: {} since {} (generation {}, {} of clones, {} redirects)",
                t.exe,
                t.pid,
                t.state.word(),
                t.since,
                t.generation,
                bytes(t.code_bytes),
                t.redirects
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    if r.unreadable > 0 {
        let _ = write!(s, "\n({} processes could not be looked at; run as root to see them)", r.unreadable);
    }
    s
}

pub fn verify(r: &VerifyReport) -> String {
    let mut s = format!(
        "pid {}: {} of code compared, {} live redirects{}, {}",
        r.pid,
        bytes(r.compared_bytes),
        r.live_redirects,
        if r.kept_redirects > 0 { " and the one that unwinders need" } else { "" },
        if r.identical {
            "everything else identical to the files"
        } else {
            "and bytes that nobody accounts for:"
        }
    );
    for u in &r.unexpected {
        let _ = write!(s, "\n  {} {}: {} bytes: {}", u.module, u.at, u.len, u.what);
    }
    for m in &r.uncompared {
        let _ = write!(s, "\n  {m}: its file is not to be had, not compared");
    }
    s
}

pub fn explain(r: &ExplainReport) -> String {
    let mut s = format!(
        "{} (pid {}) is {}, generation {}: {} samples, {} in cloned functions ({} of the program's own)",
        r.exe,
        r.pid,
        r.state.word(),
        r.generation,
        r.samples,
        percent(r.coverage),
        percent(r.coverage_main)
    );
    if !r.refusals.is_empty() {
        let _ = write!(s, "\nleft alone: {}", counts(&r.refusals));
    }
    let _ = write!(s, "\n{:>9}  {:<9}  {:>8}  function", "samples", "state", "bytes");
    for f in &r.functions {
        let state = match (&f.clone, &f.reason) {
            (Some(_), _) => "cloned",
            (None, _) => "refused",
        };
        let size = f.clone_bytes.map_or("-".to_owned(), |b| b.to_string());
        let _ = write!(s, "\n{:>9}  {state:<9}  {size:>8}  {}", f.samples, f.name);
        if let Some(reason) = &f.reason {
            let what = if f.clone.is_some() { "entry not redirected" } else { "left alone" };
            let _ = write!(s, " ({what}: {reason})");
        }
    }
    s
}

pub fn doctor(r: &DoctorReport) -> String {
    let mut s = String::new();
    for c in &r.checks {
        let mark = match (c.ok, c.needed) {
            (true, _) => "ok     ",
            (false, true) => "MISSING",
            (false, false) => "without",
        };
        let _ = write!(s, "{mark}  {:<14} {}", c.name, c.found);
        if !c.mend.is_empty() {
            let _ = write!(s, "\n         hint: {}", c.mend);
        }
        s.push('\n');
    }
    s.push_str(if r.ok {
        "whet can work here."
    } else {
        "whet cannot work here until what is MISSING is mended."
    });
    s
}

fn counts(map: &BTreeMap<String, usize>) -> String {
    map.iter().map(|(k, n)| format!("{k} {n}")).collect::<Vec<_>>().join(", ")
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} bytes"),
        10_000..10_000_000 => format!("{} KB", n / 1000),
        _ => format!("{} MB", n / 1_000_000),
    }
}
