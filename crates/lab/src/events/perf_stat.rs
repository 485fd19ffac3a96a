//! Hardware events of the server, counted by `perf stat` if the CPU has counters.

use super::counts::Counts;
use super::table::Table;
use crate::command::{Commands, Running, Spec, find};
use crate::error::Error;
use crate::record::Window;
use rustix::process::Signal;
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

/// A running `perf stat`.
#[derive(Debug)]
pub struct Counting {
    running: Running,
    slots: f64,
    /// Whether perf ends by itself.
    ends: bool,
}

/// The counts of a window.
#[derive(Clone, PartialEq, Default, Debug)]
struct Counted {
    /// Counts by event. An event that was counted for a part of the window is scaled up by perf.
    events: Counts,
    /// The smallest share of the window for which an event was counted. Below 1, the kernel took turns
    /// between groups of events (multiplexing).
    share: f64,
}

impl Counting {
    /// Starts `perf stat` on processes, for the length of a window if that is known beforehand, else until
    /// [`Counting::finish`]. Returns `None` if perf is not installed.
    ///
    /// # Errors
    /// An error if perf cannot be started.
    pub fn begin(
        commands: &Commands,
        pids: &[i32],
        length: Option<Duration>,
        table: &Table,
    ) -> Result<Option<Self>, Error> {
        let Some(perf) = find("perf") else { return Ok(None) };
        let mut spec = Spec::new(perf).args(["stat", "-x", ";"]);
        for group in table.groups {
            // A weak group: where the CPU has too few counters for it, its events are counted in turns.
            let events = match group {
                [one] => (*one).to_owned(),
                several => format!("{{{}}}:W", several.join(",")),
            };
            spec = spec.arg("-e").arg(events);
        }
        let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
        let mut spec = spec.args(["-p", &pids.join(",")]).ends_by(Signal::INT);
        if let Some(length) = length {
            spec = spec.args(["--", "sleep"]).arg(length.as_secs_f64().to_string());
        }
        let running = commands.spawn(&spec, Stdio::null(), Stdio::piped())?;
        Ok(Some(Self { running, slots: table.slots, ends: length.is_some() }))
    }

    /// Waits for perf, or ends it, and adds the counts to the window.
    ///
    /// # Errors
    /// [`Error::Interrupted`] on an interrupt; an error of the log.
    pub fn finish(mut self, commands: &Commands, window: &mut Window) -> Result<(), Error> {
        if !self.ends {
            self.running.end(Duration::from_secs(5));
        }
        let mut text = String::new();
        if let Some(mut stream) = self.running.stderr() {
            let _ = stream.read_to_string(&mut text);
        }
        commands.interrupt.check()?;
        commands.note(&format!("> perf\n{text}"))?;
        let counted = parse(&text, self.slots);
        window.counted = Some(counted.share).filter(|_| !counted.events.is_empty());
        window.events = counted.events;
        Ok(())
    }
}

/// Parses lines of the form `COUNT;UNIT;EVENT;TIME;PERCENT;…`. Events that were not counted have words in
/// place of the count, and are left out.
fn parse(text: &str, slots: f64) -> Counted {
    let mut counted = Counted { events: Counts::new(), share: 1.0 };
    for line in text.lines() {
        let fields: Vec<&str> = line.split(';').collect();
        let [count, _, event, _, percent, ..] = fields.as_slice() else { continue };
        let Ok(count) = count.parse::<f64>() else { continue };
        let event = event.trim_end_matches(":u");
        counted.events.insert(event.to_owned(), count);
        if let Ok(percent) = percent.parse::<f64>() {
            counted.share = counted.share.min(percent / 100.0);
        }
    }
    if let Some(cycles) =
        counted.events.get("cycles").filter(|_| counted.events.contains_key("frontend-stalls"))
    {
        counted.events.insert("frontend-slots".to_owned(), cycles * slots);
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::super::METRICS;
    use super::parse;

    /// Made up, in the form that perf prints, with the second group counted for two thirds of the time.
    const TEXT: &str = "1000000;;instructions:u;200345678;100.00;1.25;insn per cycle
800000;;cycles:u;200345678;100.00;;
200000;;branches;200345678;100.00;;
4000;;branch-misses;200345678;100.00;2.0;of all branches
90000;;taken-branches;200345678;100.00;;
30000;;L1-icache-load-misses;133345678;66.60;;
5000;;iTLB-second-level-hits;133345678;66.60;;
<not counted>;;iTLB-load-misses;0;0.00;;
<not supported>;;LLC-loads;0;100.00;;
960000;;frontend-stalls;133345678;66.60;;
";

    #[test]
    fn counts_become_figures_and_what_was_not_counted_is_left_out() {
        let counted = parse(TEXT, 4.0);
        assert!((counted.share - 0.666).abs() < 1e-9, "{counted:?}");
        let figures: Vec<String> = METRICS
            .iter()
            .map(|m| (m.of)(&counted.events).map_or("–".to_owned(), |v| format!("{v:.2}")))
            .collect();
        assert_eq!(figures, ["0.80", "30.00", "–", "–", "4.00", "90.00", "–", "30.00"]);
    }
}
