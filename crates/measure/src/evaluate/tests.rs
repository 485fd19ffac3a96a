//! Synthetic windows whose true gain is known.

use super::*;
use crate::Side;
use crate::estimate::Random;

/// Returns a number of the standard normal distribution (Box and Muller 1958).
fn normal(random: &mut Random) -> f64 {
    let uniform = |r: &mut Random| (r.next() >> 11) as f64 / (1u64 << 53) as f64;
    let (u, v) = (1.0 - uniform(random), uniform(random));
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

fn window(pair: u32, side: Side, work: f64) -> Window {
    Window { pair, side, seconds: 0.2, work, cpu: 0.2, user: 0.15, host_idle: 0.0, hardware: None }
}

/// Returns windows of a machine that drifts by far more than the gain. Each window has a little noise of its
/// own.
fn drifting(pairs: u32, gain: f64, noise: f64, seed: u64) -> Vec<Window> {
    let random = &mut Random(seed);
    let mut windows = Vec::new();
    for pair in 0..pairs {
        let drift = (0.5 * normal(random)).exp();
        for (side, gain) in [(Side::With, gain), (Side::Without, 1.0)] {
            windows.push(window(pair, side, 1000.0 * drift * gain * (noise * normal(random)).exp()));
        }
    }
    windows
}

fn paired(windows: &[Window]) -> Figures {
    evaluate(windows, Method::Paired, 1).unwrap()
}

#[test]
fn a_gain_is_found_under_drift() {
    let f = paired(&drifting(100, 1.2, 0.05, 1));
    for change in [f.factor, f.qps.change] {
        assert!((change.value - 1.2).abs() < 0.02, "{change:?}");
        assert!(1.15 < change.low && change.high < 1.25 && change.holds(change.value), "{change:?}");
    }
    assert_eq!(f.cpu_usage.change, Estimate { value: 1.0, low: 1.0, high: 1.0 });
    assert!((f.user_factor.unwrap().value - 1.2).abs() < 0.05);
    assert_eq!((f.pairs, f.void_pairs), (100, 0));
    assert_eq!(verdict(&f.factor), Verdict::Better);
}

#[test]
fn exact_windows_give_exact_figures() {
    let mut windows = Vec::new();
    for pair in 0..10 {
        windows.push(Window { cpu: 0.1, user: 0.05, ..window(pair, Side::With, 300.0) });
        windows.push(Window { cpu: 0.2, user: 0.2, ..window(pair, Side::Without, 200.0) });
    }
    for method in [Method::Paired, Method::Classic] {
        let f = evaluate(&windows, method, 9).unwrap();
        let near = |e: Estimate, value: f64| {
            assert!(
                [e.value, e.low, e.high].iter().all(|v| (v / value - 1.0).abs() < 1e-12),
                "{e:?} {value}"
            );
        };
        near(f.qps.without, 1000.0);
        near(f.qps.with, 1500.0);
        near(f.qps.change, 1.5);
        near(f.cpu_usage.without, 1.0);
        near(f.cpu_usage.with, 0.5);
        near(f.cpu_usage.change, 0.5);
        near(f.factor, 3.0);
        near(f.user_factor.unwrap(), 6.0);
    }
}

/// 95 of 100 intervals should contain the truth. The seeds are fixed, so another number means that the method
/// has changed.
#[test]
fn intervals_hold_the_truth_as_often_as_they_say() {
    let held = |sample: &dyn Fn(u64) -> Sample| {
        let interval = |seed| {
            let sample = sample(seed);
            let pooled = || sample.pooled(seed, |w| Some(w.work), |w| Some(w.cpu));
            sample.medians(seed, |w| w.work / w.cpu).or_else(pooled).unwrap().change
        };
        (0..100).filter(|&seed| interval(seed).holds(1.1)).count()
    };
    let pairs = held(&|seed| Sample::of_pairs(&drifting(30, 1.1, 0.2, seed)));
    assert!((89..100).contains(&pairs), "{pairs}");
    // Slices without drift, as the classic method assumes.
    let steady = |seed| {
        let mut windows = drifting(60, 1.1, 0.1, seed);
        let random = &mut Random(!seed);
        for w in &mut windows {
            let gain = if w.side == Side::With { 1.1 } else { 1.0 };
            w.work = 1000.0 * gain * (1.0 + 0.1 * normal(random));
        }
        Sample::of_slices(&windows)
    };
    let slices = held(&steady);
    assert!((85..100).contains(&slices), "{slices}");
}

#[test]
fn the_seed_decides_the_intervals() {
    let windows = drifting(20, 1.1, 0.1, 6);
    assert_eq!(evaluate(&windows, Method::Paired, 7), evaluate(&windows, Method::Paired, 7));
    assert_ne!(evaluate(&windows, Method::Paired, 7), evaluate(&windows, Method::Paired, 8));
}

#[test]
fn windows_without_work_are_left_out_and_counted() {
    let mut windows = drifting(10, 1.1, 0.0, 8);
    windows[3].work = 0.0;
    windows[5].cpu = 0.0;
    // The counter of a restarted server begins anew.
    windows[8].work = -100.0;
    let f = paired(&windows);
    assert_eq!((f.pairs, f.void_pairs), (7, 3));
    assert!((f.factor.value - 1.1).abs() < 1e-9);
    for w in &mut windows[..12] {
        w.work = 0.0;
    }
    assert_eq!(evaluate(&windows, Method::Paired, 1), None);
    assert_eq!(evaluate(&[], Method::Paired, 1), None);
    assert_eq!(evaluate(&[], Method::Classic, 1), None);
    // A pair with only one window does not count.
    assert_eq!(paired(&drifting(10, 1.1, 0.1, 8)[..19]).pairs, 9);
}

#[test]
fn events_are_rates() {
    let mut windows = drifting(10, 1.0, 0.0, 3);
    assert_eq!(paired(&windows).events.source, EventSource::None);
    for w in &mut windows {
        let cycles = if w.side == Side::With { 1e6 } else { 2e6 };
        w.hardware = Some(HardwareCounts {
            cycles: Some(cycles),
            instructions: Some(1e6),
            icache_misses: Some(cycles / 100.0),
            frontend_stalls: Some(cycles / 4.0),
            ..HardwareCounts::default()
        });
    }
    let events = paired(&windows).events;
    assert_eq!(events.source, EventSource::Pmu);
    let (ipc, icache) = (events.ipc.unwrap(), events.icache_misses.unwrap());
    assert_eq!((ipc.without.value, ipc.with.value, ipc.change.value), (0.5, 1.0, 2.0));
    assert_eq!((icache.without.value, icache.with.value), (20.0, 10.0));
    assert_eq!(events.frontend_stalls.unwrap().change.value, 1.0);
    assert_eq!((events.itlb_misses, events.branch_misses), (None, None));
}

#[test]
fn verdicts_and_warnings() {
    let busy = Bottleneck { usage: 1.8, capacity: 2.0, host_busy: 1.0, busiest_thread: 0.5 };
    let figures = paired(&drifting(50, 1.2, 0.05, 2));
    let codes = |figures: Option<&Figures>, variation, bottleneck: &Bottleneck, method| {
        let (verdict, warnings) = judge(figures, variation, bottleneck, method);
        (verdict, warnings.into_iter().map(|w| w.code).collect::<Vec<_>>())
    };
    use Method::{Classic, Paired};
    let codes = |f: Option<&Figures>, v, b: &Bottleneck, m| {
        let (verdict, codes) = codes(f, v, b, m);
        (verdict, codes.join(" "))
    };
    let said = |verdict, text: &str| (verdict, text.to_owned());
    assert_eq!(codes(Some(&figures), 1.1, &busy, Paired), said(Verdict::Better, ""));
    assert_eq!(codes(Some(&figures), 2.0, &busy, Paired), said(Verdict::Better, "not_steady"));
    assert_eq!(codes(Some(&figures), 1.0, &busy, Classic), said(Verdict::Better, "drift"));
    assert_eq!(codes(None, 1.0, &busy, Paired), said(Verdict::CannotTell, "no_work"));
    let waiting = Bottleneck { usage: 0.3, capacity: 2.0, host_busy: 0.4, busiest_thread: 0.2 };
    assert_eq!(codes(Some(&figures), 1.0, &waiting, Paired), said(Verdict::Better, "not_cpu_bound"));
    let idle = Bottleneck { usage: 0.01, ..waiting };
    assert_eq!(codes(Some(&figures), 1.0, &idle, Paired), said(Verdict::CannotTell, "idle"));
    let mut wide = figures.clone();
    wide.factor = Estimate { value: 1.2, low: 0.9, high: 1.5 };
    assert_eq!(codes(Some(&wide), 1.0, &busy, Paired), said(Verdict::CannotTell, "uncertain"));
    wide.factor = Estimate { value: 1.0, low: 0.99, high: 1.02 };
    wide.void_pairs = 10;
    assert_eq!(codes(Some(&wide), 1.0, &busy, Paired), said(Verdict::NoDifference, "void_pairs"));
    // A change of less than 1% is no difference, even if the interval excludes 1.
    for (value, low, high) in [(1.005, 1.001, 1.009), (0.995, 0.992, 0.999), (1.009, 1.001, 1.018)] {
        assert_eq!(verdict(&Estimate { value, low, high }), Verdict::NoDifference);
    }
    assert_eq!(verdict(&Estimate { value: 1.011, low: 1.002, high: 1.02 }), Verdict::Better);
    assert_eq!(verdict(&Estimate { value: 0.989, low: 0.98, high: 0.998 }), Verdict::Worse);
    wide.factor = Estimate { value: 0.9, low: 0.85, high: 0.95 };
    wide.void_pairs = 0;
    assert_eq!(codes(Some(&wide), 1.0, &busy, Paired), said(Verdict::Worse, ""));
}
