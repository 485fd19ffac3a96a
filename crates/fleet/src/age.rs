//! How much a contribution weighs by its age.

/// The weight of a new contribution.
pub(crate) const WHOLE: u64 = 1 << 16;
/// The days in which the weight halves.
const HALF_LIFE: u32 = 7;
/// `WHOLE * 2^(-n/7)`, rounded. Integers, because all mergers must compute the same bytes.
const WITHIN: [u64; HALF_LIFE as usize] = [65_536, 59_358, 53_761, 48_693, 44_102, 39_945, 36_179];

/// Returns the weight of a contribution that is this many days old, as a part of [`WHOLE`].
pub(crate) fn weight(days: u32) -> u64 {
    let halvings = days / HALF_LIFE;
    WITHIN.get((days % HALF_LIFE) as usize).map_or(0, |w| w.checked_shr(halvings).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_week_halves_the_weight() {
        for days in 0..60 {
            let exact = 65_536.0 * 0.5f64.powf(f64::from(days) / 7.0);
            let got = f64::from(u32::try_from(weight(days)).unwrap());
            assert!((got - exact).abs() <= 1.0, "{days}: {got}, {exact}");
        }
        assert_eq!(weight(u32::MAX), 0);
    }
}
