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

/// An instruction that accesses a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CounterSite {
    /// Its offset from the start of the text. Bytes.
    pub(crate) place: u32,
    /// Its first bytes; `None` in notes of an older whet.
    pub(crate) head: Option<[u8; HEAD]>,
}

/// The notes of a cache that counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CounterSites {
    /// By rising offset.
    pub(crate) sites: Vec<CounterSite>,
    /// The additions of the installer.
    pub added: Vec<u8>,
}

impl CounterSites {
    /// Finds the heads of the instructions at `places` in a text.
    #[must_use]
    pub fn new(places: &[u32], text: &[u8]) -> Self {
        let head = |place: u32| text.get(usize::try_from(place).ok()?..)?.first_chunk().copied();
        let sites = places.iter().map(|&place| CounterSite { place, head: head(place) }).collect();
        Self { sites, added: Vec::new() }
    }

    /// Returns its bytes in the target.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let count = u32::try_from(self.sites.len()).unwrap_or(u32::MAX).to_le_bytes();
        let places = self.sites.iter().flat_map(|s| s.place.to_le_bytes());
        // No instruction of a counter begins with zeros, so such a site never counts again.
        let heads = self.sites.iter().flat_map(|s| s.head.unwrap_or_default());
        MAGIC.into_iter().chain(count).chain(places).chain(heads).chain(self.added.iter().copied()).collect()
    }

    /// Reads notes that this version or an earlier version of whet has written.
    #[must_use]
    pub fn read(notes: &[u8]) -> Option<Self> {
        let site = |place: &[u8; 4], head| CounterSite { place: u32::from_le_bytes(*place), head };
        if let Some(rest) = notes.strip_prefix(&WITHOUT_HEADS) {
            let (places, rest) = rest.as_chunks::<4>();
            let sites = || places.iter().map(|place| site(place, None)).collect();
            return rest.is_empty().then(|| Self { sites: sites(), added: Vec::new() });
        }
        let (count, rest) = notes.strip_prefix(&MAGIC)?.split_first_chunk::<4>()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let (places, rest) = rest.split_at_checked(count.checked_mul(4)?)?;
        let (heads, added) = rest.split_at_checked(count.checked_mul(HEAD)?)?;
        let sites = places.as_chunks::<4>().0.iter().zip(heads.as_chunks::<HEAD>().0);
        let sites = sites.map(|(place, head)| site(place, Some(*head))).collect();
        Some(Self { sites, added: added.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_back() {
        let text: Vec<u8> = (0..40).collect();
        let sites = CounterSites { added: b"more".to_vec(), ..CounterSites::new(&[3, 20], &text) };
        let heads = sites.sites.iter().map(|s| s.head);
        assert!(heads.eq([Some([3, 4, 5, 6, 7]), Some([20, 21, 22, 23, 24])]));
        assert_eq!(CounterSites::read(&sites.write()), Some(sites.clone()));
        assert_eq!(CounterSites::read(&sites.write()[..29]), None);
        let none = CounterSites::new(&[], &[]);
        assert_eq!(CounterSites::read(&none.write()), Some(none));
        assert_eq!(CounterSites::read(&[]), None);
        // Notes of an earlier whet.
        let old = CounterSites { sites: vec![CounterSite { place: 3, head: None }], added: Vec::new() };
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
