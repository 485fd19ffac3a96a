//! Decides when a load has warmed up. Pure.

/// The number of rates whose mean is compared with the mean of as many earlier rates.
pub const SPAN: usize = 4;
/// How far the means of two runs of rates may differ, as a share of the older mean.
pub const TOLERANCE: f64 = 0.05;

/// Returns whether the mean of the last [`SPAN`] rates is that of the [`SPAN`] before them, within
/// [`TOLERANCE`].
pub fn is_steady(rates: &[f64]) -> bool {
    let Some(before_last) = rates.len().checked_sub(SPAN) else { return false };
    let Some(begin) = before_last.checked_sub(SPAN) else { return false };
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let mean = |part: &[f64]| part.iter().sum::<f64>() / SPAN as f64;
    let (old, new) = (mean(&rates[begin..before_last]), mean(&rates[before_last..]));
    old > 0.0 && new > 0.0 && (new / old - 1.0).abs() <= TOLERANCE
}

#[cfg(test)]
mod tests {
    use super::is_steady;

    #[test]
    fn a_rising_load_is_not_steady() {
        assert!(!is_steady(&[100.0; 7]), "too few");
        assert!(is_steady(&[100.0; 8]));
        assert!(!is_steady(&[10.0, 20.0, 40.0, 60.0, 80.0, 90.0, 100.0, 110.0]));
        assert!(is_steady(&[1.0, 5.0, 98.0, 104.0, 99.0, 101.0, 100.0, 103.0, 97.0, 102.0]));
        assert!(!is_steady(&[0.0; 12]), "nothing runs");
    }
}
