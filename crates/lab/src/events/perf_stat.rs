//! Hardware events of the server, counted by `perf stat` if the CPU has counters.

use super::perf_output::parse;
use super::table::{Slots, Table};
use crate::command::{Commands, Running, Spec, find};
use crate::error::Error;
use crate::record::Window;
use rustix::process::Signal;
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

/// Returns the command that counts the events of processes. `None` if perf is not installed.
pub(super) fn spec(pids: &[i32], length: Option<Duration>, table: &Table) -> Option<Spec> {
    let mut spec = Spec::new(find("perf")?).args(["stat", "-x", ";"]);
    for group in table.groups {
        // A weak group: where the CPU has too few counters for it, its events are counted in turns.
        let events = match group {
            [one] => (*one).to_owned(),
            several => format!("{{{}}}:W", several.join(",")),
        };
        spec = spec.arg("-e").arg(events);
    }
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let spec = spec.args(["-p", &pids.join(",")]).ends_by(Signal::INT);
    Some(match length {
        Some(length) => spec.args(["--", "sleep"]).arg(length.as_secs_f64().to_string()),
        None => spec,
    })
}

/// A running `perf stat`.
#[derive(Debug)]
pub struct Counting {
    running: Running,
    slots: Slots,
    /// Whether perf ends by itself.
    ends: bool,
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
        let Some(spec) = spec(pids, length, table) else { return Ok(None) };
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
