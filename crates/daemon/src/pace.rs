//! How long the daemon pauses between two looks at the processes of the host.

use std::time::Duration;

/// The inverse of the share of a CPU that looks may use: 1/2000 is 0.05%.
const COST: u32 = 2000;
/// The longest pause to which [`COST`] leads, between two looks and between two readings of journals.
const LONGEST: Duration = Duration::from_secs(60);

/// Returns the pause after work that has cost so much CPU time, without a limit.
pub(crate) fn after(cost: Duration) -> Duration {
    cost.saturating_mul(COST)
}

/// Same as [`after`], with the limit of [`LONGEST`].
pub(crate) fn limited(cost: Duration) -> Duration {
    after(cost).min(LONGEST)
}

/// Spreads looks over time.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// The CPU time of looks that were not followed by a pause.
    unpaid: Duration,
}

impl Pace {
    /// Returns the pause after a look that has cost so much CPU time, at least `every`. If the next look is urgent,
    /// it comes after `every`, and the pause after it is longer.
    pub(crate) fn pause(&mut self, cost: Duration, every: Duration, urgent: bool) -> Duration {
        self.unpaid += cost;
        if urgent {
            return every;
        }
        limited(std::mem::take(&mut self.unpaid)).max(every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn looks_use_their_share_of_a_cpu() {
        let mut pace = Pace::default();
        assert_eq!(pace.pause(MS, 250 * MS, false), 2000 * MS);
        assert_eq!(pace.pause(MS / 10, 250 * MS, false), 250 * MS);
        assert_eq!(pace.pause(1000 * MS, 250 * MS, false), LONGEST);
    }

    #[test]
    fn an_urgent_look_is_made_up_for() {
        let mut pace = Pace::default();
        assert_eq!(pace.pause(MS, 250 * MS, true), 250 * MS);
        assert_eq!(pace.pause(2 * MS, 250 * MS, false), 6000 * MS);
        assert_eq!(pace.pause(MS, 250 * MS, false), 2000 * MS);
    }
}
