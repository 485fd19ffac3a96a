//! Dates for logs and for names of folders.

use jiff::Timestamp;

/// Returns the present time, UTC, as RFC 3339.
pub fn now() -> String {
    rfc3339(Timestamp::now())
}

/// Returns the present time as digits alone, for names of files.
pub fn stamp() -> String {
    now().chars().filter(char::is_ascii_digit).collect()
}

/// Formats a time as RFC 3339, in whole seconds.
fn rfc3339(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    fn rfc3339(seconds: i64) -> String {
        super::rfc3339(Timestamp::from_second(seconds).unwrap())
    }

    #[test]
    fn known_dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_794_182_400 + 3_661), "2026-11-09T01:01:01Z");
    }
}
