use super::*;
use proptest::prelude::*;
use testkit::{Rng, permutations};

/// A small cache, too small even for few functions.
const SMALL: [CodeCache; 1] = [CodeCache { unit: 256, entries: 3, cost: 1.0 }];

/// Returns functions that call each other as in real programs: few are hot, and most callees have one main
/// caller.
fn program(rng: &mut Rng, n: usize, largest: u64) -> (Vec<FuncNode>, Vec<CallEdge>) {
    let mut functions: Vec<FuncNode> =
        (0..n).map(|_| FuncNode { size: 16 + rng.below(largest), samples: 1 }).collect();
    let mut calls = Vec::new();
    for callee in 1..n {
        for _ in 0..1 + rng.below(2) {
            let caller = rng.below(callee);
            let count = 1 << rng.below(14);
            let offset = rng.below(functions[caller].size);
            calls.push(CallEdge { caller, callee, count, offset });
            functions[callee].samples += count * (1 + functions[callee].size / 32);
        }
    }
    (functions, calls)
}

fn is_permutation(order: &[usize], n: usize) -> bool {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    sorted == (0..n).collect::<Vec<_>>()
}

/// Returns what the sort maximizes: the sum of each call's count over a power of its distance.
fn nearness(functions: &[FuncNode], calls: &[CallEdge], order: &[usize]) -> f64 {
    let mut starts = vec![0.0; functions.len()];
    let mut at = 0.0;
    for &f in order {
        starts[f] = at;
        at += number(functions[f].size);
    }
    let far = |c: &CallEdge| (starts[c.caller] + number(c.offset) - starts[c.callee]).abs().max(0.1);
    calls.iter().map(|c| number(c.count) * far(c).powf(-0.25)).sum()
}

#[test]
fn misses_by_hand() {
    let f = |size, samples| FuncNode { size, samples };
    // Three functions of one unit each, with a quarter of the executions in each of the second and the third.
    let functions = [f(256, 200), f(256, 100), f(256, 100)];
    let call = |caller, callee, count, offset| CallEdge { caller, callee, count, offset };
    let of = |calls: &[CallEdge]| miss_cost(&functions, calls, &[0, 1, 2], &SMALL);
    assert_eq!(of(&[call(0, 1, 8, 0)]), 8.0 * (0.75f64.powi(3) + 0.5f64.powi(3)));
    assert_eq!(of(&[call(0, 1, 8, 256)]), 0.0, "the call is where the callee is");
    assert_eq!(of(&[call(0, 9, 8, 0), call(9, 0, 8, 0), call(1, 1, 5, 0), call(0, 1, 0, 0)]), 0.0);
    // Small functions share a unit.
    let small = [f(64, 1), f(64, 1), f(64, 1)];
    assert_eq!(miss_cost(&small, &[call(0, 2, 8, 0)], &[0, 1, 2], &SMALL), 0.0);
    // A function that is not in the order costs nothing.
    assert_eq!(miss_cost(&functions, &[call(0, 1, 8, 0)], &[0, 2], &SMALL), 0.0);
    let two = [SMALL[0], CodeCache { cost: 3.0, ..SMALL[0] }];
    let calls = [call(0, 1, 8, 0)];
    assert_eq!(miss_cost(&functions, &calls, &[0, 1, 2], &two), 4.0 * of(&calls));
}

#[test]
fn a_caller_and_its_callee_are_joined() {
    let f = |samples| FuncNode { size: 9, samples };
    // The likelier callee follows its caller.
    let call = |caller, callee, count| CallEdge { caller, callee, count, offset: 5 };
    let calls = [call(0, 1, 40), call(0, 2, 100), call(1, 2, 40)];
    assert_eq!(cache_sort(&[f(140), f(40), f(140)], &calls), [0, 2, 1]);
    // No calls: by executions per byte.
    assert_eq!(cache_sort(&[f(1), f(0), f(9), f(3)], &[]), [2, 3, 0, 1]);
    assert!(cache_sort(&[], &calls).is_empty());
}

#[test]
fn near_the_best_of_all_orders() {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let (mut worst, mut sum, mut runs) = (1.0f64, 0.0, 0.0);
    let (mut ours, mut chains, mut both, mut best, mut chance) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for _ in 0..200 {
        let n = 3 + rng.below(5);
        let (functions, calls) = program(&mut rng, n, 400);
        let order = cache_sort(&functions, &calls);
        assert!(is_permutation(&order, n));
        let (mut nearest, mut cheapest, mut all, mut orders) = (0.0f64, f64::INFINITY, 0.0, 0.0);
        permutations(&mut (0..n).collect(), 0, &mut |o| {
            nearest = nearest.max(nearness(&functions, &calls, o));
            let cost = miss_cost(&functions, &calls, o, &SMALL);
            cheapest = cheapest.min(cost);
            all += cost;
            orders += 1.0;
        });
        let got = nearness(&functions, &calls, &order) / nearest;
        assert!(got <= 1.0 + 1e-9);
        worst = worst.min(got);
        sum += got;
        runs += 1.0;
        let cost = |order: &[usize]| miss_cost(&functions, &calls, order, &SMALL);
        let (by_cache, by_chains) = (cost(&order), cost(&function_order(&functions, &calls)));
        ours += by_cache;
        chains += by_chains;
        both += by_cache.min(by_chains);
        best += cheapest;
        chance += all / orders;
    }
    let mean = sum / runs;
    eprintln!("nearness of the best of all orders: mean {mean:.3}, worst {worst:.3}");
    eprintln!(
        "misses: cache sort {ours:.0}, call chains {chains:.0}, the better of both {both:.0}; best {best:.0}, mean of all \
         orders {chance:.0}"
    );
    assert!(mean > 0.95 && worst > 0.75, "{mean} {worst}");
    // The unit in which a function begins is random for both.
    assert!(chance - ours > 0.5 * (chance - best), "{ours} {chance} {best}");
    assert!(chance - both > 0.6 * (chance - best), "{both} {chance} {best}");
}

#[test]
fn large_programs_take_little_time_and_gain() {
    let mut rng = Rng(11);
    let (functions, calls) = program(&mut rng, 6000, 1200);
    let text = || std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let cpu = || text().split(' ').next().unwrap().parse::<u64>().unwrap();
    let begun = cpu();
    let best = best_function_order(&functions, &calls);
    let took = (cpu() - begun) / 1_000_000;
    let plain = miss_cost(&functions, &calls, &(0..6000).collect::<Vec<_>>(), &CORE);
    eprintln!(
        "6000 functions in {took} ms: call chains {:.0}, cache sort {:.0}, as they were {plain:.0}",
        best.call_chains, best.cache_sort
    );
    assert!(is_permutation(&best.order, 6000));
    assert!(best.cache_sort < plain && best.call_chains < plain);
    assert!(took < 3000, "{took}");
}

proptest! {
    #[test]
    fn every_function_once_and_the_cheaper_of_two(
        nodes in prop::collection::vec((0u64..9000, 0u64..1000), 0..30),
        arcs in prop::collection::vec((0usize..32, 0usize..32, 0u64..100, 0u64..10_000), 0..80),
        huge in 0usize..40,
    ) {
        let mut functions: Vec<FuncNode> =
            nodes.iter().map(|&(size, samples)| FuncNode { size, samples }).collect();
        if let Some(f) = functions.get_mut(huge) {
            *f = FuncNode { size: u64::MAX, samples: u64::MAX };
        }
        let calls: Vec<CallEdge> = arcs
            .iter()
            .map(|&(caller, callee, count, offset)| CallEdge { caller, callee, count, offset })
            .collect();
        let best = best_function_order(&functions, &calls);
        prop_assert!(is_permutation(&best.order, functions.len()));
        prop_assert!(is_permutation(&cache_sort(&functions, &calls), functions.len()));
        prop_assert_eq!(&best, &best_function_order(&functions, &calls));
        let cost = miss_cost(&functions, &calls, &best.order, &CORE);
        prop_assert_eq!(cost, best.call_chains.min(best.cache_sort));
        prop_assert!(cost >= 0.0 && cost.is_finite());
        // Counts only scale the cost.
        let twice: Vec<CallEdge> = calls.iter().map(|c| CallEdge { count: 2 * c.count, ..*c }).collect();
        let doubled = miss_cost(&functions, &twice, &best.order, &CORE);
        prop_assert!((doubled - 2.0 * cost).abs() <= 1e-6 * doubled);
    }
}
