//! Metrics as text, in the two forms that collectors read: the text format 0.0.4 of Prometheus, for files, and
//! `OpenMetrics` 1.0 (<https://github.com/prometheus/OpenMetrics>).
//!
//! The forms differ in the name of a family. `OpenMetrics` leaves out the suffix of its samples (`_total`,
//! `_info`); Prometheus names the samples.

use std::fmt::Write;

/// The most characters of a label's value. A longer value is cut off.
const LONGEST_LABEL: usize = 128;

/// The type of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A sum that only grows while the daemon runs.
    Counter,
    /// A value of the moment.
    Gauge,
    /// Labels with the value 1.
    Info,
}

impl Kind {
    fn suffix(self) -> &'static str {
        match self {
            Kind::Counter => "_total",
            Kind::Gauge => "",
            Kind::Info => "_info",
        }
    }
}

/// The names and values of a sample's labels.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// All samples of one name.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Family {
    /// The name, without the suffix of its type.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
    pub(crate) samples: Vec<(Labels, f64)>,
}

impl Family {
    /// Creates a family with one sample without labels.
    pub(crate) fn single(name: &'static str, kind: Kind, help: &'static str, value: f64) -> Self {
        Self { name, kind, help, samples: vec![(Vec::new(), value)] }
    }

    /// Returns the name of its samples.
    pub(crate) fn sample_name(&self) -> String {
        format!("{}{}", self.name, self.kind.suffix())
    }
}

/// Returns the text format 0.0.4 of Prometheus.
pub(crate) fn prometheus(families: &[Family]) -> String {
    let mut out = String::new();
    for f in families {
        let name = f.sample_name();
        let kind = if f.kind == Kind::Counter { "counter" } else { "gauge" };
        write_family(&mut out, f, &name, kind);
    }
    out
}

/// Returns `OpenMetrics` text.
pub(crate) fn open_metrics(families: &[Family]) -> String {
    let mut out = String::new();
    for f in families {
        let kind = match f.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Info => "info",
        };
        write_family(&mut out, f, f.name, kind);
    }
    out.push_str("# EOF\n");
    out
}

/// Writes a family. A family without samples is left out.
fn write_family(out: &mut String, f: &Family, name: &str, kind: &str) {
    if f.samples.is_empty() {
        return;
    }
    let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {kind}", f.help);
    for (labels, value) in &f.samples {
        out.push_str(&f.sample_name());
        for (i, (label, text)) in labels.iter().enumerate() {
            let _ = write!(out, "{}{label}=\"{}\"", if i == 0 { '{' } else { ',' }, escaped(text));
        }
        let _ = writeln!(out, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

/// Returns a label's value as both forms write it, cut off at [`LONGEST_LABEL`]. Control characters become
/// spaces: they say nothing, and readers treat them differently.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(LONGEST_LABEL) {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
#[path = "exposition_tests.rs"]
pub(crate) mod tests;
