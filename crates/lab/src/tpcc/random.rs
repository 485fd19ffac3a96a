//! Random values by clauses 2.1.5, 2.1.6 and 4.3.2 of the TPC-C specification.

use super::Scale;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
/// The constant for names when data is created. It must differ from [`NAME_RUN`] by 65 to 119, but not by 96
/// or 112.
pub const NAME_LOAD: u32 = 157;
/// The constant for names when data is used; see [`NAME_LOAD`].
pub const NAME_RUN: u32 = 223;

/// Draws from the non-uniform distribution of clause 2.1.6.
pub fn non_uniform(rng: &mut Pcg64Mcg, a: u32, c: u32, low: u32, high: u32) -> u32 {
    let (x, y) = (rng.random_range(0..=a), rng.random_range(low..=high));
    ((x | y).wrapping_add(c)) % (high - low + 1) + low
}

/// Draws a customer. Some customers are drawn much more often than others.
pub fn customer(rng: &mut Pcg64Mcg, scale: &Scale) -> u32 {
    non_uniform(rng, 1023, 259, 1, scale.customers)
}

/// Draws an item. Some items are drawn much more often than others.
pub fn item(rng: &mut Pcg64Mcg, scale: &Scale) -> u32 {
    non_uniform(rng, 8191, 7911, 1, scale.items)
}

/// Draws a name that some customer has.
pub fn some_name(rng: &mut Pcg64Mcg, scale: &Scale) -> String {
    name(non_uniform(rng, 255, NAME_RUN, 0, 999) % scale.customers.min(1000))
}

/// Returns the name of a number: one syllable for each of its three digits (clause 4.3.2.3).
pub fn name(number: u32) -> String {
    [number / 100, number / 10, number]
        .iter()
        .filter_map(|d| SYLLABLES.get((d % 10) as usize))
        .copied()
        .collect()
}

/// Draws `low` to `high` letters.
pub fn letters(rng: &mut Pcg64Mcg, low: usize, high: usize) -> String {
    let length = rng.random_range(low..=high);
    (0..length).map(|_| char::from(rng.random_range(b'a'..=b'z'))).collect()
}

/// Draws `length` digits.
pub fn digits(rng: &mut Pcg64Mcg, length: usize) -> String {
    (0..length).map(|_| char::from(rng.random_range(b'0'..=b'9'))).collect()
}

/// Draws letters. One text in ten has ORIGINAL somewhere in it.
pub fn data(rng: &mut Pcg64Mcg) -> String {
    let mut text = letters(rng, 26, 50);
    if rng.random_range(0..10) == 0 {
        let at = rng.random_range(0..=text.len() - 8);
        text.replace_range(at..at + 8, "ORIGINAL");
    }
    text
}

/// Draws a zip code (clause 4.3.2.7).
pub fn zip(rng: &mut Pcg64Mcg) -> String {
    digits(rng, 4) + "11111"
}

/// Formats cents as a decimal number.
pub fn money(cents: i64) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    format!("{sign}{}.{:02}", cents.unsigned_abs() / 100, cents.unsigned_abs() % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::generator;

    #[test]
    fn names_and_money() {
        assert_eq!(name(371), "PRICALLYOUGHT");
        assert_eq!(name(0), "BARBARBAR");
        assert_eq!([money(5), money(-1234), money(100)], ["0.05", "-12.34", "1.00"]);
    }

    #[test]
    fn customers_lie_in_range_and_some_are_drawn_more_often() {
        let scale = Scale::new(1, 1);
        let mut rng = generator(1, "nurand");
        let mut counts = vec![0_u32; scale.customers as usize + 1];
        for _ in 0..60_000 {
            counts[customer(&mut rng, &scale) as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        assert!(counts.iter().max() > Some(&80), "uniform would be about 20 each");
        assert!((65..=119).contains(&(NAME_RUN - NAME_LOAD)) && ![96, 112].contains(&(NAME_RUN - NAME_LOAD)));
    }
}
