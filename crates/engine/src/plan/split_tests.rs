use super::*;
use crate::plan::candidate::Certainty;
use crate::plan::test_candidate::ordered;

fn after(chosen: Vec<Ordered>) -> Vec<(Vec<u32>, usize)> {
    let split = split(chosen);
    split.iter().map(|c| (c.order.all().iter().map(|b| b.0).collect(), c.order.hot().len())).collect()
}

fn inferred(mut c: Ordered) -> Ordered {
    c.counted.measured.certainty = Certainty::Estimated;
    c
}

#[test]
fn the_most_run_blocks_of_all_functions_are_hot() {
    let got = after(vec![
        ordered(0, &[0, 3, 2, 1], &[100_000, 50_000, 300, 90_000], 0),
        // The entry of a function with hot blocks is hot; the others keep their order.
        ordered(1, &[0, 3, 1, 2], &[1, 3, 80_000, 2], 0),
        ordered(2, &[0, 2, 1, 3], &[4, 4, 4, 4], 0),
    ]);
    let wanted: [(&[u32], usize); 3] = [(&[0, 3, 1, 2], 3), (&[0, 2, 3, 1], 2), (&[0, 2, 1, 3], 0)];
    assert_eq!(got, wanted.map(|(order, hot)| (order.to_vec(), hot)));
}

#[test]
fn blocks_are_weighted_by_instructions() {
    // 99 * 1 is less than 99.5% of 99 * 1 + 1 * 1; 199 * 2 is not less than 99.5% of 199 * 2 + 2 * 1.
    assert_eq!(least_hot(vec![(1, 1), (99, 1)]), 1);
    assert_eq!(least_hot(vec![(2, 1), (199, 2)]), 199);
    assert_eq!(least_hot(vec![(5, 0), (0, 9)]), 5);
    assert_eq!((least_hot(Vec::new()), least_hot(vec![(0, 3)])), (0, 0));
    assert_eq!(least_hot(vec![(u64::MAX, 9), (u64::MAX, 9), (1, 1)]), u64::MAX);
}

#[test]
fn inferred_counts_are_split_separately() {
    let got = after(vec![
        ordered(0, &[0, 1], &[1_000_000, 1_000_000, 0, 0], 9),
        inferred(ordered(1, &[0, 1, 3], &[30, 20, 0, 0], 1)),
    ]);
    assert_eq!(got, [(vec![0, 1], 2), (vec![0, 1, 3], 2)]);
}

#[test]
fn sampled_functions_that_were_never_entered_are_hot() {
    let busy = ordered(0, &[0, 1], &[1000, 1000, 0, 0], 9);
    let stayed = ordered(1, &[0, 3], &[0, 0, 0, 0], 5);
    let idle = ordered(2, &[0, 3], &[0, 0, 0, 0], 0);
    assert_eq!(after(vec![busy, stayed, idle]), [(vec![0, 1], 2), (vec![0, 3], 2), (vec![0, 3], 0)]);
    // Nothing is known at all.
    assert_eq!(after(vec![ordered(0, &[0, 3], &[0, 0, 0, 0], 0)]), [(vec![0, 3], 2)]);
}
