//! Compression of objects. Profiles are text that gzip makes several times smaller.

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use fleet::Refused;
use std::io::{Read, Write};

/// The most bytes of an unpacked object: a profile and its signature.
const LIMIT: usize = fleet::CONTRIBUTION_LIMIT + 4096;

/// Packs an object.
#[must_use]
pub fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// Unpacks an object, as far as an object may be.
///
/// # Errors
/// Returns [`Refused::Form`] for bytes that were not packed, and [`Refused::TooLarge`].
pub fn unpack(bytes: &[u8]) -> Result<Vec<u8>, Refused> {
    let mut out = Vec::new();
    let limit = u64::try_from(LIMIT).unwrap_or(u64::MAX) + 1;
    GzDecoder::new(bytes)
        .take(limit)
        .read_to_end(&mut out)
        .map_err(|_| Refused::Form("it is not packed by gzip, or damaged"))?;
    if out.len() > LIMIT { Err(Refused::TooLarge { limit: LIMIT }) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unpacked_is_what_was_packed_up_to_the_limit() {
        assert_eq!(unpack(&pack(b"some text")), Ok(b"some text".to_vec()));
        let bomb = pack(&vec![b'a'; 64 << 20]);
        assert!(bomb.len() < 100_000);
        assert_eq!(unpack(&bomb), Err(Refused::TooLarge { limit: LIMIT }));
        let whole = pack(b"some text");
        for cut in 0..whole.len() {
            assert!(unpack(&whole[..cut]).is_err(), "{cut}");
        }
    }
}
