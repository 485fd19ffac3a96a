//! Reads the answer of `whet measure --format json`.

use crate::text::printable;
use engine::Error;
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Most bytes that are read of a file.
const MOST: u64 = 16 << 20;

/// A measured gain, as words.
#[derive(Debug, Serialize)]
pub struct Gain {
    /// The combined improvement factor; `None` if the measurement allows no conclusion.
    pub factor: Option<Figure>,
    /// Rows of the table: what, without, with, change.
    pub rows: Vec<(String, Figure, Figure, Figure)>,
    /// Which work was counted.
    pub work: String,
    /// Whether the load was about the same throughout.
    pub steady: bool,
    /// Says in words whether the whole interval of the factor lies above 1, below 1, or neither. An effect
    /// below `LEAST_EFFECT` counts as neither.
    pub verdict: &'static str,
    /// The process it was measured on, if that is not the process of the report.
    pub other: Option<String>,
    /// Warnings of the measurement.
    pub warnings: Vec<String>,
}

/// A figure with its interval.
#[derive(Debug, Default, Serialize)]
pub struct Figure {
    pub value: String,
    /// Empty if it is not known.
    pub interval: String,
}

/// Reads the answer in a file.
///
/// # Errors
/// [`Error::File`] if there is no such file, or it holds something else.
pub fn read(path: &Path, pid: i32) -> Result<Gain, Error> {
    text(path).and_then(|t| parse(&t, pid)).map_err(|source| Error::File { path: path.to_owned(), source })
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

fn parse(text: &str, pid: i32) -> io::Result<Gain> {
    let wrong = |why: String| io::Error::new(ErrorKind::InvalidData, why);
    let v: Value = serde_json::from_str(text)
        .map_err(|e| wrong(format!("it is no answer of `whet measure --format json`: {e}")))?;
    if let Some(e) = v["error"]["message"].as_str() {
        return Err(wrong(format!("it holds no measurement but an error: {}", printable(e))));
    }
    let Some(steady) = v["steady"].as_bool().filter(|_| v.get("combined_improvement_factor").is_some())
    else {
        let why = "it is no answer of `whet measure --format json`: `steady` and `combined_improvement_factor` are not there";
        return Err(wrong(why.to_owned()));
    };
    let factor = figure(&v["combined_improvement_factor"], 3);
    let row = |name: &str, of: &Value, digits: usize| {
        let [without, with, change] = [("without", digits), ("with", digits), ("change", 3)]
            .map(|(side, digits)| figure(&of[side], digits).unwrap_or_default());
        of.is_object().then(|| (name.to_owned(), without, with, change))
    };
    let rows = [row("Work per second", &v["qps"], 1), row("CPU seconds per second", &v["cpu_usage"], 3)];
    let of = |name: &str| v["combined_improvement_factor"][name].as_f64();
    let least = ::measure::LEAST_EFFECT;
    let warnings = v["warnings"].as_array().into_iter().flatten();
    Ok(Gain {
        verdict: match (of("value"), of("low"), of("high")) {
            (Some(f), Some(low), _) if low > 1.0 && f >= 1.0 + least => {
                "more work per CPU second with whet's code"
            }
            (Some(f), _, Some(high)) if high < 1.0 && f <= 1.0 - least => {
                "less work per CPU second with whet's code"
            }
            (_, Some(_), Some(_)) => "no difference beyond chance",
            _ => "no result",
        },
        factor,
        rows: rows.into_iter().flatten().collect(),
        work: words(&v["work"]),
        steady,
        other: v["pid"].as_i64().filter(|p| *p != i64::from(pid)).map(|p| p.to_string()),
        warnings: warnings.map(words).filter(|w| !w.is_empty()).collect(),
    })
}

/// Returns a plain string, or the field of an object that is for people.
fn words(v: &Value) -> String {
    let text = [v, &v["what"], &v["text"], &v["name"]].into_iter().find_map(Value::as_str);
    printable(text.unwrap_or_default())
}

/// Returns a plain number, or a number with its interval.
fn figure(v: &Value, digits: usize) -> Option<Figure> {
    let value = v.as_f64().or_else(|| v["value"].as_f64())?;
    let interval = v["low"].as_f64().zip(v["high"].as_f64());
    Some(Figure {
        value: format!("{value:.digits$}"),
        interval: interval.map_or(String::new(), |(low, high)| format!("{low:.digits$} – {high:.digits$}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_measure_is_read() {
        let text = r#"{"pid":7,"qps":{"without":{"value":1000.0,"low":990.0,"high":1010.0},"with":1250,"change":{"value":1.25,"low":1.2,"high":1.3}},
            "cpu_usage":null,"combined_improvement_factor":{"value":1.31,"low":1.28,"high":1.34},
            "work":{"kind":"mysql","what":"queries <of> MySQL"},"steady":true,"warnings":[{"code":"x","text":"mind"}]}"#;
        let gain = parse(text, 7).unwrap();
        assert_eq!((gain.factor.unwrap().interval.as_str(), gain.rows.len()), ("1.280 – 1.340", 1));
        assert_eq!(
            (gain.rows[0].1.interval.as_str(), gain.rows[0].2.value.as_str()),
            ("990.0 – 1010.0", "1250.0")
        );
        assert_eq!(
            (gain.work.as_str(), gain.other, gain.warnings),
            ("queries <of> MySQL", None, vec!["mind".to_owned()])
        );
        assert!(gain.verdict.starts_with("more work"), "{}", gain.verdict);
        assert_eq!(parse(text, 8).unwrap().other.as_deref(), Some("7"));
    }

    #[test]
    fn other_files_are_refused() {
        for (text, word) in [
            ("", "no answer"),
            ("[1]", "steady"),
            (r#"{"steady":true}"#, "not there"),
            (r#"{"error":{"message":"no such process"}}"#, "no such process"),
        ] {
            let said = parse(text, 1).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
        let nothing = r#"{"steady":false,"combined_improvement_factor":null,"qps":null}"#;
        assert!(parse(nothing, 1).unwrap().factor.is_none());
    }
}
