//! Pairs the functions of an old build with the functions of a new build.

use addr::Svma;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// From this size in bytes on, functions with a unique shape are surely the same. Short functions are often
/// alike by chance.
const SURE: u64 = 64;
/// The number of functions of its shape, nearest to its expected address, with which an old function is
/// compared. Bounds the work for profiles with thousands of functions of one shape.
const NEAREST: usize = 8;

/// A function in one build.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function<'a> {
    /// Its entry.
    pub(super) at: Svma,
    /// The size of its main fragment. Bytes.
    pub(super) size: u64,
    /// [`profile::shape`] of it.
    pub(super) shape: u64,
    /// Its symbol's name; empty without a symbol.
    pub(super) name: &'a str,
}

/// Pairs old functions with new functions of the same size and shape, as indices. First come functions with
/// the same name, then functions whose shape is unique on both sides. Builds mostly keep the order of
/// functions. So each other function is expected to move as far as the paired function before it, and is
/// paired with the function nearest to that address.
pub(super) fn pair(olds: &[Function<'_>], news: &[Function<'_>]) -> Vec<(usize, usize)> {
    let mut alike: FxHashMap<(u64, u64), (Vec<usize>, Vec<usize>)> = FxHashMap::default();
    for (i, f) in olds.iter().enumerate() {
        alike.entry((f.size, f.shape)).or_default().0.push(i);
    }
    for (i, f) in news.iter().enumerate() {
        if let Some((_, new)) = alike.get_mut(&(f.size, f.shape)) {
            new.push(i);
        }
    }
    let mut pairs = Vec::new();
    for (old, new) in alike.values_mut() {
        by_name(olds, news, old, new, &mut pairs);
        if let ([o], [n]) = (old.as_slice(), new.as_slice()) {
            pairs.push((*o, *n));
            (*old, *new) = Default::default();
        }
    }
    // How far functions have moved, by their old entry.
    let moved: BTreeMap<Svma, i64> = pairs
        .iter()
        .map(|&(o, n)| (&olds[o], &news[n]))
        .filter(|(o, _)| o.size >= SURE)
        .map(|(o, n)| (o.at, n.at.0.wrapping_sub(o.at.0).cast_signed()))
        .collect();
    let mut near: Vec<(u64, usize, usize)> = Vec::new();
    for (old, mut new) in alike.into_values() {
        new.sort_unstable_by_key(|&n| news[n].at);
        for &o in &old {
            let at = olds[o].at;
            let before = moved.range(..=at).next_back();
            let Some((_, by)) = before.or_else(|| moved.range(at..).next()) else { continue };
            let expected = at.0.wrapping_add_signed(*by);
            let next = new.partition_point(|&n| news[n].at.0 < expected);
            let around = &new[next.saturating_sub(NEAREST)..(next + NEAREST).min(new.len())];
            near.extend(around.iter().map(|&n| (news[n].at.0.abs_diff(expected), o, n)));
        }
    }
    near.sort_unstable();
    let (mut done, mut taken) = (FxHashSet::default(), FxHashSet::default());
    for (_, o, n) in near {
        if !done.contains(&o) && taken.insert(n) {
            done.insert(o);
            pairs.push((o, n));
        }
    }
    pairs.sort_unstable();
    pairs
}

/// Pairs functions with the same name, and removes them from the lists. Names of several functions are
/// ignored.
fn by_name(
    olds: &[Function<'_>],
    news: &[Function<'_>],
    old: &mut Vec<usize>,
    new: &mut Vec<usize>,
    pairs: &mut Vec<(usize, usize)>,
) {
    let (named_olds, named_news) = (unique_names(olds, old), unique_names(news, new));
    let partner = |o: usize| {
        let name = olds[o].name;
        named_olds.get(name)?.and(named_news.get(name).copied()?)
    };
    let mut taken = FxHashSet::default();
    old.retain(|&o| match partner(o) {
        Some(n) => {
            taken.insert(n);
            pairs.push((o, n));
            false
        }
        None => true,
    });
    new.retain(|n| !taken.contains(n));
}

/// Returns the functions by name; `None` for a name that several have.
fn unique_names<'a>(all: &[Function<'a>], of: &[usize]) -> FxHashMap<&'a str, Option<usize>> {
    let mut names: FxHashMap<&str, Option<usize>> = FxHashMap::default();
    for &i in of.iter().filter(|&&i| !all[i].name.is_empty()) {
        names.entry(all[i].name).and_modify(|only| *only = None).or_insert(Some(i));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f(at: u64, size: u64, shape: u64, name: &str) -> Function<'_> {
        Function { at: Svma(at), size, shape, name }
    }

    #[test]
    fn a_shape_of_its_own_is_enough() {
        let olds = [f(0x100, 80, 1, ""), f(0x200, 80, 2, ""), f(0x300, 80, 3, "")];
        // The second function has changed, and another size is another function.
        let news = [f(0x900, 80, 3, ""), f(0x180, 80, 1, ""), f(0x280, 80, 9, ""), f(0x400, 81, 2, "")];
        assert_eq!(pair(&olds, &news), [(0, 1), (2, 0)]);
    }

    #[test]
    fn names_go_before_places() {
        let olds = [f(0x100, 80, 1, "a"), f(0x200, 80, 1, "b")];
        let news = [f(0x100, 80, 1, "b"), f(0x200, 80, 1, "a")];
        assert_eq!(pair(&olds, &news), [(0, 1), (1, 0)]);
        // A name of two functions says nothing, nor does one that changed.
        let olds = [f(0x100, 80, 1, "x"), f(0x200, 80, 1, "x"), f(0x300, 80, 2, "y")];
        let news = [f(0x110, 80, 1, "x"), f(0x210, 80, 1, "z"), f(0x310, 80, 2, "w")];
        assert_eq!(pair(&olds, &news), [(0, 0), (1, 1), (2, 2)]);
    }

    #[test]
    fn alike_functions_are_told_apart_by_their_neighbours() {
        // All has moved by 0x1000, and a further function of the shape was put in front.
        let olds = [f(0x100, 80, 1, ""), f(0x200, 8, 7, ""), f(0x300, 8, 7, ""), f(0x400, 80, 2, "")];
        let news = [
            f(0x1050, 8, 7, ""),
            f(0x1100, 80, 1, ""),
            f(0x1204, 8, 7, ""),
            f(0x1308, 8, 7, ""),
            f(0x1410, 80, 2, ""),
        ];
        assert_eq!(pair(&olds, &news), [(0, 1), (1, 2), (2, 3), (3, 4)]);
    }

    #[test]
    fn short_functions_say_nothing_of_places() {
        let olds = [f(0x100, 8, 1, ""), f(0x200, 8, 7, ""), f(0x300, 80, 2, "")];
        // The short one has moved far; the long one has stayed.
        let news = [f(0x9100, 8, 1, ""), f(0x200, 8, 7, ""), f(0x9200, 8, 7, ""), f(0x300, 80, 2, "")];
        assert_eq!(pair(&olds, &news), [(0, 0), (1, 1), (2, 3)]);
    }

    /// Ten thousand functions of one shape on both sides, with names and without: each finds its own.
    #[test]
    fn many_functions_of_one_shape() {
        let names: Vec<String> = (0..10_000).map(|i| format!("f{i}")).collect();
        let all = |from: u64, named: bool| {
            let name = |i: usize| if named { names[i].as_str() } else { "" };
            let one = |(i, at): (usize, u64)| f(from + at, 80, 1, name(i));
            let mut all: Vec<Function<'_>> = (0..10_000).zip((0..).step_by(96)).map(one).collect();
            all.push(f(from + 0xffff_ff00, 80, 2, ""));
            all
        };
        for named in [false, true] {
            let pairs = pair(&all(0x1000, named), &all(0x9000, named));
            assert!(pairs.len() == 10_001 && pairs.iter().all(|(o, n)| o == n));
        }
    }

    #[test]
    fn without_a_known_neighbour_nothing_is_guessed() {
        assert_eq!(pair(&[f(0x100, 8, 7, "")], &[f(0x100, 8, 7, ""), f(0x200, 8, 7, "")]), []);
        assert_eq!(pair(&[], &[f(0x100, 8, 7, "")]), []);
    }
}
