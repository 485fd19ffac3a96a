//! The address map as bytes, for storage in the target.
//!
//! ```text
//! map   := version:u8  fragments:uleb  (start:uleb  length:uleb)*  count:uleb  entry*
//! entry := (delta_at << 4 | movable << 3 | link):uleb  delta_original:sleb
//! ```
//! Deltas are from the entry before (from 0 at first); those of originals are modulo 2^64. `link` is 0 for a
//! copy, 1 for an extra instruction, 2 for a dropped one, 3 for one within a call, 4 for a further copy. The
//! version is 3. An instruction takes about three bytes. Older versions can still be read. Version 2 has two
//! bits for `link`. Version 1 has, in addition, only one fragment and no fragment count. A map without
//! further copies is written as version 2.

use crate::Fragments;
use crate::map::{AddressMap, Entry, Link};
use addr::{Addr, Avma, AvmaRange};

const VERSION: u8 = 3;
/// The version without further copies.
const ONE_COPY: u8 = 2;
/// The version with one fragment only.
const ONE_FRAGMENT: u8 = 1;
/// The smallest size of a fragment. Bytes.
const MIN_FRAGMENT: usize = 2;
/// The smallest size of an entry. Bytes.
const MIN_ENTRY: usize = 2;

/// The error for bytes that are not an address map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MapError {
    /// A version that this whet cannot read.
    #[error("address map of unknown version {0}")]
    Version(u8),
    /// The bytes are truncated, or longer than their counts say.
    #[error("address map of a wrong length")]
    Length,
    /// The numbers do not form a valid map.
    #[error("address map that contradicts itself")]
    Inconsistent,
}

impl AddressMap {
    /// Encodes the map.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // Most maps have no unrolled loop; version 2 makes them smaller.
        let again = self.entries().iter().any(|e| e.link == Link::Again);
        let (version, link_bits) = if again { (VERSION, 3) } else { (ONE_COPY, 2) };
        let mut out = vec![version];
        uleb(&mut out, self.fragments().ranges().count() as u64);
        for range in self.fragments().ranges() {
            uleb(&mut out, range.start.0);
            uleb(&mut out, range.len());
        }
        uleb(&mut out, self.entries().len() as u64);
        let (mut at, mut original) = (0, Avma(0));
        for e in self.entries() {
            let link = match e.link {
                Link::Copy => 0,
                Link::Extra => 1,
                Link::Dropped => 2,
                Link::Within => 3,
                Link::Again => 4,
            };
            let movable = u64::from(e.movable) << link_bits;
            uleb(&mut out, u64::from(e.at - at) << (link_bits + 1) | movable | link);
            sleb(&mut out, e.original.distance(original));
            (at, original) = (e.at, e.original);
        }
        out
    }

    /// Parses the result of [`AddressMap::to_bytes`].
    ///
    /// # Errors
    /// [`MapError`] for any other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MapError> {
        let mut r = Reader(bytes);
        let version = r.byte()?;
        let fragments = match version {
            VERSION | ONE_COPY => r.count(MIN_FRAGMENT)?,
            ONE_FRAGMENT => 1,
            v => return Err(MapError::Version(v)),
        };
        let link_bits = if version == VERSION { 3 } else { 2 };
        let mut ranges = Vec::with_capacity(fragments);
        for _ in 0..fragments {
            let start = Avma(r.uleb()?);
            let end = Avma(start.0.checked_add(r.uleb()?).ok_or(MapError::Inconsistent)?);
            ranges.push(AvmaRange::new(start, end));
        }
        let fragments = Fragments::new(&ranges).ok_or(MapError::Inconsistent)?;
        let count = r.count(MIN_ENTRY)?;
        let mut entries = Vec::with_capacity(count);
        let (mut at, mut original) = (0u32, Avma(0));
        for _ in 0..count {
            let head = r.uleb()?;
            let delta = u32::try_from(head >> (link_bits + 1)).map_err(|_| MapError::Inconsistent)?;
            at = at.checked_add(delta).ok_or(MapError::Inconsistent)?;
            original = original.offset(r.sleb()?);
            let link = match head & ((1 << link_bits) - 1) {
                0 => Link::Copy,
                1 => Link::Extra,
                2 => Link::Dropped,
                3 => Link::Within,
                4 => Link::Again,
                _ => return Err(MapError::Inconsistent),
            };
            entries.push(Entry { at, original, link, movable: head >> link_bits & 1 != 0 });
        }
        if !r.0.is_empty() {
            return Err(MapError::Length);
        }
        Self::new(fragments, entries).ok_or(MapError::Inconsistent)
    }
}

fn uleb(out: &mut Vec<u8>, mut v: u64) {
    loop {
        let [low, ..] = v.to_le_bytes();
        v >>= 7;
        if v == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

fn sleb(out: &mut Vec<u8>, mut v: i64) {
    loop {
        let [low, ..] = v.to_le_bytes();
        v >>= 7;
        let sign = if low & 0x40 == 0 { 0 } else { -1 };
        if v == sign {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8, MapError> {
        let (b, rest) = self.0.split_first().ok_or(MapError::Length)?;
        self.0 = rest;
        Ok(*b)
    }

    /// Reads a number of elements of at least `least` bytes each. The number is checked before memory is
    /// reserved.
    fn count(&mut self, least: usize) -> Result<usize, MapError> {
        let count = usize::try_from(self.uleb()?).map_err(|_| MapError::Length)?;
        if count > self.0.len() / least { Err(MapError::Length) } else { Ok(count) }
    }

    /// Reads a LEB128 number: its bits, how many bits its groups of 7 have, and its last byte.
    fn leb(&mut self) -> Result<(u64, u32, u8), MapError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            let bits = u64::from(b & 0x7f);
            // The tenth byte has room for one bit; in a signed number all seven bits repeat it.
            if shift == 63 && !matches!(b, 0 | 1 | 0x7f) {
                return Err(MapError::Inconsistent);
            }
            value |= bits << shift;
            if b & 0x80 == 0 {
                return Ok((value, shift + 7, b));
            }
        }
        Err(MapError::Inconsistent)
    }

    fn uleb(&mut self) -> Result<u64, MapError> {
        match self.leb()? {
            (_, 70, 0x7f) => Err(MapError::Inconsistent),
            (v, ..) => Ok(v),
        }
    }

    fn sleb(&mut self) -> Result<i64, MapError> {
        let (v, bits, last) = self.leb()?;
        let extend = if last & 0x40 != 0 && bits < 64 { u64::MAX << bits } else { 0 };
        Ok((v | extend).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_a_round_trip() {
        for v in [0, 1, 63, 64, 127, 128, 1 << 32, i64::MAX, i64::MIN, -1, -64, -65, i64::MIN + 1] {
            let mut b = Vec::new();
            sleb(&mut b, v);
            assert_eq!(Reader(&b).sleb(), Ok(v), "{v}");
            b.clear();
            uleb(&mut b, v.cast_unsigned());
            assert_eq!(Reader(&b).uleb(), Ok(v.cast_unsigned()), "{v}");
        }
    }

    fn entries_of(map: &AddressMap) -> impl Iterator<Item = Link> {
        map.entries().iter().map(|e| e.link)
    }

    /// Encodes a map in an older version.
    fn older(map: &AddressMap, version: u8) -> Vec<u8> {
        let mut out = vec![version];
        if version != ONE_FRAGMENT {
            uleb(&mut out, map.fragments().ranges().count() as u64);
        }
        for range in map.fragments().ranges() {
            uleb(&mut out, range.start.0);
            uleb(&mut out, range.len());
        }
        uleb(&mut out, map.entries().len() as u64);
        let (mut at, mut original) = (0, Avma(0));
        for e in map.entries() {
            let link =
                [Link::Copy, Link::Extra, Link::Dropped, Link::Within].iter().position(|l| *l == e.link);
            uleb(&mut out, u64::from(e.at - at) << 3 | u64::from(e.movable) << 2 | link.unwrap() as u64);
            sleb(&mut out, e.original.distance(original));
            (at, original) = (e.at, e.original);
        }
        out
    }

    #[test]
    fn maps_survive_a_round_trip() {
        arbtest::arbtest(|u| {
            let mut entries: Vec<Entry> = Vec::new();
            let mut ends = Vec::new();
            let mut at = 0u32;
            for i in 0..u.int_in_range(1..=40u64)? {
                // Originals in no order, each once.
                let original = Avma(u.int_in_range(0..=1u64 << 40)? << 8 | i);
                let mut link =
                    *u.choose(&[Link::Copy, Link::Copy, Link::Extra, Link::Dropped, Link::Again])?;
                let copied = entries.iter().find(|e| e.link == Link::Copy).map(|e| e.original);
                if link == Link::Again && copied.is_none() {
                    link = Link::Copy;
                }
                let original = copied.filter(|_| link == Link::Again).unwrap_or(original);
                entries.push(Entry { at, original, link, movable: u.arbitrary()? });
                if link != Link::Dropped {
                    at += u.int_in_range(1..=15)?;
                    if u.ratio(1, 8)? {
                        ends.push(at);
                    }
                }
            }
            if entries.last().is_some_and(|e| e.link == Link::Dropped) {
                return Ok(());
            }
            // Fragments whose addresses are in no order.
            ends.retain(|&e| e < at);
            ends.push(at);
            let mut from = 0;
            let mut ranges = Vec::new();
            for (i, end) in (0u64..).zip(ends) {
                let start = Avma(u.int_in_range(0..=1u64 << 30)? << 16 | i << 10);
                ranges.push(AvmaRange::with_len(start, u64::from(end - from)));
                from = end;
            }
            let Some(fragments) = Fragments::new(&ranges) else { return Ok(()) };
            let map = AddressMap::new(fragments, entries).unwrap();
            let bytes = map.to_bytes();
            assert!(AddressMap::from_bytes(&bytes[..bytes.len() - 1]).is_err());
            let is_old = entries_of(&map).all(|l| l != Link::Again);
            for version in [ONE_FRAGMENT, ONE_COPY] {
                if is_old && (version == ONE_COPY || ranges.len() == 1) {
                    assert_eq!(AddressMap::from_bytes(&older(&map, version)), Ok(map.clone()), "{version}");
                }
            }
            assert_eq!(AddressMap::from_bytes(&bytes), Ok(map));
            Ok(())
        })
        .budget_ms(500);
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        arbtest::arbtest(|u| {
            let mut bytes = vec![*u.choose(&[ONE_FRAGMENT, ONE_COPY, VERSION])?];
            bytes.extend(u.arbitrary::<Vec<u8>>()?);
            if let Ok(map) = AddressMap::from_bytes(&bytes) {
                // A map that is accepted can be queried, and is the same after encoding and parsing.
                for e in map.entries() {
                    let _ = (
                        map.to_clone(e.original),
                        map.to_original(e.original),
                        map.move_to_clone(e.original),
                    );
                }
                assert_eq!(AddressMap::from_bytes(&map.to_bytes()), Ok(map));
            }
            Ok(())
        })
        .budget_ms(1000);
    }

    #[test]
    fn wrong_versions_and_lengths_are_rejected() {
        let read = AddressMap::from_bytes;
        assert_eq!(read(&[4, 1, 0, 1, 1, 0, 0]), Err(MapError::Version(4)));
        assert_eq!(read(&[]), Err(MapError::Length));
        assert!(read(&[1, 0, 1, 1, 0, 0]).is_ok());
        assert!(read(&[2, 1, 0, 1, 1, 0, 0]).is_ok());
        assert_eq!(read(&[2, 0, 1, 0, 0]), Err(MapError::Inconsistent), "no fragment");
        assert_eq!(read(&[2, 1, 0, 1, 1, 0, 0, 0]), Err(MapError::Length));
        for many in
            [&[2, 0xff, 0xff, 0xff, 0xff, 0x7f][..], &[2, 1, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]]
        {
            assert_eq!(read(many), Err(MapError::Length));
        }
        assert!(read(&[2, 1, 0, 1, 1, 3, 0]).is_ok(), "within a call");
        assert!(read(&[3, 1, 0, 1, 1, 3, 0]).is_ok(), "within a call");
        assert_eq!(read(&[3, 1, 0, 1, 1, 4, 0]), Err(MapError::Inconsistent), "again without a copy");
        assert_eq!(read(&[3, 1, 0, 1, 1, 5, 0]), Err(MapError::Inconsistent), "no such link");
    }
}
