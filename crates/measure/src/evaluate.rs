//! Computes the figures and the verdict from windows. Pure.

use crate::report::{Comparison, EventSource, Events, Method, Verdict, Warning};
use crate::sample::Sample;
use crate::steadiness::{Bottleneck, STEADY};
use crate::window::{HardwareCounts, Window};
use crate::{Estimate, report};

/// The fewest pairs (or slices of a side) that give an interval.
const FEWEST: usize = 5;
/// The largest width, upper end divided by lower end, at which an interval shows that there is no difference.
const NARROW: f64 = 1.25;
/// The smallest change of work per CPU second that counts as a difference, as a share. A/A controls sometimes
/// differ by as much, even if their interval excludes 1.
pub const LEAST_EFFECT: f64 = 0.01;
/// The share of void pairs above which a warning is given.
const VOID: f64 = 0.05;

/// The figures of a comparison.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    /// Work per second, with clones and without.
    pub qps: Comparison,
    /// CPU seconds per second, with clones and without.
    pub cpu_usage: Comparison,
    /// Work per CPU second with clones, divided by work per CPU second without.
    pub factor: Estimate,
    /// Work per user CPU second with clones, divided by work per user CPU second without, from the sums over
    /// all windows. `None` if the kernel recorded no user time.
    pub user_factor: Option<Estimate>,
    /// Rates of events that the CPU counted.
    pub events: Events,
    /// The number of compared pairs; with the classic method, of slices on the side with fewer.
    pub pairs: u32,
    /// The number of pairs that were left out; with the classic method, of slices of both sides.
    pub void_pairs: u32,
}

/// Computes the figures of windows. Returns `None` if fewer than five pairs (or slices of a side) are usable,
/// if fewer are usable than void, or if a figure is not finite. A pair is usable if both windows have work
/// and CPU time, a slice if it has both.
#[must_use]
pub fn evaluate(windows: &[Window], method: Method, seed: u64) -> Option<Figures> {
    let sample = match method {
        Method::Paired => Sample::of_pairs(windows),
        Method::Classic => Sample::of_slices(windows),
    };
    let used = sample.with.len().min(sample.without.len());
    if used < FEWEST.max(sample.void) {
        return None;
    }
    let compare = |above: fn(&Window) -> f64, below: fn(&Window) -> f64| match method {
        Method::Paired => sample.medians(seed, |w| above(w) / below(w)),
        Method::Classic => sample.pooled(seed, |w| Some(above(w)), |w| Some(below(w))),
    };
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Some(Figures {
        qps: compare(|w| w.work, |w| w.seconds)?,
        cpu_usage: compare(|w| w.cpu, |w| w.seconds)?,
        factor: compare(|w| w.work, |w| w.cpu)?.change,
        user_factor: sample.pooled(seed, |w| Some(w.work), |w| Some(w.user)).map(|c| c.change),
        events: events(&sample, seed),
        pairs: count(used),
        void_pairs: count(sample.void),
    })
}

/// Computes the rates of events that the CPU counted, over all windows together.
fn events(sample: &Sample, seed: u64) -> Events {
    if !sample.with.iter().chain(&sample.without).any(|w| w.hardware.is_some()) {
        return Events::none();
    }
    type Count = fn(&HardwareCounts) -> Option<f64>;
    let rate = |above: Count, below: Count, scale: f64| {
        let of = |count: Count, scale: f64| move |w: &Window| Some(count(w.hardware.as_ref()?)? * scale);
        sample.pooled(seed, of(above, scale), of(below, 1.0))
    };
    const PER_THOUSAND: f64 = 1000.0;
    Events {
        source: EventSource::Pmu,
        ipc: rate(|h| h.instructions, |h| h.cycles, 1.0),
        icache_misses: rate(|h| h.icache_misses, |h| h.instructions, PER_THOUSAND),
        itlb_misses: rate(|h| h.itlb_misses, |h| h.instructions, PER_THOUSAND),
        branch_misses: rate(|h| h.branch_misses, |h| h.instructions, PER_THOUSAND),
        frontend_stalls: rate(|h| h.frontend_stalls, |h| h.cycles, 1.0),
    }
}

/// Returns the verdict for a factor, from its interval and its size.
#[must_use]
pub fn verdict(factor: &Estimate) -> Verdict {
    match factor {
        f if f.low > 1.0 && f.value >= 1.0 + LEAST_EFFECT => Verdict::Better,
        f if f.high < 1.0 && f.value <= 1.0 - LEAST_EFFECT => Verdict::Worse,
        f if f.width() <= NARROW => Verdict::NoDifference,
        _ => Verdict::CannotTell,
    }
}

/// Returns the verdict, and the warnings that the reader needs.
pub(crate) fn judge(
    figures: Option<&Figures>,
    variation: f64,
    bottleneck: &Bottleneck,
    method: Method,
) -> (Verdict, Vec<Warning>) {
    let cannot =
        |code: &str, text: String, hint: &str| (Verdict::CannotTell, vec![report::warning(code, text, hint)]);
    if bottleneck.is_idle() {
        let usage = bottleneck.usage * 100.0;
        let text = format!("the process is idle: it used {usage:.1}% of one CPU");
        return cannot("idle", text, "put it under its usual load and try again");
    }
    let Some(figures) = figures else {
        let text = "most windows saw no work".to_owned();
        let hint = "check that the load runs and that its work is what is counted, or take longer windows";
        return cannot("no_work", text, hint);
    };
    (verdict(&figures.factor), warnings(figures, variation, bottleneck, method))
}

/// Returns the reasons to doubt some of the figures.
fn warnings(figures: &Figures, variation: f64, bottleneck: &Bottleneck, method: Method) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |code: &str, text: String, hint: &str| warnings.push(report::warning(code, text, hint));
    if verdict(&figures.factor) == Verdict::CannotTell {
        let text = format!(
            "the interval of the factor is wide ({:.2} to {:.2})",
            figures.factor.low, figures.factor.high
        );
        warn("uncertain", text, "more rounds make it narrower, as does a quieter machine");
    }
    if variation > STEADY {
        let text = format!(
            "the load was not steady: work per second varied {variation:.1} times between parts of the run"
        );
        let hint = match method {
            Method::Paired => "the factor holds nevertheless, for the mean of these loads",
            Method::Classic => "compare in pairs of short windows (without --classic), which tolerate this",
        };
        warn("not_steady", text, hint);
    }
    if !bottleneck.is_cpu() {
        let b = bottleneck;
        let text = format!(
            "the CPU was not the bottleneck: the process used {:.2} of {:.2} CPUs, the host was {:.0}% busy",
            b.usage,
            b.capacity,
            b.host_busy * 100.0
        );
        warn("not_cpu_bound", text, "read the gain from CPU usage and the factor, not from QPS");
    }
    let share = f64::from(figures.void_pairs) / f64::from(figures.pairs.saturating_add(figures.void_pairs));
    if share > VOID {
        let text =
            format!("{} of {} pairs saw no work", figures.void_pairs, figures.pairs + figures.void_pairs);
        warn("void_pairs", text, "take longer windows");
    }
    if method == Method::Classic {
        let text = "what changed between the two minutes, other than whet, is in the figures and not in the intervals";
        warn("drift", text.to_owned(), "compare in pairs of short windows (without --classic)");
    }
    warnings
}

#[cfg(test)]
mod tests;
