//! Formats foreign text and numbers for a terminal.

/// Returns foreign text without characters that a terminal obeys or that move the text behind them.
pub fn printable(s: &str) -> String {
    s.chars()
        .map(|c| {
            if c.is_control() || is_turning(c) || matches!(c, '\u{fffe}' | '\u{ffff}') {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

/// Returns whether a character changes the direction of the text behind it.
fn is_turning(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the file name of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Formats a share of 1 as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// Formats an amount of memory.
pub fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} bytes"),
        10_000..10_000_000 => format!("{} KB", n / 1000),
        _ => format!("{} MB", n / 1_000_000),
    }
}

/// Formats a number of things: `1 function`, `2 functions`.
pub fn many(n: impl TryInto<u64>, one: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    let several = one.strip_suffix("ss").map_or_else(|| format!("{one}s"), |_| format!("{one}es"));
    format!("{n} {}", if n == 1 { one } else { &several })
}

/// Formats a count with thousands separated.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Returns at most `width` characters of the text. If it was longer, the last of them is `…`.
pub fn cut(s: &str, width: usize) -> String {
    if s.chars().count() <= width {
        return s.to_owned();
    }
    let mut out: String = s.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn singular_and_plural() {
        assert_eq!(many(1_u64, "function"), "1 function");
        assert_eq!(many(0_u64, "function"), "0 functions");
        assert_eq!(many(2_usize, "process"), "2 processes");
    }

    #[test]
    fn foreign_text_becomes_printable() {
        assert_eq!(printable("a\x1b[2Jb\n\u{202e}c"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c");
        assert_eq!(file_name("/usr/sbin/mariadbd (deleted)"), "mariadbd (deleted)");
    }

    #[test]
    fn numbers() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            (cut("abcd", 4), cut("abcde", 4), cut("ab", 0)),
            ("abcd".into(), "abc…".into(), String::new())
        );
    }
}
