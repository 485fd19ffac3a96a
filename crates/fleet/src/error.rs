//! The reasons why a document or a profile of the fleet is not used.

use profile::ProfileError;

/// The reason why bytes from the store or from the spool folder are refused. A refusal changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// There are more bytes than any such document has.
    #[error("it has more than {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The bytes do not have the form of a signed document.
    #[error("it is no signed document: {0}")]
    Form(&'static str),
    /// No configured key made the signature.
    #[error("its signature is by none of the configured keys (key id {0})")]
    UnknownKey(String),
    /// A configured key is named, but the signature does not fit the bytes.
    #[error("its signature is wrong: it was changed, or cut off")]
    WrongSignature,
    /// A key of the configuration is no public key.
    #[error("the key {0:?} is no minisign public key")]
    NoKey(String),
    /// The document was signed for another use.
    #[error("it was signed as {found:?}, not as {wanted:?}")]
    OtherPurpose {
        /// The purpose in the document.
        found: String,
        /// The purpose that was expected.
        wanted: String,
    },
    /// The content is no profile.
    #[error("it holds no profile: {0}")]
    Profile(#[from] ProfileError),
    /// The content is no description of a head, a policy or a report.
    #[error("its content cannot be read: {0}")]
    Content(String),
    /// A later version of whet wrote it.
    #[error("it has version {0}, which only a later whet reads")]
    Newer(u32),
    /// The content has another digest than its name.
    #[error("its content does not have the digest in its name")]
    OtherDigest,
    /// The profile has no function of the build.
    #[error("it has no function of build {0}")]
    OtherBuild(String),
    /// The profile is not of the program for which it was read.
    #[error("it is of another program, or does not say of which")]
    OtherProgram,
    /// A newer document was seen before.
    #[error("it is older than one that was seen before (serial {found}, seen {seen})")]
    Older {
        /// The serial number in the document.
        found: u64,
        /// The greatest serial number that was seen.
        seen: u64,
    },
    /// The name does not have the form of such names.
    #[error("{0:?} is no {1}")]
    Name(String, &'static str),
}

impl Refused {
    /// Returns the stable name of the reason, for JSON and metrics.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "too_large",
            Self::Form(_) => "form",
            Self::UnknownKey(_) => "unknown_key",
            Self::WrongSignature => "wrong_signature",
            Self::NoKey(_) => "no_key",
            Self::OtherPurpose { .. } => "other_purpose",
            Self::Profile(_) => "no_profile",
            Self::Content(_) => "content",
            Self::Newer(_) => "newer",
            Self::OtherDigest => "other_digest",
            Self::OtherBuild(_) => "other_build",
            Self::OtherProgram => "other_program",
            Self::Older { .. } => "older",
            Self::Name(..) => "name",
        }
    }
}
