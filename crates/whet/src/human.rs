//! Answers for people. Their form may change; scripts read `--format json`.

use crate::text::{bytes, file_name, many, percent, printable};
use crate::{anatomy, shares};
use engine::{
    CodeFiles, DoctorReport, DynoReport, ExplainReport, OptimizeReport, PerfMap, PhaseTime, ProfileUse,
    ShownProfile, ShownSite, StatusReport, TargetStatus, ToggleAnswer, VerifyReport,
};
use std::collections::BTreeMap;
use std::fmt::Write;

pub fn optimize(r: &OptimizeReport, verbose: bool) -> String {
    let mut s = format!(
        "{} (pid {}) is {}: generation {}, {} of {} rebuilt, {} of clones{}",
        r.exe,
        r.pid,
        r.state.word(),
        r.generation,
        r.functions.cloned,
        many(r.functions.hot, "hot function"),
        bytes(r.code_bytes),
        if r.huge_page { " on huge pages" } else { "" }
    );
    if let Some(earlier) = r.reused {
        let why = if r.is_full { "no room is left for new clones" } else { "they serve this load" };
        let _ = write!(s, "\n  {why}: the clones of generation {earlier} fit best and are in force again");
    }
    if r.samples > 0 {
        let _ = write!(
            s,
            "\n  they hold {} of its user time ({} of the program's own), by {} of {}",
            percent(r.coverage),
            percent(r.coverage_main),
            many(r.samples, "sample"),
            r.source
        );
    }
    if let Some(t) = &r.user_time {
        let _ = write!(s, "\n  {}", shares::line(t));
    }
    if let Some(p) = &r.profile {
        s.push_str(&used_profile(p));
    }
    let _ = write!(s, "\n  redirects: {}", counts(&r.redirects));
    if r.skipped_redirects > 0 {
        let _ = write!(s, ", {} left out", r.skipped_redirects);
    }
    if !r.refusals.is_empty() {
        let _ = write!(s, "\n  left alone: {}", counts(&r.refusals));
    }
    if r.not_drawn > 0 {
        let _ = write!(s, "\n  not drawn: {} more functions; ", r.not_drawn);
        s.push_str("a shuffle clones at most 16 MiB of code");
    }
    if let Some(CodeFiles { mapped, left_out: Some(why), .. }) = &r.code_files {
        let what = if *mapped { "tools that open files by path do not find" } else { "no file holds" };
        let _ = write!(s, "\n  note: {what} the clones: {why}");
    }
    s.push_str(&perf_map(r.perf_map.as_ref()));
    if verbose {
        let phase = |t: &PhaseTime| format!("{} {:.2} s", t.phase.replace('_', " "), t.seconds);
        let _ = write!(s, "\n  phases: {}", r.phases.iter().map(phase).collect::<Vec<_>>().join(", "));
    }
    let _ = write!(
        s,
        "\n  stopped for {:.1} ms; {:.1} s in all\n  `whet undo {}` undoes this",
        r.stop_ms.max, r.seconds, r.pid
    );
    s
}

fn used_profile(p: &ProfileUse) -> String {
    let mut s = format!("\n  by a profile: {} of its functions used, {} stale, ", p.functions, p.stale);
    let _ = write!(s, "{} of other builds, {} left alone", p.foreign, p.refused);
    if p.found_again > 0 {
        let _ = write!(s, "; {} are of another build and were found again", p.found_again);
    }
    s
}

pub fn toggle(a: &ToggleAnswer) -> String {
    let mut s = format!(
        "pid {} is {}: {}, stopped for {:.1} ms",
        a.pid,
        a.state.word(),
        many(a.redirects.values().sum::<usize>(), "redirect"),
        a.stop_ms.max
    );
    if a.skipped_redirects > 0 {
        let _ = write!(s, "; {} left as they were", a.skipped_redirects);
    }
    s.push_str(&perf_map(a.perf_map.as_ref()));
    s
}

/// Returns a note if a perf map was not written.
fn perf_map(map: Option<&PerfMap>) -> String {
    let why = map.and_then(|m| m.left_out.as_deref().map(|why| (&m.file, why)));
    why.map_or_else(String::new, |(file, why)| {
        format!("\n  note: perf cannot name clones: {file} was not written: {why}")
    })
}

/// Returns how many processes are in which state, as the first line of the status.
pub fn headline(r: &StatusReport) -> String {
    if r.targets.is_empty() {
        return "whet: nothing is optimized, nothing undone".to_owned();
    }
    let mut states: Vec<(&str, usize)> = Vec::new();
    for t in &r.targets {
        let word = t.state.word();
        match states.iter_mut().find(|(w, _)| *w == word) {
            Some((_, n)) => *n += 1,
            None => states.push((word, 1)),
        }
    }
    let all: Vec<String> = states.iter().map(|(word, n)| format!("{n} {word}")).collect();
    format!("whet: {}", all.join(", "))
}

pub fn unreadable(r: &StatusReport) -> String {
    let next = if engine::is_root() { "" } else { "; run as root to see them" };
    format!("({} could not be read{next})", many(r.unreadable, "process"))
}

/// Formats the status: the headline, then each process with its figures.
pub fn status(r: &StatusReport) -> String {
    let mut s = headline(r);
    for t in &r.targets {
        let _ = write!(s, "\n{}", target(t));
    }
    if r.unreadable > 0 {
        let _ = write!(s, "\n{}", unreadable(r));
    }
    s
}

/// Formats the status of one process.
pub fn target(t: &TargetStatus) -> String {
    let mut s = format!("{}, pid: {}, {}", printable(file_name(&t.exe)), t.pid, t.state.word());
    let _ = write!(s, "\n    {}", figures(t));
    if let Some(t) = &t.user_time {
        let _ = write!(s, "\n    {}", shares::line(t));
    }
    s
}

fn figures(t: &TargetStatus) -> String {
    let mut s = match t.generation {
        0 => format!("since {}", t.since),
        g => format!(
            "generation {g} since {}: {} in {} of clones",
            t.since,
            many(t.cloned, "function"),
            bytes(t.code_bytes)
        ),
    };
    if let Some(share) = t.coverage {
        let _ = write!(s, ", {} of its samples", percent(share));
    }
    if t.generation > 0 {
        let _ = write!(s, ", {} left alone, {}", t.refused, many(t.redirects, "redirect"));
    }
    if let Some(ms) = t.stop_ms {
        let _ = write!(s, ", stopped for {ms:.1} ms");
    }
    if let Some(first) = t.changed_originals.first() {
        let more = match t.changed_originals.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let _ = write!(
            s,
            "\n  changed by another program since: {}{more}; a probe or hook there has no effect while clones run; it has \
             after `whet undo {}`, or once the daemon has rebuilt without the function",
            printable(first),
            t.pid
        );
    }
    if t.is_full {
        s.push_str(", no room for new clones: rebuilds use earlier ones");
    }
    if t.newer_journal.is_some() {
        s.push_str(", installed by a newer whet: this one can only undo it");
    }
    if let Some(by) = t.worked_on_by {
        let _ = write!(s, ", worked on by pid {by}");
    }
    s
}

pub fn verify(r: &VerifyReport) -> String {
    let mut s = format!(
        "pid {}: {} of code compared, {}{}, {}",
        r.pid,
        bytes(r.compared_bytes),
        many(r.live_redirects, "live redirect"),
        if r.kept_redirects > 0 { " and those that unwinders need" } else { "" },
        if r.identical {
            "everything else identical to the files"
        } else {
            "and bytes that no redirect explains:"
        }
    );
    for u in &r.unexpected {
        let _ = write!(s, "\n  {} {}: {}: {}", u.module, u.at, many(u.len, "byte"), u.what);
    }
    for m in &r.uncompared {
        let _ = write!(s, "\n  {m}: not compared, because its file is not available");
    }
    s
}

pub fn explain(r: &ExplainReport) -> String {
    if r.functions.iter().any(|f| f.anatomy.is_some()) {
        return anatomy::function(r);
    }
    let mut s = format!(
        "{} (pid {}) is {}, generation {}: {}, {} in cloned functions ({} of the program's own)",
        r.exe,
        r.pid,
        r.state.word(),
        r.generation,
        many(r.samples, "sample"),
        percent(r.coverage),
        percent(r.coverage_main)
    );
    if let Some(t) = &r.user_time {
        let _ = write!(s, "\n{}", shares::table(t));
    }
    if !r.refusals.is_empty() {
        let _ = write!(s, "\nleft alone: {}", counts(&r.refusals));
    }
    if let Some(d) = &r.dyno {
        s.push_str(&dyno(d));
    }
    let _ = write!(s, "\n{:>9}  {:<9}  {:>8}  {:>8}  function", "samples", "state", "bytes", "warm");
    for f in &r.functions {
        let state = match (&f.clone, &f.reason) {
            (Some(_), _) => "cloned",
            (None, _) => "refused",
        };
        let size = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |b| b.to_string());
        let (here, warm) = (size(f.clone_bytes), size(f.warm_bytes));
        let _ = write!(s, "\n{:>9}  {state:<9}  {here:>8}  {warm:>8}  {}", f.samples, printable(&f.name));
        if let Some(reason) = &f.reason {
            let what = if f.clone.is_some() { "entry not redirected" } else { "left alone" };
            let _ = write!(s, " ({what}: {reason})");
        }
    }
    s
}

pub fn profile(p: &ShownProfile) -> String {
    let mut s = format!(
        "{} of {}, {}: {} in {:.1} s, counted for {:.1} s",
        if p.runs == 1 { "one run".to_owned() } else { format!("{} runs", p.runs) },
        p.exes.join(", "),
        p.when,
        many(p.samples, "sample"),
        p.sampled_seconds,
        p.counted_seconds
    );
    if p.left_out > 0 {
        let _ = write!(s, "; {} had no room", many(p.left_out, "function"));
    }
    for m in &p.modules {
        let _ = write!(
            s,
            "\n{} {}: {} ({} counted), {}, {}, {}",
            m.name,
            m.build_id,
            many(m.functions, "function"),
            m.counted,
            many(m.samples, "sample"),
            many(m.blocks, "block"),
            many(m.edges, "edge")
        );
        let _ = write!(
            s,
            "\n{:>9} {:>13} {:>13} {:>7} {:>6}  function",
            "samples", "entered", "executed", "blocks", "edges"
        );
        for f in &m.top {
            let name = if f.name.is_empty() { &f.at } else { &f.name };
            let how = if f.counted { "" } else { " (inferred)" };
            let _ = write!(
                s,
                "\n{:>9} {:>13} {:>13} {:>7} {:>6}  {name}{how}",
                f.samples, f.entered, f.executed, f.blocks, f.edges
            );
            f.sites.iter().for_each(|site| indirect_call(&mut s, site));
        }
    }
    s
}

/// Formats the destinations of an indirect call.
fn indirect_call(s: &mut String, site: &ShownSite) {
    let _ = write!(s, "\n{:>57}{} of {}:", "", site.at, many(site.looks, "look"));
    for (how, places) in [("to", &site.callees), ("by table", &site.tables)] {
        for p in places {
            let _ = write!(s, " {how} {} {:.1}%", p.name, p.share * 100.0);
        }
    }
}

/// Returns names and figures, before and after, of what a layout makes the CPU do. An indented row is a part
/// of the row above.
pub fn dyno_rows(d: &DynoReport) -> [(&'static str, u64, u64); 21] {
    let (b, a) = (&d.before, &d.after);
    [
        ("instructions", b.instructions, a.instructions),
        ("bytes", b.bytes, a.bytes),
        ("taken branches", b.taken_branches, a.taken_branches),
        ("branches", b.total_branches, a.total_branches),
        ("  conditional", b.conditional_branches, a.conditional_branches),
        ("    taken", b.taken_conditional_branches, a.taken_conditional_branches),
        ("    not taken", b.non_taken_conditional_branches, a.non_taken_conditional_branches),
        ("  unconditional", b.unconditional_branches, a.unconditional_branches),
        ("fall-throughs", b.fall_throughs, a.fall_throughs),
        ("indirect jumps", b.indirect_jumps, a.indirect_jumps),
        ("calls", b.calls, a.calls),
        ("  indirect", b.indirect_calls, a.indirect_calls),
        ("  of PLT stubs", b.plt_calls, a.plt_calls),
        ("returns", b.returns, a.returns),
        ("jumps inserted", b.inserted_jumps, a.inserted_jumps),
        ("jumps dropped", b.dropped_jumps, a.dropped_jumps),
        ("exits to originals", b.exits_to_original, a.exits_to_original),
        ("cache lines", b.lines, a.lines),
        ("  that hold 99%", b.hot_lines, a.hot_lines),
        ("pages", b.pages, a.pages),
        ("  that hold 99%", b.hot_pages, a.hot_pages),
    ]
}

/// Formats [`dyno_rows`] as a table.
fn dyno(d: &DynoReport) -> String {
    let mut s = format!(
        "\nexecuted in {}\n{:<20}{:>16}{:>16}",
        many(d.functions, "counted function"),
        "",
        "before",
        "after"
    );
    for (name, before, after) in dyno_rows(d) {
        let _ = write!(s, "\n{name:<20}{before:>16}{after:>16}");
        if before > 0 {
            let _ = write!(s, "{:>+9.1}%", (after as f64 / before as f64 - 1.0) * 100.0);
        }
    }
    s.push('\n');
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
        "whet cannot work here until what is MISSING is provided."
    });
    s
}

fn counts(map: &BTreeMap<String, usize>) -> String {
    map.iter().map(|(k, n)| format!("{k} {n}")).collect::<Vec<_>>().join(", ")
}
