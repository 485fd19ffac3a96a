use super::*;
use crate::exposition::tests::read;
use crate::exposition::{open_metrics, prometheus};
use crate::metrics::{self, Counted};
use crate::states::{Moment, Verdict};
use engine::Fit;
use std::collections::BTreeSet;
use std::time::Duration;

fn held(reasons: usize) -> Held {
    Held {
        generation: 3,
        clone_bytes: 1000,
        mapped_bytes: 4096,
        cloned: 12,
        is_full: false,
        stop_seconds: Some(0.004),
        left_alone: (0..reasons).map(|i| (format!("reason_{i}"), i + 1)).collect(),
    }
}

fn target(state: State) -> Target {
    let mut target = Target::new(Moment::ZERO, None);
    target.state = state;
    target
}

fn figures<'a>(pid: i32, life: &'a Target, held: Option<&'a Held>) -> Figures<'a> {
    Figures { pid, exe: "/usr/sbin/a\"b\\c\n", life, held, stops: Tally::default() }
}

/// Returns every family that the daemon can write, with a sample at least.
fn all() -> Vec<Family> {
    let held = held(2);
    let mut life = target(State::Refused);
    life.verdict = Some(Verdict { factor: 1.25, low: 1.125, high: 1.5 });
    life.fit = Some(Fit { samples: 100, hot: 0.5, cloned: 0.75, drift: 0.0 });
    "seccomp_filter".clone_into(&mut life.code);
    let mut families = Counted::default().families();
    families.extend(metrics::of_host([0; State::ALL.len()], false, false));
    families.extend(super::families([figures(7, &life, Some(&held))].into_iter()));
    families
}

#[test]
fn a_target_has_its_figures() {
    let families = all();
    let text = prometheus(&families);
    let found = read(&text, false).unwrap();
    let value = |name: &str| {
        let (_, labels, value) = &found[name].samples[0];
        assert_eq!((labels["pid"].as_str(), labels["exe"].as_str()), ("7", "/usr/sbin/a\"b\\c "));
        *value
    };
    for (name, wanted) in [
        ("whet_target_gain_ratio", 1.25),
        ("whet_target_gain_low_ratio", 1.125),
        ("whet_target_gain_high_ratio", 1.5),
        ("whet_target_clones_ratio", 0.75),
        ("whet_target_hot_clones_ratio", 0.5),
        ("whet_target_generation", 3.0),
        ("whet_target_functions_cloned", 12.0),
        ("whet_target_clone_bytes", 1000.0),
        ("whet_target_mapped_bytes", 4096.0),
        ("whet_target_longest_stop_seconds", 0.004),
        ("whet_target_stops_total", 0.0),
        ("whet_target_state", 1.0),
        ("whet_target_refused", 1.0),
    ] {
        assert_eq!(value(name), wanted, "{name}");
    }
    assert_eq!(found["whet_target_refused"].samples[0].1["reason"], "seccomp_filter");
    assert_eq!(found["whet_target_functions_left_alone"].samples.len(), 2);
    // The other form has the same samples.
    let open = read(&open_metrics(&families), true).unwrap();
    let samples = |read: std::collections::BTreeMap<String, crate::exposition::tests::Read>| {
        read.into_values().flat_map(|f| f.samples).collect::<Vec<_>>()
    };
    let (mut one, mut other) = (samples(found), samples(open));
    one.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    other.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    assert_eq!(one, other);
}

#[test]
fn the_longest_stop_is_that_of_any_whet() {
    let life = target(State::Optimized);
    let held = held(0);
    let mut f = figures(1, &life, None);
    assert_eq!(f.longest_stop(), None);
    f.held = Some(&held);
    assert_eq!(f.longest_stop(), Some(0.004));
    f.stops = Tally { count: 3, longest: Duration::from_millis(9) };
    assert_eq!(f.longest_stop(), Some(0.009));
}

#[test]
fn what_is_unknown_has_no_sample() {
    let life = target(State::Watching);
    let text = prometheus(&families([figures(1, &life, None)].into_iter()));
    assert!(!text.contains("gain") && !text.contains("mapped_bytes") && !text.contains("refused"), "{text}");
    assert!(text.contains("state=\"watching\"} 1"), "{text}");
}

#[test]
fn a_thousand_targets_have_metrics_of_a_bounded_size() {
    let lives = [target(State::Watching), target(State::Optimized), target(State::Refused)];
    let status_of_many = held(MOST_REASONS);
    // The optimized ones and the refused ones come last in the list, and first in the choice.
    let state = |i: usize| &lives[if i < 950 { 0 } else { 1 + i % 2 }];
    let each = (0..1000).map(|i| figures(i32::try_from(i).unwrap(), state(i), Some(&status_of_many)));
    let text = prometheus(&families(each));
    let found = read(&text, false).unwrap();
    let states = &found["whet_target_state"].samples;
    assert_eq!(states.len(), MOST_TARGETS);
    assert_eq!(states.iter().filter(|s| s.1["state"] != "watching").count(), 50);
    assert_eq!(found["whet_targets_without_metrics"].samples[0].2, 936.0);
    assert_eq!(found["whet_target_functions_left_alone"].samples.len(), MOST_TARGETS * MOST_REASONS);
    assert!(text.len() < 256 << 10, "{} bytes", text.len());
}

/// Returns all words of a text that look like metrics of whet.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|w| w.starts_with("whet_")).collect()
}

#[test]
fn dashboards_alerts_and_documents_name_metrics_that_exist() {
    let names_of_samples: BTreeSet<String> = all().iter().map(Family::sample_name).collect();
    for (file, text) in [
        ("whet-dashboard.json", include_str!("../../../packaging/monitoring/whet-dashboard.json")),
        ("whet-alerts.yml", include_str!("../../../packaging/monitoring/whet-alerts.yml")),
        ("whet-alerts-test.yml", include_str!("../../../packaging/monitoring/whet-alerts-test.yml")),
        ("metrics.md", include_str!("../../../docs/metrics.md")),
    ] {
        let unknown: Vec<&str> = names(text).into_iter().filter(|n| !names_of_samples.contains(*n)).collect();
        assert!(names(text).len() > 5 && unknown.is_empty(), "{file} names {unknown:?}");
    }
}

#[test]
fn the_document_has_every_metric_with_its_meaning() {
    let document = include_str!("../../../docs/metrics.md");
    for family in all() {
        let kind = format!("{:?}", family.kind).to_lowercase();
        let row = format!("| `{}` | {kind} | {} |", family.sample_name(), family.help);
        assert!(document.lines().any(|l| l == row), "docs/metrics.md lacks the row\n{row}");
    }
}

#[test]
fn the_dashboard_is_json_with_a_query_in_each_panel() {
    let text = include_str!("../../../packaging/monitoring/whet-dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels.iter().filter(|p| p["type"] != "row") {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let targets = panel["targets"].as_array().unwrap();
        assert!(
            !targets.is_empty() && panel["title"].is_string() && panel["description"].is_string(),
            "{panel}"
        );
        for target in targets {
            assert!(!names(target["expr"].as_str().unwrap()).is_empty(), "{target}");
        }
    }
    assert!(panels.len() > 8);
}
