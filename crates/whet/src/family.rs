//! Commands on a whole family of processes.

use crate::cli::How;
use crate::output::Output;
use crate::text::many;
use crate::{daemon, human, interrupt, progress};
use ::daemon::states::Wish;
use engine::{
    Error, ExitCode, FamilyOptimized, FamilyRedone, FamilyStatus, FamilyUndone, FamilyVerified, LeftAlone,
    MembersReport, Pid, TargetState,
};
use std::collections::BTreeMap;
use std::fmt::Write;

pub fn optimize(pid: i32, verbose: bool, how: &How, out: &Output) -> Result<ExitCode, Error> {
    let progress = progress::Bar::new(out);
    let options = how.options()?;
    interrupt::listen(&options.interrupt);
    let report = engine::optimize_family(Pid(pid), &options, &mut |p| progress.show(&p))?;
    progress.done();
    out.answer(&report, |FamilyOptimized { parent, members: m }| {
        let (pid, parent) = (parent.pid, human::optimize(parent, verbose));
        let members = members(m);
        format!("{parent}\nits family: {members}\n  `whet undo --family {pid}` takes it out of all of them")
    });
    // After a signal, the other members are left alone.
    let was_interrupted = report.members.left_alone.iter().any(|left| left.code == "interrupted");
    Ok(if was_interrupted { ExitCode::Interrupted } else { ExitCode::Ok })
}

pub fn undo(pid: i32, out: &Output) -> Result<ExitCode, Error> {
    let parent = engine::family_parent(Pid(pid))?;
    let told = daemon::stand_back(Some(parent.0), Wish::Undo, out);
    let answer = daemon::patiently(told, || engine::undo_family(parent))?;
    out.answer(&answer, undone);
    Ok(if answer.left.is_empty() { ExitCode::Ok } else { ExitCode::UndoFailed })
}

pub fn redo(pid: i32, out: &Output) -> Result<ExitCode, Error> {
    let parent = engine::family_parent(Pid(pid))?;
    let told = daemon::stand_back(Some(parent.0), Wish::Redo, out);
    let answer = daemon::patiently(told, || engine::redo_family(parent))?;
    out.answer(&answer, |FamilyRedone { parent, members: m }| {
        format!("{}\nits family: {}", human::toggle(parent), members(m))
    });
    Ok(ExitCode::Ok)
}

pub fn status(pid: i32, out: &Output) -> Result<ExitCode, Error> {
    let status = engine::family_status(Pid(pid))?;
    out.answer(&status, shown);
    Ok(ExitCode::Ok)
}

pub fn verify(pid: i32, out: &Output) -> Result<ExitCode, Error> {
    let report = engine::verify_family(Pid(pid))?;
    out.answer(&report, verified);
    Ok(if report.identical { ExitCode::Ok } else { ExitCode::VerifyFailed })
}

fn members(m: &MembersReport) -> String {
    let counts = [
        (m.installed, "got the clones"),
        (m.redone, "had them and got them in force"),
        (m.in_force, "had them in force"),
        (m.not_from_files.len(), "have them in anonymous memory"),
        (m.ended, "ended meanwhile"),
        (m.left_alone.len(), "left alone"),
    ];
    let counts: Vec<String> =
        counts.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    let mut s = many(m.found, "member");
    if !counts.is_empty() {
        let _ = write!(s, ": {}", counts.join(", "));
    }
    if m.stops > 0 {
        let _ = write!(
            s,
            "; {}, at most {:.1} ms; {:.1} s in all",
            many(m.stops, "stop"),
            m.stop_ms.max,
            m.seconds
        );
    }
    s + &reasons(&m.not_from_files) + &reasons(&m.left_alone)
}

/// Returns one line for each reason, with how many members it concerns and the first of them.
fn reasons(left: &[LeftAlone]) -> String {
    let mut by_reason: BTreeMap<(&str, &str), (usize, &LeftAlone)> = BTreeMap::new();
    for one in left {
        by_reason.entry((&one.code, &one.why)).or_insert((0, one)).0 += 1;
    }
    by_reason.values().fold(String::new(), |mut s, (n, first)| {
        let _ = write!(s, "\n  {}, such as {}: {}", many(*n, "member"), first.pid, first.why);
        s
    })
}

fn undone(a: &FamilyUndone) -> String {
    let parent = match &a.parent_answer {
        Some(answer) => human::toggle(answer),
        None => format!("pid {} held no clones", a.parent),
    };
    format!(
        "{parent}\nits family: {} undone of {}; stopped for {:.1} ms; {:.1} s in all{}",
        a.undone,
        many(a.found, "member"),
        a.stop_ms.max,
        a.seconds,
        reasons(&a.left)
    )
}

fn shown(s: &FamilyStatus) -> String {
    let parent = match &s.parent {
        Some(parent) => human::target(parent),
        None => format!("pid {} holds no clones", s.pid),
    };
    let states: Vec<String> = s.states.iter().map(|(word, n)| format!("{n} {word}")).collect();
    let mut text = format!("{parent}\nits family: {}", many(s.members.len(), "member"));
    if !states.is_empty() {
        let _ = write!(text, ": {}", states.join(", "));
    }
    for m in s.members.iter().filter(|m| m.state != Some(TargetState::Optimized)) {
        let word = m.state.map_or("untouched", TargetState::word);
        let _ = write!(text, "\n  pid {}: {word}", m.pid);
    }
    text
}

fn verified(r: &FamilyVerified) -> String {
    let mut s = human::verify(&r.parent);
    let _ = write!(
        s,
        "\nits family: {}, {} in all processes; {} with other differences",
        many(r.members, "member"),
        many(r.live_redirects, "live redirect"),
        r.different.len()
    );
    for report in &r.different {
        let _ = write!(s, "\n{}", human::verify(report));
    }
    s
}
