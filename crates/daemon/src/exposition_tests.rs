use super::*;
use std::collections::{BTreeMap, BTreeSet};

/// A family as a reader finds it in a text.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Read {
    pub(crate) kind: String,
    pub(crate) help: String,
    /// The samples: name, labels, value.
    pub(crate) samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Splits `name{label="value",...} value`.
fn sample(line: &str) -> Option<(String, BTreeMap<String, String>, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    while let Some(inside) = rest.strip_prefix(if labels.is_empty() { '{' } else { ',' }) {
        let (label, mut after) = inside.split_once("=\"")?;
        let mut value = String::new();
        loop {
            let c = after.chars().next()?;
            after = &after[c.len_utf8()..];
            match c {
                '"' => break,
                '\\' => {
                    let escaped = after.chars().next()?;
                    after = &after[1..];
                    value.push(match escaped {
                        'n' => '\n',
                        '\\' | '"' => escaped,
                        _ => return None,
                    });
                }
                c => value.push(c),
            }
        }
        if !is_name(label) || labels.insert(label.to_owned(), value).is_some() {
            return None;
        }
        rest = after;
    }
    let rest = if labels.is_empty() { rest } else { rest.strip_prefix('}')? };
    let value = rest.strip_prefix(' ')?.parse().ok()?;
    is_name(name).then_some((name.to_owned(), labels, value))
}

/// Reads a text as a strict collector does. Each family has help and type before its samples, its samples have
/// the names that the type allows, and no sample is there twice.
pub(crate) fn read(text: &str, open_metrics: bool) -> Result<BTreeMap<String, Read>, String> {
    let mut families: BTreeMap<String, Read> = BTreeMap::new();
    let (mut current, mut seen, mut ended) = (String::new(), BTreeSet::new(), false);
    if !text.ends_with('\n') {
        return Err("no end of line".to_owned());
    }
    for line in text.lines() {
        let wrong = |why: &str| Err(format!("{why}: {line:?}"));
        if ended {
            return wrong("behind the end");
        }
        if line == "# EOF" && open_metrics {
            ended = true;
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            let Some((name, help)) = rest.split_once(' ') else { return wrong("no help") };
            if !is_name(name) || families.contains_key(name) {
                return wrong("a name twice, or no name");
            }
            name.clone_into(&mut current);
            families.insert(current.clone(), Read { help: help.to_owned(), ..Read::default() });
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = rest.split_once(' ') else { return wrong("no type") };
            let Some(family) = families.get_mut(name).filter(|f| f.kind.is_empty() && name == current) else {
                return wrong("a type elsewhere");
            };
            kind.clone_into(&mut family.kind);
        } else {
            let Some(sample) = sample(line) else { return wrong("no sample") };
            let Some(family) = families.get_mut(&current) else { return wrong("no family") };
            let suffix = match (family.kind.as_str(), open_metrics) {
                ("counter", true) => "_total",
                ("info", true) => "_info",
                ("counter" | "gauge", _) => "",
                _ => return wrong("an unknown type"),
            };
            let counts = family.kind == "counter" && !(sample.2 >= 0.0 && sample.0.ends_with("_total"));
            if sample.0 != format!("{current}{suffix}") || counts {
                return wrong("a name or value that the type does not allow");
            }
            if !seen.insert((sample.0.clone(), sample.1.clone())) {
                return wrong("a sample twice");
            }
            family.samples.push(sample);
        }
    }
    match families.iter().find(|(_, f)| f.kind.is_empty() || f.samples.is_empty()) {
        Some((name, _)) => Err(format!("{name} has no type or no samples")),
        None if ended != open_metrics => Err("no end".to_owned()),
        None => Ok(families),
    }
}

fn family(kind: Kind, samples: Vec<(Labels, f64)>) -> Family {
    Family { name: "whet_x", kind, help: "Something.", samples }
}

#[test]
fn each_form_names_families_in_its_way() {
    let families = [Kind::Counter, Kind::Gauge, Kind::Info]
        .map(|kind| family(kind, vec![(vec![("a", "b".to_owned())], 1.5)]));
    let texts = families
        .each_ref()
        .map(|f| (prometheus(std::slice::from_ref(f)), open_metrics(std::slice::from_ref(f))));
    let head = |name: &str, kind: &str| format!("# HELP {name} Something.\n# TYPE {name} {kind}\n");
    let counter = "whet_x_total{a=\"b\"} 1.5\n";
    assert_eq!(texts[0].0, head("whet_x_total", "counter") + counter);
    assert_eq!(texts[0].1, head("whet_x", "counter") + counter + "# EOF\n");
    assert_eq!(texts[1].0, head("whet_x", "gauge") + "whet_x{a=\"b\"} 1.5\n");
    assert_eq!(texts[2].0, head("whet_x_info", "gauge") + "whet_x_info{a=\"b\"} 1.5\n");
    assert_eq!(texts[2].1, head("whet_x", "info") + "whet_x_info{a=\"b\"} 1.5\n# EOF\n");
    for (plain, open) in texts {
        assert_eq!(read(&plain, false).unwrap().len(), 1);
        assert_eq!(read(&open, true).unwrap().len(), 1);
    }
    assert_eq!(prometheus(&[family(Kind::Gauge, Vec::new())]), "", "a family without samples is left out");
}

#[test]
fn the_reader_refuses_what_collectors_refuse() {
    let head = "# HELP x y\n# TYPE x gauge\n";
    assert!(read(&format!("{head}x 1\n"), false).is_ok());
    for wrong in
        ["x 1", "x 1\nx 2\n", "y 1\n", "x{a=\"\n", "x{a=\"\\q\"} 1\n", "x one\n", "", "x 1\n# EOF\nx 2\n"]
    {
        let text = format!("{head}{wrong}");
        assert!(read(&text, false).is_err() && read(&text, true).is_err(), "{text}");
    }
}

#[test]
fn any_label_is_read_back_but_for_control_characters_and_length() {
    arbtest::arbtest(|u| {
        let value: String = u.arbitrary()?;
        let text = prometheus(&[family(Kind::Gauge, vec![(vec![("a", value.clone())], 1.0)])]);
        let wanted: String =
            value.chars().take(LONGEST_LABEL).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let read = read(&text, false).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(read["whet_x"].samples[0].1["a"], wanted);
        Ok(())
    })
    .budget_ms(300);
    let long = escaped(&"x".repeat(10_000));
    assert_eq!(long.len(), LONGEST_LABEL);
}
