//! Stored branch stacks, assigned to the graph of a real function.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use addr::Avma;
use profile::{BranchStacks, Rejected, Taken};

fn address(text: &str) -> Avma {
    Avma(u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap())
}

#[test]
fn a_stored_record_gives_the_counts_that_were_worked_out_by_hand() {
    let cfg = code::parse(include_str!("../../code/tests/golden/landing_pads.txt")).unwrap();
    let mut stacks = BranchStacks::default();
    for line in include_str!("fixtures/landing_pads.brstack").lines().filter(|l| !l.starts_with('#')) {
        stacks.add(line.split(' ').map(|entry| {
            let mut fields = entry.split('/');
            let (from, to) = (address(fields.next().unwrap()), address(fields.next().unwrap()));
            Some(Taken { from, to })
        }));
    }
    assert_eq!(stacks.stacks(), 3);
    let got = stacks.counts(&[&cfg]);
    let counts = &got.functions[0];
    let ran = |n: u64| -> Vec<usize> {
        counts.blocks.iter().enumerate().filter(|(_, c)| c.count == n).map(|(b, _)| b).collect()
    };
    assert_eq!(ran(2), [0, 1, 2, 4]);
    assert_eq!(ran(1), [3, 5, 6, 8, 9, 12, 15, 16, 17, 19, 21]);
    assert_eq!(ran(0), [7, 10, 11, 13, 14, 18, 20]);
    let ways = |b: usize| counts.blocks[b].edges.as_slice();
    assert_eq!([ways(0), ways(1), ways(2), ways(4)], [[0, 2], [0, 2], [1, 1], [1, 1]]);
    assert_eq!([ways(5), ways(6), ways(9)], [[0, 1], [1, 0], [1, 0]]);
    // The call that throws does not return, and control enters the landing pad by no edge of the graph.
    assert_eq!(
        (counts.entry, counts.blocks[16].inflow, counts.blocks[17].outflow, ways(17)),
        (2, 1, 1, &[0][..])
    );
    assert!(counts.is_consistent(&cfg));
    let strlen = Taken { from: Avma(0x139e), to: Avma(0x1040) };
    assert_eq!((got.calls.len(), got.calls[&strlen]), (11, 2));
    // The last line has runs past a return, backwards, and out of the function, branches that lead elsewhere,
    // and a branch at a `mov`.
    let wanted = Rejected { backward: 1, crossing: 1, broken: 1, branches: 2, elsewhere: 15 };
    assert_eq!(got.rejected, wanted);
}
