//! JSON texts that state the version of their form.

use crate::Refused;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Parses a text of a version that is not newer than `newest`. The version is read first: of a newer form nothing
/// else may be assumed.
///
/// # Errors
/// [`Refused::Content`], [`Refused::Newer`]
pub(crate) fn parse<T: DeserializeOwned>(content: &[u8], newest: u32) -> Result<T, Refused> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let refused = |e: serde_json::Error| Refused::Content(e.to_string());
    let Version { version } = serde_json::from_slice(content).map_err(refused)?;
    if version > newest {
        return Err(Refused::Newer(version));
    }
    serde_json::from_slice(content).map_err(refused)
}
