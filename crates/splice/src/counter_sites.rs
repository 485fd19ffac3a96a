//! The notes of a code cache that counts: its accesses to counters' memory, and the bytes of these
//! instructions.
//!
//! Format: magic, number of places (4 bytes), for each place its distance from the start of the text (4), for
//! each place the first bytes of its instruction ([`HEAD`]), then additions of the installer. Little-endian.
//! Earlier whets wrote only magic and distances.

/// The first bytes of notes with the instructions' heads.
const MAGIC: [u8; 8] = *b"whetgs02";
/// The first bytes of notes without heads.
const WITHOUT_HEADS: [u8; 8] = *b"whetgs01";
/// How many first bytes of an instruction are kept: all that the end of counting may change.
pub(crate) const HEAD: usize = 5;

/// The places of a cache that counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CounterSites {
    /// Offsets from the start of the text, ascending. Bytes.
    pub(crate) places: Vec<u32>,
    /// The instructions' first bytes; empty in notes of an older whet.
    pub(crate) heads: Vec<[u8; HEAD]>,
    /// The additions of the installer.
    pub added: Vec<u8>,
}

impl CounterSites {
    /// Finds the heads of the instructions at `places` in a text.
    #[must_use]
    pub fn new(places: &[u32], text: &[u8]) -> Self {
        let head = |&at: &u32| {
            let from = usize::try_from(at).ok()?;
            text.get(from..)?.first_chunk().copied()
        };
        Self { places: places.to_vec(), heads: places.iter().filter_map(head).collect(), added: Vec::new() }
    }

    /// Returns its bytes in the target.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let count = u32::try_from(self.places.len()).unwrap_or(u32::MAX).to_le_bytes();
        let places = self.places.iter().flat_map(|s| s.to_le_bytes());
        let heads = self.heads.iter().flatten().copied();
        MAGIC.into_iter().chain(count).chain(places).chain(heads).chain(self.added.iter().copied()).collect()
    }

    /// Reads notes that this version or an earlier version of whet has written.
    #[must_use]
    pub fn read(notes: &[u8]) -> Option<Self> {
        let words = |bytes: &[[u8; 4]]| bytes.iter().map(|w| u32::from_le_bytes(*w)).collect();
        if let Some(rest) = notes.strip_prefix(&WITHOUT_HEADS) {
            let (places, rest) = rest.as_chunks::<4>();
            return rest.is_empty().then(|| Self { places: words(places), ..Self::default() });
        }
        let (count, rest) = notes.strip_prefix(&MAGIC)?.split_first_chunk::<4>()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let (places, rest) = rest.split_at_checked(count.checked_mul(4)?)?;
        let (heads, added) = rest.split_at_checked(count.checked_mul(HEAD)?)?;
        Some(Self {
            places: words(places.as_chunks::<4>().0),
            heads: heads.as_chunks::<HEAD>().0.to_vec(),
            added: added.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_back() {
        let text: Vec<u8> = (0..40).collect();
        let sites = CounterSites { added: b"more".to_vec(), ..CounterSites::new(&[3, 20], &text) };
        assert_eq!(sites.heads, [[3, 4, 5, 6, 7], [20, 21, 22, 23, 24]]);
        assert_eq!(CounterSites::read(&sites.write()), Some(sites.clone()));
        assert_eq!(CounterSites::read(&sites.write()[..29]), None);
        let none = CounterSites::new(&[], &[]);
        assert_eq!(CounterSites::read(&none.write()), Some(none));
        assert_eq!(CounterSites::read(&[]), None);
        // Notes of an earlier whet.
        let old = CounterSites { places: vec![3], ..CounterSites::default() };
        assert_eq!(CounterSites::read(b"whetgs01\x03\0\0\0"), Some(old));
        assert_eq!(CounterSites::read(b"whetgs01\x03\0\0"), None);
    }

    /// The one-second form of the fuzz target: arbitrary bytes cause no panic.
    #[test]
    fn any_bytes_are_read_or_refused() {
        arbtest::arbtest(|u| {
            let mut notes = MAGIC.to_vec();
            notes.extend(u.arbitrary::<Vec<u8>>()?);
            let _ = CounterSites::read(&notes);
            Ok(())
        })
        .budget_ms(1000);
    }
}
