//! Names: of builds, classes, hosts, days and contents, and the keys of the store made of them.
//!
//! ```text
//! v1/policy                                          the operator's policy, signed
//! v1/clock                                           written by mergers, to read the store's time
//! v1/names/NAME/CLASS                                the newest build of a program, signed
//! v1/BUILD/CLASS/c/HOST/DAY/DIGEST                   a contribution: written once
//! v1/BUILD/CLASS/m/DIGEST                            an aggregate, signed: written once
//! v1/BUILD/CLASS/h/SERIAL                            a head, signed: written once; the greatest is in force
//! v1/BUILD/CLASS/head                                a copy of the head in force
//! v1/BUILD/CLASS/v/DIGEST/harm/HOST (or good/HOST)   a vote on an aggregate
//! ```

use crate::{Name, Refused};
use profile::BuildId;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// The build of a program: its build-id.
pub type Build = BuildId;

/// The operator's label for hosts that run a program in the same way. A primary and a replica run different
/// code, so they have different classes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Class(String);

impl Default for Class {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl FromStr for Class {
    type Err = Refused;

    fn from_str(text: &str) -> Result<Self, Refused> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let fits = (1..=32).contains(&text.len()) && text.bytes().all(plain);
        let what = "class: 1 to 32 of a-z, 0-9 and -";
        fits.then(|| Self(text.to_owned())).ok_or_else(|| Refused::Name(text.to_owned(), what))
    }
}

impl TryFrom<String> for Class {
    type Error = Refused;

    fn try_from(text: String) -> Result<Self, Refused> {
        text.parse()
    }
}

impl From<Class> for String {
    fn from(class: Class) -> Self {
        class.0
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Parses exactly `N` bytes of lower-case hexadecimal digits.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let id = BuildId::parse(text)?;
    id.bytes().try_into().ok()
}

macro_rules! hex_name {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub [u8; $bytes]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex(&self.0))
            }
        }

        impl FromStr for $name {
            type Err = Refused;

            fn from_str(text: &str) -> Result<Self, Refused> {
                unhex(text).map(Self).ok_or_else(|| Refused::Name(text.to_owned(), $what))
            }
        }

        impl TryFrom<String> for $name {
            type Error = Refused;

            fn try_from(text: String) -> Result<Self, Refused> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.to_string()
            }
        }
    };
}

pub(crate) use hex_name;

hex_name!(
    /// The SHA-256 of a content.
    Digest,
    32,
    "digest: 64 hexadecimal digits"
);
hex_name!(
    /// A host. It names the host without giving its name away.
    HostId,
    16,
    "host: 32 hexadecimal digits"
);

impl Digest {
    /// Returns the digest of some bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl HostId {
    /// Returns the id of the host with this machine id, or other text that only this host has.
    #[must_use]
    pub fn of(machine: &str) -> Self {
        let sum: [u8; 32] =
            Sha256::new().chain_update(b"whet-fleet host\0").chain_update(machine).finalize().into();
        let mut id = [0; 16];
        id.copy_from_slice(&sum[..16]);
        Self(id)
    }
}

/// A day: days since the Unix epoch, UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Day(pub u32);

impl Day {
    /// Returns the day of a moment, in seconds of the Unix epoch.
    #[must_use]
    pub fn of(seconds: u64) -> Self {
        Self(u32::try_from(seconds / 86_400).unwrap_or(u32::MAX))
    }
}

/// A program as the fleet sees it: its build, and the class of its hosts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Program {
    /// The build-id of the program's file.
    pub build: Build,
    /// The class of the hosts that run it.
    pub class: Class,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.build, self.class)
    }
}

/// The name of an object in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Key {
    /// The policy.
    Policy,
    /// The object whose time is the store's time.
    Clock,
    /// The record of the newest build of a program of this name, for the hosts of the class.
    Newest(Name),
    /// A contribution.
    Contribution {
        /// The day on which the host made it, by the host's clock.
        day: Day,
        /// The host.
        host: HostId,
        /// The digest of the profile's text.
        digest: Digest,
    },
    /// An aggregate, by the digest of its text.
    Aggregate(Digest),
    /// A head, by its serial number.
    Head(u64),
    /// The copy of the head in force.
    Current,
    /// A vote.
    Vote {
        /// The aggregate.
        digest: Digest,
        /// The aggregate did harm.
        harm: bool,
        /// The host that votes.
        host: HostId,
    },
}

impl Key {
    /// Returns the path of the object in the store.
    #[must_use]
    pub fn path(&self, program: &Program) -> String {
        let of = format!("v1/{}/{}", program.build, program.class);
        match self {
            Self::Policy => "v1/policy".to_owned(),
            Self::Clock => "v1/clock".to_owned(),
            Self::Newest(name) => format!("v1/names/{name}/{}", program.class),
            Self::Contribution { day, host, digest } => format!("{of}/c/{host}/{:06}/{digest}", day.0),
            Self::Aggregate(digest) => format!("{of}/m/{digest}"),
            Self::Head(serial) => format!("{of}/h/{serial:012}"),
            Self::Current => format!("{of}/head"),
            Self::Vote { digest, harm, host } => {
                format!("{of}/v/{digest}/{}/{host}", if *harm { "harm" } else { "good" })
            }
        }
    }

    /// Parses a path as [`Key::path`] returns it; returns `None` for any other path.
    #[must_use]
    pub fn parse(path: &str) -> Option<(Option<Program>, Self)> {
        let parts: Vec<&str> = path.split('/').collect();
        let program = |build: &str, class: &str| {
            Some(Program { build: Build::parse(build)?, class: class.parse().ok()? })
        };
        let number = |text: &str, digits: usize| {
            let plain = text.len() == digits && text.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| text.parse::<u64>().ok()).flatten()
        };
        Some(match parts.as_slice() {
            ["v1", "policy"] => (None, Self::Policy),
            ["v1", "clock"] => (None, Self::Clock),
            ["v1", "names", name, class] => {
                let _: Class = class.parse().ok()?;
                (None, Self::Newest(name.parse().ok()?))
            }
            ["v1", build, class, rest @ ..] => {
                let key = match rest {
                    ["head"] => Self::Current,
                    ["m", digest] => Self::Aggregate(digest.parse().ok()?),
                    ["h", serial] => Self::Head(number(serial, 12)?),
                    ["c", host, day, digest] => Self::Contribution {
                        day: Day(u32::try_from(number(day, 6)?).ok()?),
                        host: host.parse().ok()?,
                        digest: digest.parse().ok()?,
                    },
                    ["v", digest, kind @ ("harm" | "good"), host] => Self::Vote {
                        digest: digest.parse().ok()?,
                        harm: *kind == "harm",
                        host: host.parse().ok()?,
                    },
                    _ => return None,
                };
                (Some(program(build, class)?), key)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        let program = Program { build: Build::parse("0f3a").unwrap(), class: Class::default() };
        let (host, digest) = (HostId::of("a"), Digest::of(b"b"));
        for key in [
            Key::Policy,
            Key::Clock,
            Key::Newest(Name::of("/usr/sbin/x").unwrap()),
            Key::Contribution { day: Day(20_000), host, digest },
            Key::Aggregate(digest),
            Key::Head(7),
            Key::Current,
            Key::Vote { digest, harm: true, host },
            Key::Vote { digest, harm: false, host },
        ] {
            let path = key.path(&program);
            let is_of_one_build = !path.starts_with("v1/names/") && ![Key::Policy, Key::Clock].contains(&key);
            let of = is_of_one_build.then(|| program.clone());
            assert_eq!(Key::parse(&path), Some((of, key)), "{path}");
            assert_eq!(Key::parse(&format!("{path}/x")), None);
        }
        for wrong in ["", "v2/policy", "v1/0f3a/Default/head", "v1/0f/a/h/7", "v1/../a/head", "v1/0f/a/m/12"]
        {
            assert_eq!(Key::parse(wrong), None, "{wrong}");
        }
        assert!("../x".parse::<Class>().is_err() && "".parse::<Class>().is_err());
        assert!("replica-2".parse::<Class>().is_ok());
    }
}
