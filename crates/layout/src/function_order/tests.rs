use super::*;
use proptest::prelude::*;
use testkit::permutations;

fn f(size: u64, samples: u64) -> FuncNode {
    FuncNode { size, samples }
}

fn call(caller: usize, callee: usize, count: u64) -> CallEdge {
    CallEdge { caller, callee, count, offset: 0 }
}

/// Returns the count-weighted mean distance in bytes from a call to its callee, for an order of all functions
/// without gaps. Clustering makes it small. 0 without calls.
#[expect(clippy::cast_precision_loss, reason = "a mean for comparison")]
fn call_distance(functions: &[FuncNode], calls: &[CallEdge], order: &[usize]) -> f64 {
    let mut start = vec![0u64; functions.len()];
    let mut at = 0;
    for &f in order {
        start[f] = at;
        at += functions[f].size;
    }
    let (mut sum, mut count) = (0.0, 0.0);
    for c in calls {
        sum += (start[c.caller] + c.offset).abs_diff(start[c.callee]) as f64 * c.count as f64;
        count += c.count as f64;
    }
    if count > 0.0 { sum / count } else { 0.0 }
}

#[test]
fn a_callee_follows_its_hottest_caller() {
    let functions = [f(100, 10), f(100, 50), f(100, 40), f(100, 0)];
    let calls = [call(0, 2, 5), call(1, 2, 30), call(3, 1, 1)];
    // 2 follows 1, its most frequent caller. 0 is hot but less dense. 3 absorbs the cluster of 1, as a cold
    // caller is not diluted by it.
    assert_eq!(function_order(&functions, &calls), [3, 1, 2, 0]);
}

#[test]
fn clusters_are_bounded_by_the_page() {
    let functions = [f(3000, 100), f(3000, 90)];
    let calls = [call(0, 1, 50)];
    let small = OrderOptions { page: 4096, ..OrderOptions::default() };
    // The two are adjacent either way here. But a third, denser function comes between if they must not join.
    let with_third = [functions[0], functions[1], f(100, 95)];
    let near = [call(0, 1, 50), call(0, 2, 1)];
    assert_eq!(function_order_with(&functions, &calls, small), [0, 1]);
    assert_eq!(function_order_with(&with_third, &near, small), [0, 2, 1]);
    let chain = [call(1, 0, 50)];
    assert_eq!(function_order(&functions, &chain), [1, 0]);
    assert_eq!(function_order_with(&functions, &chain, small), [0, 1]);
}

#[test]
fn a_hot_caller_is_not_diluted() {
    // 0 is tiny and very hot; it calls 1, which is huge and nearly cold.
    let functions = [f(64, 10_000), f(100_000, 10), f(64, 9_000)];
    let calls = [call(0, 1, 10)];
    assert_eq!(function_order(&functions, &calls), [0, 2, 1]);
}

#[test]
fn recursion_and_invalid_input() {
    let functions = [f(10, 5), f(0, 5), f(u64::MAX, u64::MAX)];
    let calls =
        [call(0, 0, 9), call(0, 1, 3), call(1, 0, 3), call(9, 0, 1), call(0, 9, 1), call(2, 2, u64::MAX)];
    let mut order = function_order(&functions, &calls);
    order.sort_unstable();
    assert_eq!(order, [0, 1, 2]);
    assert!(function_order(&[], &calls).is_empty());
}

proptest! {
    #[test]
    fn a_permutation_that_does_not_change(
        nodes in prop::collection::vec((1u64..5000, 0u64..1000), 1..30),
        arcs in prop::collection::vec((0usize..30, 0usize..30, 0u64..100), 0..80),
        page in 1u64..20_000,
    ) {
        let functions: Vec<FuncNode> = nodes.iter().map(|&(s, c)| f(s, c)).collect();
        let calls: Vec<CallEdge> = arcs.iter().map(|&(a, b, c)| call(a, b, c)).collect();
        let options = OrderOptions { page, dilution: 8 };
        let order = function_order_with(&functions, &calls, options);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..functions.len()).collect::<Vec<_>>());
        prop_assert_eq!(&order, &function_order_with(&functions, &calls, options));
        // Without calls, the order is by density.
        let dense = function_order(&functions, &[]);
        for w in dense.windows(2) {
            let (a, b) = (functions[w[0]], functions[w[1]]);
            prop_assert!(a.samples * b.size >= b.samples * a.size);
        }
    }

    /// On call trees with equal functions, the mean call distance is at most 2.5 times that of the best
    /// order.
    #[test]
    fn calls_become_short(parents in prop::collection::vec((0usize..6, 1u64..100), 1..6)) {
        let n = parents.len() + 1;
        let functions = vec![f(100, 10); n];
        let calls: Vec<CallEdge> =
            parents.iter().enumerate().map(|(i, &(p, c))| call(p % (i + 1), i + 1, c)).collect();
        let ours = call_distance(&functions, &calls, &function_order(&functions, &calls));
        let mut all = Vec::new();
        permutations(&mut (0..n).collect(), 0, &mut |order| all.push(call_distance(&functions, &calls, order)));
        let best = all.iter().copied().fold(f64::INFINITY, f64::min);
        prop_assert!(ours <= 2.5 * best, "ours {ours}, best {best}");
    }
}
