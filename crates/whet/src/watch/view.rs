//! What a frame of the live view shows.

use crate::human;
use crate::text::{bytes, cut, file_name, percent, printable};
use anstyle::{AnsiColor, Style};
use engine::{StatusReport, TargetState, TargetStatus};
use std::collections::BTreeMap;
use std::time::Instant;

/// What frames remember: CPU time by process, and when that was read.
#[derive(Debug, Default)]
pub struct View {
    cpu: BTreeMap<i32, (f64, Instant)>,
}

/// The columns with their widths; numbers stand at the right.
const HEAD: [(&str, usize, bool); 9] = [
    ("PID", 8, true),
    ("PROGRAM", 16, false),
    ("STATE", 11, false),
    ("SINCE (UTC)", 12, false),
    ("CPU", 6, true),
    ("COVERAGE", 8, true),
    ("CLONED", 7, true),
    ("CLONES", 9, true),
    ("STOP", 8, true),
];

impl View {
    /// Lines for a terminal of so many columns and lines.
    pub fn frame(&mut self, r: &StatusReport, (columns, lines): (usize, usize), colour: bool) -> Vec<String> {
        let now = Instant::now();
        let mut rows = vec![
            (Style::new().bold(), human::headline(r)),
            (Style::new(), String::new()),
            (Style::new().underline(), row(&HEAD.map(|(name, _, _)| name.to_owned()))),
        ];
        let before = std::mem::take(&mut self.cpu);
        for t in &r.targets {
            let rate = t.cpu_seconds.and_then(|cpu| {
                let (then, at) = before.get(&t.pid)?;
                let seconds = now.duration_since(*at).as_secs_f64();
                (seconds > 0.0 && cpu >= *then).then(|| (cpu - then) / seconds)
            });
            if let Some(cpu) = t.cpu_seconds {
                self.cpu.insert(t.pid, (cpu, now));
            }
            rows.push((style(t.state), row(&cells(t, rate))));
            if let Some(why) = why(t) {
                rows.push((Style::new().dimmed(), format!("{:8}  {why}", "")));
            }
        }
        if r.unreadable > 0 {
            rows.push((Style::new().dimmed(), human::unreadable(r)));
        }
        // The last line is for how to end it.
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
}

fn row(cells: &[String; 9]) -> String {
    let mut out = String::new();
    for (cell, (_, width, right)) in cells.iter().zip(HEAD) {
        let cell = cut(cell, width);
        out.push_str(&if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") });
        out.push_str("  ");
    }
    out.trim_end().to_owned()
}

fn cells(t: &TargetStatus, rate: Option<f64>) -> [String; 9] {
    let none = || "-".to_owned();
    let built = t.generation > 0;
    [
        t.pid.to_string(),
        printable(file_name(&t.exe)),
        t.state.word().to_owned(),
        t.since.get(5..16).map_or_else(none, |s| s.replace('T', " ")),
        rate.map_or_else(none, |r| format!("{:.0}%", r * 100.0)),
        t.coverage.map_or_else(none, percent),
        if built { format!("{}/{}", t.cloned, t.cloned + t.refused) } else { none() },
        if built { bytes(t.code_bytes) } else { none() },
        t.stop_ms.map_or_else(none, |ms| format!("{ms:.1} ms")),
    ]
}

/// Why something was left alone, most first, and who is at work.
fn why(t: &TargetStatus) -> Option<String> {
    let mut reasons: Vec<(&String, &usize)> = t.refusals.iter().collect();
    reasons.sort_by_key(|(name, n)| (std::cmp::Reverse(**n), name.as_str()));
    let told: Vec<String> = reasons.iter().map(|(name, n)| format!("{name} {n}")).collect();
    let left = (!told.is_empty()).then(|| format!("left alone: {}", told.join(", ")));
    let by = t.worked_on_by.map(|by| format!("worked on by whet, pid {by}"));
    let both: Vec<String> = by.into_iter().chain(left).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

/// Colour is never alone in what it says: the state's word is there.
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
            stop_ms: Some(2.31),
            cpu_seconds: Some(cpu),
            worked_on_by: None,
        }
    }

    fn report(targets: Vec<TargetStatus>) -> StatusReport {
        StatusReport { targets, unreadable: 0 }
    }

    #[test]
    fn a_frame_fits_its_terminal() {
        let mut view = View::default();
        let all = report((0..50).map(|i| target(i, 1.0)).collect());
        for (columns, lines) in [(80, 24), (20, 5), (1, 1), (200, 3)] {
            let frame = view.frame(&all, (columns, lines), false);
            assert!(frame.len() <= lines.max(2), "{} of {lines}", frame.len());
            assert!(frame.iter().all(|l| l.chars().count() <= columns), "{frame:?}");
            assert!(!frame.iter().any(|l| l.contains('\x1b')), "{frame:?}");
        }
        assert!(view.frame(&all, (80, 24), false).iter().any(|l| l.contains("lines more")));
    }

    #[test]
    fn what_a_row_says() {
        let mut view = View::default();
        view.frame(&report(vec![target(7, 1.0)]), (200, 24), false);
        std::thread::sleep(std::time::Duration::from_millis(5));
        let text = view.frame(&report(vec![target(7, 1.001)]), (200, 24), false).join("\n");
        for word in
            ["optimized", "11-22 06:10", "93.4%", "812/840", "412 KB", "2.3 ms", "unwind_disagrees 25, entry"]
        {
            assert!(text.contains(word), "{word} in {text}");
        }
        let row = text.lines().find(|l| l.contains("812/840")).unwrap();
        assert_eq!(row.matches('%').count(), 2, "a rate of CPU time: {row}");
        let coloured = view.frame(&report(vec![target(7, 1.001)]), (200, 24), true).join("\n");
        assert!(coloured.contains("\x1b[32m") && coloured.contains("\x1b[0m"), "{coloured:?}");
    }
}
