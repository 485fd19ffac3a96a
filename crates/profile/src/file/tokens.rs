//! The tokens of a line of a profile.

use super::print::clean;
use super::{BuildId, Place};
use addr::Svma;

/// An error: the byte of the line at which it was found, and the message.
pub(super) struct Fault(pub(super) usize, pub(super) String);

pub(super) type Parsed<T> = Result<T, Fault>;

/// The tokens of a line.
pub(super) struct Tokens<'a> {
    pub(super) line: &'a str,
    pub(super) at: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

impl<'a> Tokens<'a> {
    fn skip_blanks(&mut self) -> &'a str {
        let rest = self.line.get(self.at..).unwrap_or_default();
        let trimmed = rest.trim_ascii_start();
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    pub(super) fn next(&mut self, what: &str) -> Parsed<Token<'a>> {
        let rest = self.skip_blanks();
        let text = rest.split(|c: char| c.is_ascii_whitespace()).next().unwrap_or_default();
        if text.is_empty() {
            return Err(Fault(self.at, format!("expected {what}")));
        }
        let token = Token { text, at: self.at };
        self.at += text.len();
        Ok(token)
    }

    /// Returns the rest of the line, which may be empty.
    pub(super) fn rest(&mut self) -> String {
        let rest = clean(self.skip_blanks());
        self.at = self.line.len();
        rest
    }

    pub(super) fn is_done(&mut self) -> bool {
        self.skip_blanks().is_empty()
    }

    pub(super) fn done(&mut self) -> Parsed<()> {
        if self.is_done() { Ok(()) } else { Err(Fault(self.at, "expected the end of the line".to_owned())) }
    }

    pub(super) fn keyword(&mut self, wanted: &str) -> Parsed<()> {
        let token = self.next(&format!("`{wanted}`"))?;
        if token.text == wanted { Ok(()) } else { Err(token.fault(&format!("expected `{wanted}`"))) }
    }

    pub(super) fn number(&mut self) -> Parsed<u64> {
        let token = self.next("a number")?;
        let digits = Some(token.text).filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
        digits.and_then(|t| t.parse().ok()).ok_or_else(|| token.fault("expected a number below 2^64"))
    }

    pub(super) fn distance(&mut self) -> Parsed<i64> {
        self.next("a distance")?.distance()
    }
}

impl Token<'_> {
    pub(super) fn fault(self, message: &str) -> Fault {
        Fault(self.at, format!("{message}, not {:?}", self.text))
    }

    pub(super) fn distance(self) -> Parsed<i64> {
        let wrong = || self.fault("expected a distance such as +1f or -20");
        let (negative, digits) = match self.text.as_bytes() {
            [b'+', ..] => (false, &self.text[1..]),
            [b'-', ..] => (true, &self.text[1..]),
            _ => return Err(wrong()),
        };
        let size = hex(digits).ok_or_else(wrong)?;
        let signed = if negative { 0i64.checked_sub_unsigned(size) } else { i64::try_from(size).ok() };
        signed.ok_or_else(wrong)
    }

    pub(super) fn address(self) -> Parsed<Svma> {
        let digits = self.text.strip_prefix("0x").and_then(hex);
        digits.map(Svma).ok_or_else(|| self.fault("expected an address such as 0x1f"))
    }

    /// Parses an address, with a build-id if it is in another module.
    pub(super) fn place(self) -> Parsed<Place> {
        let Some((at, id)) = self.text.split_once('@') else {
            return Ok(Place { module: None, at: self.address()? });
        };
        let id = Token { text: id, at: self.at + at.len() + 1 };
        Ok(Place { at: Token { text: at, at: self.at }.address()?, module: Some(id.build_id()?) })
    }

    pub(super) fn build_id(self) -> Parsed<BuildId> {
        BuildId::parse(self.text)
            .ok_or_else(|| self.fault("expected a build-id: an even number of hexadecimal digits"))
    }
}

/// Parses hexadecimal digits.
pub(super) fn hex(digits: &str) -> Option<u64> {
    let sound = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    sound.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}
