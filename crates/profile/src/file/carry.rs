//! A function's profile, carried over to the same function in another build.

use super::{FunctionProfile, Looks, Place, SiteProfile};
use addr::Addr;
use code::Cfg;
use std::collections::{BTreeMap, BTreeSet};

impl FunctionProfile {
    /// Returns this profile for a graph whose main fragment has the same [`super::shape()`]; `None` if the
    /// graph is divided into other blocks. `place` returns where a place of the old build is in the new one.
    /// Places that it does not know become unnamed observations. What lies outside the main fragment is left
    /// out: its distance from the entry is another one in each build.
    pub fn carried(&self, cfg: &Cfg, place: impl Fn(&Place) -> Option<Place>) -> Option<Self> {
        let inside = |at: i64| u64::try_from(at).is_ok_and(|at| at < self.size);
        let starts: BTreeSet<i64> =
            cfg.blocks.iter().map(|b| b.range.start.distance(cfg.entry)).filter(|&at| inside(at)).collect();
        let blocks: BTreeMap<i64, _> =
            self.blocks.iter().filter(|(at, _)| inside(**at)).map(|(&at, b)| (at, b.clone())).collect();
        if cfg.parts.first().is_none_or(|main| main.len() != self.size)
            || !blocks.keys().all(|at| starts.contains(at))
        {
            return None;
        }
        let looks = |looks: &Looks| Looks {
            all: looks.all,
            saw: looks.saw.iter().filter_map(|(p, &n)| Some((place(p)?, n))).collect(),
        };
        let site = |s: &SiteProfile| SiteProfile { callees: looks(&s.callees), tables: looks(&s.tables) };
        Some(Self {
            blocks,
            hits: self.hits.iter().filter(|(at, _)| starts.contains(at)).map(|(&at, &n)| (at, n)).collect(),
            calls: self.calls.iter().filter_map(|((at, p), &n)| Some(((*at, place(p)?), n))).collect(),
            sites: self.sites.iter().map(|(&at, s)| (at, site(s))).collect(),
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::test_cfg::{cfg_at, cond, fall, ret};
    use crate::{BlockProfile, BuildId, FunctionProfile, Looks, Place, SiteProfile};
    use addr::Svma;

    fn block(count: u64, edges: &[(i64, u64)]) -> BlockProfile {
        BlockProfile { last: 0, count, edges: edges.iter().copied().collect() }
    }

    #[test]
    fn places_move_and_the_rest_stays() {
        let cfg = cfg_at(0x5000, &[(2, cond(2, 1)), (1, fall(2)), (1, ret())]);
        let start = |i: usize| cfg.blocks[i].range.start.0.cast_signed() - 0x5000;
        let size = cfg.parts[0].len();
        let far = i64::try_from(size).unwrap() + 0x1000;
        let (known, unknown) =
            (Place { module: None, at: Svma(0x10) }, Place { module: None, at: Svma(0x20) });
        let looks = Looks { all: 9, saw: [(known.clone(), 5), (unknown.clone(), 3)].into() };
        let old = FunctionProfile {
            size,
            blocks: [(0, block(7, &[(start(2), 7)])), (start(2), block(7, &[])), (far, block(1, &[]))].into(),
            hits: [(0, 2), (far, 1)].into(),
            calls: [((1, known.clone()), 4), ((1, unknown), 2)].into(),
            sites: [(1, SiteProfile { callees: looks, tables: Looks::default() })].into(),
            ..FunctionProfile::default()
        };
        let there = Place { module: BuildId::new(&[1]), at: Svma(0x99) };
        let new = old.carried(&cfg, |p| (*p == known).then(|| there.clone())).unwrap();
        assert_eq!(new.blocks.keys().copied().collect::<Vec<_>>(), [0, start(2)]);
        assert_eq!(new.hits, [(0, 2)].into());
        assert_eq!(new.calls, [((1, there.clone()), 4)].into());
        assert_eq!(new.sites[&1].callees, Looks { all: 9, saw: [(there, 5)].into() });
        assert!(new.counts(&cfg).blocks.iter().map(|b| b.count).eq([7, 0, 7]));
    }

    #[test]
    fn another_division_into_blocks_is_another_function() {
        let cfg = cfg_at(0x5000, &[(2, cond(2, 1)), (1, fall(2)), (1, ret())]);
        let size = cfg.parts[0].len();
        let of =
            |at, size| FunctionProfile { size, blocks: [(at, block(1, &[]))].into(), ..Default::default() };
        assert!(of(0, size).carried(&cfg, |_| None).is_some());
        assert!(of(1, size).carried(&cfg, |_| None).is_none());
        assert!(of(0, size + 1).carried(&cfg, |_| None).is_none());
    }
}
