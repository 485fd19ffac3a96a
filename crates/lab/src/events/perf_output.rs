//! The output of `perf stat`.

use super::counts::Counts;
use super::table::Slots;

/// The counts of a window.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Counted {
    /// Counts by event. An event that was counted for a part of the window is scaled up by perf.
    pub events: Counts,
    /// The smallest share of the window for which an event was counted. Below 1, the kernel took turns
    /// between groups of events (multiplexing).
    pub share: f64,
}

/// Parses lines of the form `COUNT;UNIT;EVENT;TIME;PERCENT;…`. Events that were not counted have words in
/// place of the count, and are left out.
pub(super) fn parse(text: &str, slots: Slots) -> Counted {
    // In many locales perf prints a decimal comma.
    let number = |field: &str| field.replace(',', ".").parse::<f64>().ok();
    let mut counted = Counted { events: Counts::new(), share: 1.0 };
    for line in text.lines() {
        let fields: Vec<&str> = line.split(';').collect();
        let [count, _, event, _, percent, ..] = fields.as_slice() else { continue };
        let Some(count) = number(count) else { continue };
        let event = event.trim_end_matches(":u");
        counted.events.insert(event.to_owned(), count);
        if let Some(percent) = number(percent) {
            counted.share = counted.share.min(percent / 100.0);
        }
    }
    slots.complete(&mut counted.events);
    counted
}

#[cfg(test)]
mod tests {
    use super::super::{IPC, METRICS, Metric};
    use super::*;

    /// Returns the share, and the figures as words.
    fn figures(text: &str, slots: Slots) -> (f64, String) {
        let counted = parse(text, slots);
        let word = |of: fn(&Counts) -> Option<f64>| {
            of(&counted.events).map_or("–".to_owned(), |v| format!("{v:.2}"))
        };
        let all: Vec<String> = [&IPC].into_iter().chain(&METRICS).map(|m| word(m.of)).collect();
        (counted.share, all.join(" "))
    }

    #[test]
    fn counts_become_figures() {
        let zen_4 = include_str!("../../tests/perf/zen4.txt");
        assert_eq!(
            figures(zen_4, Slots::PerCycle(6.0)),
            (1.0, "0.97 1.03 16.00 0.90 0.20 1.79 100.00 – 40.00".to_owned())
        );
    }

    #[test]
    fn groups_that_took_turns_lower_the_share() {
        let (share, words) =
            figures(include_str!("../../tests/perf/skylake-multiplexed.txt"), Slots::PerCycle(4.0));
        assert!((share - 0.666).abs() < 1e-9);
        assert_eq!(words, "0.71 1.41 28.00 2.20 0.60 2.82 106.36 – 40.00");
        let (share, words) =
            figures(include_str!("../../tests/perf/decimal-comma.txt"), Slots::PerCycle(4.0));
        assert!((share - 0.3333).abs() < 1e-9 && words.starts_with("0.50 2.00 –"), "{share} {words}");
    }

    /// perf computed the same from these: 2.12 instructions per cycle, 0.6% of branches and 17.3% of slots; 1.6% by
    /// bandwidth and 1.8% by latency.
    #[test]
    fn recorded_counts_give_the_figures_that_perf_computed() {
        let skylake = parse(include_str!("../../tests/perf/skylake-recorded.txt"), Slots::PerCoreCycle(4.0));
        let of = |metric: &Metric| format!("{:.2}", (metric.of)(&skylake.events).unwrap());
        let missed = skylake.events["branch-misses"] / skylake.events["branches"];
        assert_eq!(
            (of(&IPC), of(&METRICS[7]), format!("{missed:.3}")),
            ("2.12".into(), "17.32".into(), "0.006".into())
        );
        // The other thread slept, so the figure is that of the cycles of the thread alone.
        let alone = parse(include_str!("../../tests/perf/skylake-recorded.txt"), Slots::PerCycle(4.0));
        assert_eq!(format!("{:.2}", (METRICS[7].of)(&alone.events).unwrap()), "17.32");
        let zen_4 = parse(include_str!("../../tests/perf/zen4-recorded.txt"), Slots::PerCycle(6.0));
        assert_eq!(format!("{:.1}", (METRICS[7].of)(&zen_4.events).unwrap()), "3.4");
    }

    /// The other thread of the core was active in half of the thread's cycles: it had a quarter of the core's slots.
    #[test]
    fn threads_of_a_core_share_its_slots() {
        let counts = "1000;;cycles:u;1;100.00;;\n1200;;frontend-stalls;1;100.00;;\n";
        let stalls = |more: &str, slots| {
            let counted = parse(&format!("{counts}{more}"), slots);
            (METRICS[7].of)(&counted.events).map(|v| format!("{v:.2}"))
        };
        let half = "50;;alone;1;66.00;;\n100;;reference-cycles;1;66.00;;\n";
        assert_eq!(stalls(half, Slots::PerCoreCycle(4.0)).as_deref(), Some("40.00"));
        assert_eq!(stalls("", Slots::PerCycle(4.0)).as_deref(), Some("30.00"));
        assert_eq!(stalls("3000;;frontend-slots;1;100.00;;\n", Slots::Counted).as_deref(), Some("40.00"));
        // A figure that would be too low is left out.
        for slots in [Slots::PerCoreCycle(4.0), Slots::Counted] {
            assert_eq!(stalls("", slots), None);
            assert!(!parse(counts, slots).events.contains_key("frontend-stalls"), "a sum would have it");
        }
    }

    #[test]
    fn what_was_not_counted_or_is_not_supported_is_left_out() {
        let text = include_str!("../../tests/perf/sapphire-rapids-not-counted.txt");
        assert_eq!(figures(text, Slots::Counted), (1.0, "1.25 0.80 – – – 1.40 – – –".to_owned()));
        for nothing in [
            include_str!("../../tests/perf/no-counters.txt"),
            include_str!("../../tests/perf/no-pmu.txt"),
            include_str!("../../tests/perf/refused.txt"),
        ] {
            assert!(parse(nothing, Slots::PerCycle(1.0)).events.is_empty(), "{nothing}");
        }
    }
}
