//! Formats shares of user time.

use crate::text::percent;
use engine::UserTime;

/// Most rows named in one line. The rest is summed up.
const MOST: usize = 6;
/// Rows below this share are not named in the line.
const LEAST: f64 = 0.001;

/// Returns what a row's name in JSON means. A name that this whet does not have stands for itself.
fn words(name: &str, reason: Option<&str>) -> String {
    let plain = match name {
        "in_clones" => "in clones",
        "refused" => "in functions left alone",
        "module_left_alone" => "in modules left alone",
        "no_unwind_tables" => "in code without unwind tables",
        "generated_code" => "in generated code",
        "vdso" => "in the kernel's vdso",
        "not_rebuilt" => "not rebuilt",
        "not_in_profile" => "not in the profile",
        other => other,
    };
    reason.map_or_else(|| plain.to_owned(), |reason| format!("{plain} ({reason})"))
}

/// Formats all of the user time in one line, the largest share first.
pub fn line(t: &UserTime) -> String {
    let rows = t.rows();
    let named = rows.iter().take(MOST).take_while(|r| r.2 >= LEAST).count();
    let (named, others) = rows.split_at(named);
    let mut parts: Vec<String> = named
        .iter()
        .map(|(name, reason, share)| format!("{} {}", percent(*share), words(name, *reason)))
        .collect();
    if !others.is_empty() {
        let rest: f64 = others.iter().map(|r| r.2).sum();
        parts.push(format!("{} elsewhere", percent(rest)));
    }
    format!("user time: {}", parts.join(", "))
}

/// Formats each share in a line of its own, the largest first.
pub fn table(t: &UserTime) -> String {
    let line = |(name, reason, share): &(&str, Option<&str>, f64)| {
        format!("\n{:>7}  {}", percent(*share), words(name, *reason))
    };
    let lines: String = t.rows().iter().map(line).collect();
    format!("user time:{lines}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> UserTime {
        UserTime {
            in_clones: 0.9302,
            refused: [("too_large".to_owned(), 0.03)].into(),
            module_left_alone: [("module_may_unload".to_owned(), 0.02)].into(),
            no_unwind_tables: 0.0092,
            vdso: 0.01,
            not_rebuilt: 0.0006,
            ..UserTime::default()
        }
    }

    #[test]
    fn one_line_names_the_large_shares_and_sums_up_the_rest() {
        assert_eq!(
            line(&some()),
            "user time: 93.0% in clones, 3.0% in functions left alone (too_large), 2.0% in modules left alone \
             (module_may_unload), 1.0% in the kernel's vdso, 0.9% in code without unwind tables, 0.1% elsewhere"
        );
    }

    #[test]
    fn the_table_has_every_share() {
        let table = table(&some());
        assert_eq!(table.lines().count(), 7, "{table}");
        assert!(table.ends_with("\n   0.1%  not rebuilt"), "{table}");
    }
}
