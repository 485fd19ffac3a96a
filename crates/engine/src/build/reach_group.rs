//! Which modules share a code cache.
//!
//! A clone reaches its module's code and data by 32-bit displacements, so a cache lies near its modules.
//! Modules close to each other (usually all shared libraries) share a cache, which saves huge pages and ITLB
//! entries.

use addr::{Addr, AvmaRange};

/// Modules further apart than this do not share a cache. Bytes.
const SPREAD: u64 = 1 << 30;

/// Groups module extents, given by ascending address, so that each group is within reach of one cache.
#[must_use]
pub fn group(extents: &[AvmaRange]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut start = None;
    for (i, e) in extents.iter().enumerate() {
        match (start, groups.last_mut()) {
            (Some(s), Some(last)) if e.end.since(s).is_some_and(|d| d <= SPREAD) => last.push(i),
            _ => {
                groups.push(vec![i]);
                start = Some(e.start);
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::Avma;

    #[test]
    fn program_and_libraries() {
        let r = |a: u64| AvmaRange::with_len(Avma(a), 1 << 20);
        let all = [r(0x5555_0000_0000), r(0x7fff_0000_0000), r(0x7fff_1000_0000), r(0x7fff_9000_0000)];
        assert_eq!(group(&all), vec![vec![0], vec![1, 2], vec![3]]);
        assert_eq!(group(&[]), Vec::<Vec<usize>>::new());
    }
}
