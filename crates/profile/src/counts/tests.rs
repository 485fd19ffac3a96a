use super::*;
use crate::test_cfg::{OUT, arb_term, cfg_at, cond, fall, ret};
use proptest::prelude::*;

fn edges(counts: &Counts) -> Vec<&[u64]> {
    counts.blocks.iter().map(|b| &b.edges[..]).collect()
}

fn inflow(counts: &Counts) -> Vec<u64> {
    counts.blocks.iter().map(|b| b.inflow).collect()
}

fn outflow(counts: &Counts) -> Vec<u64> {
    counts.blocks.iter().map(|b| b.outflow).collect()
}

#[test]
fn edges_are_in_the_order_of_successors() {
    // 0: taken 2, fall 1.
    let c = cfg_at(0, &[(1, cond(2, 1)), (1, fall(2)), (1, ret())]);
    let counts = infer(&c, &[100, 30, 100]);
    assert_eq!(edges(&counts), [&[70, 30][..], &[30], &[]]);
    assert_eq!((counts.entry, outflow(&counts)), (100, vec![0, 0, 100]));
    assert_eq!(inflow(&counts), [100, 0, 0]);
}

#[test]
fn tail_calls_leave_by_an_edge() {
    let c = cfg_at(0, &[(1, cond(2, 1)), (1, ret()), (1, Term::Jump { to: OUT })]);
    let counts = infer(&c, &[10, 4, 6]);
    assert!(counts.is_consistent(&c));
    assert_eq!(edges(&counts), [&[6, 4][..], &[], &[6]]);
    assert_eq!(outflow(&counts), [0, 4, 0]);
}

#[test]
fn landing_pads_are_entered_from_nowhere() {
    let mut c = cfg_at(0, &[(1, ret()), (1, fall(0))]);
    c.blocks[1].landing_pad = true;
    let counts = infer(&c, &[50, 5]);
    assert!(counts.is_consistent(&c));
    assert_eq!(inflow(&counts), [45, 5]);
}

#[test]
fn a_branch_to_the_program_s_end_is_not_taken() {
    // Both arms are unmeasured. The arm that ends in a trap is the unlikely arm, whatever its position.
    for (t, f) in [(1, 2), (2, 1)] {
        let c = cfg_at(0, &[(9, cond(t, f)), (1, Term::Trap), (1, ret())]);
        let counts = infer(&c, &[80]);
        assert!(counts.blocks.iter().map(|b| b.count).eq([80, 0, 80]));
    }
}

#[test]
fn targets_of_unknown_jumps_are_entered() {
    let c = cfg_at(0, &[(1, Term::Indirect), (1, fall(2)), (1, ret())]);
    let counts = infer(&c, &[10, 8, 8]);
    assert!(counts.is_consistent(&c));
    assert_eq!((inflow(&counts), outflow(&counts)), (vec![10, 8, 0], vec![10, 0, 8]));
}

#[test]
fn inconsistent_counts_are_seen() {
    let c = cfg_at(0, &[(1, cond(2, 1)), (1, fall(2)), (1, ret())]);
    let good = infer(&c, &[100, 30, 100]);
    assert!(good.is_consistent(&c));
    for spoil in [
        |x: &mut Counts| x.blocks[0].edges[1] += 1,
        |x: &mut Counts| x.blocks[1].count += 1,
        |x: &mut Counts| x.entry += 1,
        |x: &mut Counts| x.blocks[1].edges.push(0),
        |x: &mut Counts| x.blocks.truncate(1),
    ] {
        let mut bad = good.clone();
        spoil(&mut bad);
        assert!(!bad.is_consistent(&c));
    }
}

proptest! {
    #[test]
    fn any_graph_gets_consistent_counts(
        (terms, weights) in (1u32..20).prop_flat_map(|n| {
            let n_blocks = n as usize;
            (prop::collection::vec((1u32..6, arb_term(n)), n_blocks), prop::collection::vec(0u64..500, n_blocks))
        }),
        pad in 0usize..20,
    ) {
        let mut cfg = cfg_at(0x1000, &terms);
        if let Some(b) = cfg.blocks.get_mut(pad) {
            b.landing_pad = true;
        }
        let counts = infer(&cfg, &weights);
        prop_assert!(counts.is_consistent(&cfg), "{counts:?}");
        // The counts have the right shape for the choice of blocks, whatever the samples.
        prop_assert!(crate::hot_blocks(&cfg, &counts, &[])[0]);
    }
}
