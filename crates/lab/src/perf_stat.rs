//! Hardware events of the server, counted by `perf stat` if the CPU has counters.

use crate::command::{Commands, Running, Spec, find};
use crate::error::Error;
use std::collections::BTreeMap;
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

/// Events in perf's spelling. Events that a CPU does not have are left out of the result.
const EVENTS: &str =
    "instructions:u,cycles:u,L1-icache-load-misses:u,iTLB-load-misses:u,branch-misses:u,branches:u";

/// A running `perf stat`.
#[derive(Debug)]
pub struct Counting(Running);

impl Counting {
    /// Starts `perf stat` on a process for the length of a window. Returns `None` if perf is not installed.
    ///
    /// # Errors
    /// An error if perf cannot be started.
    pub fn begin(commands: &Commands, pid: i32, window: Duration) -> Result<Option<Self>, Error> {
        let Some(perf) = find("perf") else { return Ok(None) };
        let spec = Spec::new(perf)
            .args(["stat", "-x", ";", "-e", EVENTS, "-p", &pid.to_string(), "--", "sleep"])
            .arg(window.as_secs_f64().to_string());
        Ok(Some(Self(commands.spawn(&spec, Stdio::null(), Stdio::piped())?)))
    }

    /// Waits for perf and returns the counts by event.
    ///
    /// # Errors
    /// [`Error::Interrupted`] on an interrupt; an error of the log.
    pub fn finish(mut self, commands: &Commands) -> Result<BTreeMap<String, f64>, Error> {
        let mut text = String::new();
        if let Some(mut stream) = self.0.stderr() {
            let _ = stream.read_to_string(&mut text);
        }
        commands.interrupt.check()?;
        commands.note(&format!("> perf\n{text}"))?;
        Ok(parse(&text))
    }
}

/// Parses lines of the form `COUNT;UNIT;EVENT;…`. Events that were not counted have words in place of the
/// count, and are left out.
fn parse(text: &str) -> BTreeMap<String, f64> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(';');
            let count: f64 = fields.next()?.parse().ok()?;
            let event = fields.nth(1)?.trim_end_matches(":u");
            Some((event.to_owned(), count))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn counts_and_events_that_were_not_counted() {
        let text = "1234567;;instructions:u;200345678;100.00;1.52;insn per cycle\n<not supported>;;iTLB-load-misses:u;0;100.00;;\n<not counted>;;cycles:u;0;0.00;;\n42;;branch-misses:u;200345678;66.70;0.2;of all branches\n";
        let counts = parse(text);
        assert_eq!(counts.len(), 2);
        assert!(
            (counts["instructions"] - 1_234_567.0).abs() < 0.5
                && (counts["branch-misses"] - 42.0).abs() < 0.5
        );
    }
}
