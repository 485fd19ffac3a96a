//! Signed documents: aggregates, heads and the policy.
//!
//! A document is a signature in minisign's form (four lines of text), and then the content. The trusted
//! comment, which the signature covers as well, states what the content is. So a signed document cannot be
//! used in the place of another. `head -n 4` and `tail -n +5` make the two files that `minisign -V` verifies.

use crate::{Build, Class, Name, Program, Refused};
use minisign_verify::{PublicKey, Signature};
use std::fmt;

/// The number of lines of a signature.
const LINES: usize = 4;
/// The most bytes of these lines.
const SIGNATURE_LIMIT: usize = 1024;

/// The use for which a document was signed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A profile for the hosts of a program.
    Aggregate(Program),
    /// The head of a program.
    Head(Program),
    /// The record of the newest build of a program.
    Newest(Name, Class),
    /// The operator's policy.
    Policy,
}

/// How the purpose of an aggregate begins; a program follows.
const AGGREGATE: &str = "whet-fleet 1 aggregate ";

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aggregate(program) => write!(f, "{AGGREGATE}{program}"),
            Self::Head(program) => write!(f, "whet-fleet 1 head {program}"),
            Self::Newest(name, class) => write!(f, "whet-fleet 1 newest {name} {class}"),
            Self::Policy => f.write_str("whet-fleet 1 policy"),
        }
    }
}

/// The public keys that a host trusts.
#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<PublicKey>);

impl Keys {
    /// Parses keys in minisign's form, as in the second line of a public key file.
    ///
    /// # Errors
    /// [`Refused::NoKey`]
    pub fn parse<T: AsRef<str>>(keys: &[T]) -> Result<Self, Refused> {
        let key = |text: &T| {
            let text = text.as_ref().trim();
            PublicKey::from_base64(text).map_err(|_| Refused::NoKey(text.to_owned()))
        };
        Ok(Self(keys.iter().map(key).collect::<Result<_, _>>()?))
    }

    /// Returns whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Verifies a document, and returns its content.
    ///
    /// # Errors
    /// [`Refused`], if the form, the signature or the purpose is wrong.
    pub fn open<'a>(&self, bytes: &'a [u8], purpose: &Purpose) -> Result<&'a [u8], Refused> {
        let document = self.verify(bytes)?;
        let (found, wanted) = (document.purpose(), purpose.to_string());
        if found == wanted {
            Ok(document.content)
        } else {
            Err(Refused::OtherPurpose { found: found.to_owned(), wanted })
        }
    }

    /// Verifies an aggregate of another build than the program's, for hosts of the same class. Returns that build
    /// and the content.
    ///
    /// # Errors
    /// Same as [`Keys::open`].
    pub fn open_former<'a>(&self, bytes: &'a [u8], program: &Program) -> Result<(Build, &'a [u8]), Refused> {
        let document = self.verify(bytes)?;
        match document.aggregate_of() {
            Some(of) if of.class == program.class && of.build != program.build => {
                Ok((of.build, document.content))
            }
            _ => {
                let wanted = format!("{AGGREGATE}OTHER-BUILD {}", program.class);
                Err(Refused::OtherPurpose { found: document.purpose().to_owned(), wanted })
            }
        }
    }

    fn verify<'a>(&self, bytes: &'a [u8]) -> Result<Signed<'a>, Refused> {
        let document = Signed::parse(bytes)?;
        let mut wrong = None;
        for key in &self.0 {
            match key.verify(document.content, &document.signature, false) {
                Ok(()) => return Ok(document),
                Err(minisign_verify::Error::UnexpectedKeyId) => {}
                Err(_) => wrong = Some(Refused::WrongSignature),
            }
        }
        Err(wrong.unwrap_or_else(|| Refused::UnknownKey(document.key_id())))
    }
}

/// A document whose form is right; its signature is not verified.
pub struct Signed<'a> {
    /// The content.
    pub content: &'a [u8],
    signature: Signature,
    lines: &'a str,
}

impl fmt::Debug for Signed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signed {{ by {}, {} bytes }}", self.key_id(), self.content.len())
    }
}

impl<'a> Signed<'a> {
    /// Divides a document into signature and content.
    ///
    /// # Errors
    /// [`Refused::Form`]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Refused> {
        let head = bytes.get(..SIGNATURE_LIMIT.min(bytes.len())).unwrap_or_default();
        let ends = head.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at + 1);
        let end =
            ends.take(LINES).nth(LINES - 1).ok_or(Refused::Form("it does not begin with a signature"))?;
        let (lines, content) = bytes.split_at(end);
        let lines = std::str::from_utf8(lines).map_err(|_| Refused::Form("its signature is no text"))?;
        if !lines.starts_with("untrusted comment: ") {
            return Err(Refused::Form("it does not begin with a signature"));
        }
        let signature =
            Signature::decode(lines).map_err(|_| Refused::Form("its signature cannot be decoded"))?;
        Ok(Self { content, signature, lines })
    }

    fn purpose(&self) -> &str {
        self.signature.trusted_comment()
    }

    /// Returns the program of which it says to be an aggregate; `None` if it is another kind of document.
    #[must_use]
    pub fn aggregate_of(&self) -> Option<Program> {
        let (build, class) = self.purpose().strip_prefix(AGGREGATE)?.split_once(' ')?;
        Some(Program { build: Build::parse(build)?, class: class.parse().ok()? })
    }

    /// Returns the id of the key as minisign prints it. It is bytes 2 to 9 of the signature, little endian.
    fn key_id(&self) -> String {
        let digits = self.lines.lines().nth(1).unwrap_or_default().bytes().filter_map(|b| match b {
            b'A'..=b'Z' => Some(b - b'A'),
            b'a'..=b'z' => Some(b - b'a' + 26),
            b'0'..=b'9' => Some(b - b'0' + 52),
            b'+' => Some(62),
            b'/' => Some(63),
            _ => None,
        });
        let bits: Vec<u8> = digits.take(14).collect();
        let byte = |i: usize| {
            let bit = i * 8;
            let two = u16::from(*bits.get(bit / 6).unwrap_or(&0)) << 6
                | u16::from(*bits.get(bit / 6 + 1).unwrap_or(&0));
            u8::try_from(two >> (4 - bit % 6) & 0xff).unwrap_or(0)
        };
        (2..10).rev().map(|i| format!("{:02X}", byte(i))).collect()
    }
}

/// Joins a signature in minisign's form and the content it was made for.
#[must_use]
pub fn seal(signature: &str, content: &[u8]) -> Vec<u8> {
    let mut bytes = signature.trim_end_matches('\n').as_bytes().to_vec();
    bytes.push(b'\n');
    bytes.extend_from_slice(content);
    bytes
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
