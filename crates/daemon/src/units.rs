//! Durations, sizes and times of day, as the configuration writes them.

use jiff::civil::Time;
use serde::de::{Deserialize, Deserializer, Error};
use std::time::Duration;

/// A duration: `90s`, `15m`, `2h`, `250ms`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span(pub Duration);

/// A number of bytes: `64 MiB`, `1 GiB`, `4096`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Bytes(pub u64);

/// A part of the day, in local time: `02:00-04:30`. It spans midnight if it ends before it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hours {
    from: Time,
    to: Time,
}

impl Hours {
    /// Returns whether a time of day lies within. The end is outside.
    #[must_use]
    pub fn contain(&self, at: Time) -> bool {
        if self.from <= self.to {
            (self.from..self.to).contains(&at)
        } else {
            at >= self.from || at < self.to
        }
    }
}

fn number(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim()))
}

fn span(text: &str) -> Option<Span> {
    let (n, unit) = number(text)?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    n.checked_mul(millis)
        .map(Duration::from_millis)
        .filter(|d| *d <= Duration::from_secs(366 * 86_400))
        .map(Span)
}

fn bytes(text: &str) -> Option<Bytes> {
    let (n, unit) = number(text)?;
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    n.checked_mul(1 << shift).map(Bytes)
}

fn hours(text: &str) -> Option<Hours> {
    let time = |t: &str| {
        let (h, m) = t.trim().split_once(':')?;
        let two =
            |t: &str| t.parse::<i8>().ok().filter(|_| t.len() == 2 && t.bytes().all(|b| b.is_ascii_digit()));
        Time::new(two(h)?, two(m)?, 0, 0).ok()
    };
    let (from, to) = text.split_once('-')?;
    Some(Hours { from: time(from)?, to: time(to)? })
}

macro_rules! read_from_text {
    ($type:ty, $parse:expr, $what:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                $parse(&text).ok_or_else(|| D::Error::custom(format!(concat!("{:?} is no ", $what), text)))
            }
        }
    };
}
read_from_text!(
    Span,
    span,
    "duration: write for instance \"500ms\", \"90s\", \"15m\", \"2h\" or \"1d\" (a year at most)"
);
read_from_text!(Bytes, bytes, "size: write for instance \"64 MiB\" or \"1 GiB\"");
read_from_text!(Hours, hours, "part of the day: write for instance \"02:00-04:30\"");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_parsed() {
        assert_eq!(span("90s"), Some(Span(Duration::from_secs(90))));
        assert_eq!(span("250 ms"), Some(Span(Duration::from_millis(250))));
        for wrong in ["", "s", "90", "-1s", "1.5s", "90 sec", "99999999999d", "18446744073709551616s"] {
            assert_eq!(span(wrong), None, "{wrong:?}");
        }
        assert_eq!(bytes("64 MiB"), Some(Bytes(64 << 20)));
        assert_eq!(bytes("4096"), Some(Bytes(4096)));
        for wrong in ["64MB", "MiB", "99999999999999999999", "18446744073709551615 GiB"] {
            assert_eq!(bytes(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn parts_of_the_day_are_parsed_and_matched() {
        let at = |h, m| Time::new(h, m, 0, 0).unwrap();
        let day = hours("02:00-04:30").unwrap();
        assert!(
            day.contain(at(2, 0))
                && day.contain(at(4, 29))
                && !day.contain(at(4, 30))
                && !day.contain(at(1, 59))
        );
        let night = hours("22:00-06:00").unwrap();
        assert!(
            night.contain(at(23, 0))
                && night.contain(at(0, 0))
                && !night.contain(at(6, 0))
                && !night.contain(at(12, 0))
        );
        for wrong in ["2-4", "02:00", "24:00-01:00", "02:60-03:00", "+2:00-03:00", "-"] {
            assert_eq!(hours(wrong), None, "{wrong:?}");
        }
    }
}
