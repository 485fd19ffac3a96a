//! Formats the frames of the live view.

use crate::daemon::{self, FullStatus};
use crate::human;
use crate::text::{bytes, cut, file_name, percent, printable};
use ::daemon::client::AskError;
use ::daemon::proto::TargetView;
use ::daemon::states::State;
use anstyle::{AnsiColor, Style};
use engine::{TargetState, TargetStatus};
use std::collections::BTreeMap;
use std::time::Instant;

/// State between frames: CPU time by process, and when it was read.
#[derive(Debug, Default)]
pub struct View {
    cpu: BTreeMap<i32, (f64, Instant)>,
}

/// The columns: name, width, and whether the cells are aligned to the right (numbers).
const HEAD: [(&str, usize, bool); 10] = [
    ("PID", 8, true),
    ("PROGRAM", 16, false),
    ("STATE", 11, false),
    ("SINCE (UTC)", 11, false),
    ("CPU", 6, true),
    ("COVERAGE", 8, true),
    ("GAIN", 7, true),
    ("CLONED", 7, true),
    ("CLONES", 9, true),
    ("STOP", 8, true),
];

impl View {
    /// Returns the lines for a terminal of so many columns and lines; `silent` is the reason why a running
    /// daemon does not answer.
    pub fn frame(
        &mut self,
        status: &FullStatus,
        silent: Option<&AskError>,
        (columns, lines): (usize, usize),
        colour: bool,
    ) -> Vec<String> {
        let r = &status.journals;
        let mut rows = vec![(Style::new().bold(), human::headline(r))];
        let daemon = status.daemon.as_ref().map(daemon::headline).or(silent.map(ToString::to_string));
        let plain = |line: &str| (Style::new(), printable(line));
        rows.extend(daemon.iter().flat_map(|text| text.lines()).map(plain));
        rows.push((Style::new(), String::new()));
        rows.push((Style::new().underline(), row(&HEAD.map(|(name, _, _)| name.to_owned()))));
        let seen = status.daemon.as_ref().map_or(&[][..], |d| &d.targets);
        let rates = self.rates(&r.targets);
        for (t, rate) in r.targets.iter().zip(rates) {
            let seen = seen.iter().find(|v| v.pid == t.pid && v.state != State::Lost);
            rows.push((style(t.state), row(&cells(t, rate, seen))));
            rows.extend(why(t).map(|why| beneath(&why)));
            rows.extend(seen.map(|v| beneath(&format!("the daemon: {}: {}", v.state.word(), v.reason))));
        }
        // Processes that only the daemon lists: they have no clones yet, or have ended lately.
        for v in seen.iter().filter(|v| r.targets.iter().all(|t| t.pid != v.pid)) {
            rows.push((Style::new(), row(&watched(v))));
            rows.push(beneath(&v.reason));
        }
        if r.unreadable > 0 {
            rows.push((Style::new().dimmed(), human::unreadable(r)));
        }
        // The last line says how to end the view.
        let room = lines.saturating_sub(2).max(1);
        let more = rows.len().saturating_sub(room);
        if more > 0 {
            rows.truncate(room.saturating_sub(1));
            rows.push((Style::new().dimmed(), format!("… and {} lines more", more + 1)));
        }
        rows.push((Style::new().dimmed(), "Ctrl-C ends this; what is optimized stays so".to_owned()));
        rows.iter()
            .map(|(style, text)| {
                let text = cut(text, columns);
                if colour { format!("{style}{text}{style:#}") } else { text }
            })
            .collect()
    }

    /// Returns how many CPUs each target has used since the frame before.
    fn rates(&mut self, targets: &[TargetStatus]) -> Vec<Option<f64>> {
        let now = Instant::now();
        let before = std::mem::take(&mut self.cpu);
        let rate = |t: &TargetStatus| {
            let cpu = t.cpu_seconds?;
            self.cpu.insert(t.pid, (cpu, now));
            let (then, at) = before.get(&t.pid)?;
            let seconds = now.duration_since(*at).as_secs_f64();
            (seconds > 0.0 && cpu >= *then).then(|| (cpu - then) / seconds)
        };
        targets.iter().map(rate).collect()
    }
}

/// Returns a line that belongs to the line above.
fn beneath(text: &str) -> (Style, String) {
    (Style::new().dimmed(), format!("{:8}  {}", "", printable(text)))
}

fn row(cells: &[String; HEAD.len()]) -> String {
    let mut out = String::new();
    for (cell, (_, width, right)) in cells.iter().zip(HEAD) {
        let cell = cut(cell, width);
        out.push_str(&if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") });
        out.push_str("  ");
    }
    out.trim_end().to_owned()
}

fn cells(t: &TargetStatus, rate: Option<f64>, seen: Option<&TargetView>) -> [String; HEAD.len()] {
    let built = t.generation > 0;
    // After an undo, the gain that was measured before does not apply.
    let gain = seen.filter(|v| v.state == State::Optimized).and_then(|v| v.factor);
    [
        t.pid.to_string(),
        printable(file_name(&t.exe)),
        t.state.word().to_owned(),
        minute(&t.since),
        rate.map_or_else(none, |r| format!("{:.0}%", r * 100.0)),
        t.coverage.map_or_else(none, percent),
        gain.map_or_else(none, |f| format!("x{f:.2}")),
        if built { format!("{}/{}", t.cloned, t.cloned + t.refused) } else { none() },
        if built { bytes(t.code_bytes) } else { none() },
        t.stop_ms.map_or_else(none, |ms| format!("{ms:.1} ms")),
    ]
}

/// Returns the row of a process that a daemon lists and that has no clones.
fn watched(v: &TargetView) -> [String; HEAD.len()] {
    let mut cells = std::array::from_fn(|_| none());
    cells[..5].clone_from_slice(&[
        v.pid.to_string(),
        printable(file_name(&v.exe)),
        v.state.word().to_owned(),
        minute(&v.since),
        format!("{:.0}%", v.cpu_percent),
    ]);
    cells
}

fn none() -> String {
    "-".to_owned()
}

fn minute(since: &str) -> String {
    since.get(5..16).map_or_else(none, |s| printable(&s.replace('T', " ")))
}

/// Returns why functions were left alone, the most frequent reason first, and the whet that is at work.
fn why(t: &TargetStatus) -> Option<String> {
    let mut reasons: Vec<(&String, &usize)> = t.refusals.iter().collect();
    reasons.sort_by_key(|(name, n)| (std::cmp::Reverse(**n), name.as_str()));
    let listed: Vec<String> = reasons.iter().map(|(name, n)| format!("{name} {n}")).collect();
    let left = (!listed.is_empty()).then(|| format!("left alone: {}", listed.join(", ")));
    let by = t.worked_on_by.map(|by| format!("worked on by whet, pid {by}"));
    let both: Vec<String> = by.into_iter().chain(left).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

/// Returns the style of a state. Colour never says anything alone: the state's word is there too.
fn style(state: TargetState) -> Style {
    let colour = match state {
        TargetState::Optimized => AnsiColor::Green,
        TargetState::Profiling | TargetState::Counting | TargetState::Optimizing => AnsiColor::Cyan,
        TargetState::Undone => AnsiColor::Yellow,
        TargetState::Interrupted => AnsiColor::Red,
    };
    Style::new().fg_color(Some(colour.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::daemon::proto::DaemonStatus;
    use engine::StatusReport;

    fn target(pid: i32, cpu: f64) -> TargetStatus {
        TargetStatus {
            pid,
            exe: "/usr/sbin/mar\x1b[2Jiadbd".to_owned(),
            state: TargetState::Optimized,
            generation: 2,
            since: "2026-11-22T06:10:01Z".to_owned(),
            redirects: 7,
            code_bytes: 412_345,
            mapped_bytes: 8 << 20,
            cloned: 812,
            refused: 28,
            refusals: BTreeMap::from([
                ("entry_too_short".to_owned(), 3),
                ("unwind_disagrees".to_owned(), 25),
            ]),
            coverage: Some(0.934),
            coverage_main: Some(0.97),
            changed_originals: Vec::new(),
            is_full: false,
            user_time: None,
            stop_ms: Some(2.31),
            cpu_seconds: Some(cpu),
            newer_journal: None,
            worked_on_by: None,
        }
    }

    fn report(targets: Vec<TargetStatus>) -> FullStatus {
        FullStatus { journals: StatusReport { targets, unreadable: 0 }, daemon: None }
    }

    fn view_of(pid: i32, state: State, factor: Option<f64>, reason: &str) -> TargetView {
        TargetView {
            pid,
            exe: "/usr/sbin/slapd".to_owned(),
            members: 0,
            state,
            reason: reason.to_owned(),
            since: "2026-11-22T06:10:01Z".to_owned(),
            cpu_percent: 12.3,
            hot_share: None,
            factor,
            started_from: None,
        }
    }

    #[test]
    fn a_frame_fits_its_terminal() {
        let mut view = View::default();
        let all = report((0..50).map(|i| target(i, 1.0)).collect());
        for (columns, lines) in [(80, 24), (20, 5), (1, 1), (200, 3)] {
            let frame = view.frame(&all, None, (columns, lines), false);
            assert!(frame.len() <= lines.max(2), "{} of {lines}", frame.len());
            assert!(frame.iter().all(|l| l.chars().count() <= columns), "{frame:?}");
            assert!(!frame.iter().any(|l| l.contains('\x1b')), "{frame:?}");
        }
        assert!(view.frame(&all, None, (80, 24), false).iter().any(|l| l.contains("lines more")));
    }

    #[test]
    fn a_row_has_the_figures_of_its_target() {
        let mut view = View::default();
        view.frame(&report(vec![target(7, 1.0)]), None, (200, 24), false);
        std::thread::sleep(std::time::Duration::from_millis(5));
        let text = view.frame(&report(vec![target(7, 1.001)]), None, (200, 24), false).join("\n");
        for word in
            ["optimized", "11-22 06:10", "93.4%", "812/840", "412 KB", "2.3 ms", "unwind_disagrees 25, entry"]
        {
            assert!(text.contains(word), "{word} in {text}");
        }
        let row = text.lines().find(|l| l.contains("812/840")).unwrap();
        assert_eq!(row.matches('%').count(), 2, "a rate of CPU time: {row}");
        let coloured = view.frame(&report(vec![target(7, 1.001)]), None, (200, 24), true).join("\n");
        assert!(coloured.contains("\x1b[32m") && coloured.contains("\x1b[0m"), "{coloured:?}");
    }

    #[test]
    fn a_frame_has_what_the_daemon_adds() {
        let mut status = report(vec![target(7, 1.0)]);
        status.daemon = Some(DaemonStatus {
            version: String::new(),
            pid: 99,
            uptime_seconds: 1,
            switched_off: true,
            config_error: None,
            watched: 2,
            targets: vec![
                view_of(7, State::Optimized, Some(1.274), "clones hold\x1b[2J it"),
                view_of(8, State::Watching, None, "it is younger than 60 s"),
                view_of(9, State::Lost, None, "it has ended"),
            ],
        });
        let frame = View::default().frame(&status, None, (80, 24), false);
        let line =
            |word: &str| frame.iter().find(|l| l.contains(word)).unwrap_or_else(|| panic!("{frame:#?}"));
        assert!(line("kill-switch").contains("pid 99"));
        // The gain fits a terminal of 80 columns.
        assert!(line("       7  ").contains("x1.27"), "{frame:#?}");
        assert!(!frame.iter().any(|l| l.contains('\x1b')), "{frame:?}");
        assert!(line("slapd").contains("watching") && line("slapd").contains("12%"));
        line("younger than");
        assert!(line("       9  ").contains("lost"));
        status.daemon.iter_mut().flat_map(|d| &mut d.targets).for_each(|v| v.state = State::Undone);
        let frame = View::default().frame(&status, None, (80, 24), false);
        assert!(!frame.iter().any(|l| l.contains("x1.27")), "gained while in force: {frame:#?}");
        let silent = AskError::NoAnswer { socket: "/s".into(), what: "time".to_owned() };
        status.daemon = None;
        let frame = View::default().frame(&status, Some(&silent), (80, 24), false);
        assert!(frame.iter().any(|l| l.contains("the daemon at /s does not answer")), "{frame:#?}");
    }
}
