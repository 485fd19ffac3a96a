//! The build-id: it identifies a build of a module.

use std::fmt;

/// The linker's build-id, or the id that `image` derives for a module that has none: some bytes, printed as
/// lower-case hexadecimal digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BuildId(Vec<u8>);

impl BuildId {
    /// The largest size: that of the longest hash that linkers support. Bytes.
    pub const MAX: usize = 64;

    /// Returns the id with these bytes; `None` if there are none, or more than [`BuildId::MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (1..=Self::MAX).contains(&bytes.len()).then(|| Self(bytes.to_vec()))
    }

    /// Parses the text that `Display` writes; returns `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        let value = |d: u8| match d {
            b'0'..=b'9' => Some(d - b'0'),
            b'a'..=b'f' => Some(d - b'a' + 10),
            _ => None,
        };
        let (pairs, []) = digits.as_chunks::<2>() else { return None };
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|&[high, low]| Some(value(high)? << 4 | value(low)?)).collect();
        Self::new(&bytes?)
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}
