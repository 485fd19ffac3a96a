//! Dates in answers.

/// Formats seconds of the Unix epoch as a date; empty past the year 9999, which only a forged journal
/// contains.
pub(crate) fn rfc3339(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
    at.map_or_else(String::new, |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(rfc3339(1_798_761_599), "2026-12-31T23:59:59Z");
    }
}
