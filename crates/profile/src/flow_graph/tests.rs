use super::*;
use crate::test_cfg::cpu_time;
use proptest::prelude::*;
use testkit::Rng;

fn edge(from: usize, to: usize) -> Edge {
    Edge { from, to: Some(to), cost: 0 }
}

/// Returns a graph with an entrance at block 0 and an exit at the last block.
fn graph(weights: &[u64], edges: &[(usize, usize)]) -> FlowGraph {
    let n = weights.len();
    let mut g = FlowGraph {
        blocks: weights.iter().map(|&weight| Block { weight, ..Block::default() }).collect(),
        edges: edges.iter().map(|&(a, b)| edge(a, b)).collect(),
    };
    g.blocks[0].entrance = Some(0);
    g.blocks[n - 1].exit = Some(0);
    g
}

/// Returns how often each block runs.
fn runs(f: &Flow) -> Vec<i64> {
    f.blocks.iter().map(|b| b.runs).collect()
}

fn conserved(g: &FlowGraph, f: &Flow) -> bool {
    let mut entered: Vec<i64> = f.blocks.iter().map(|b| b.entrance).collect();
    let mut left: Vec<i64> = f.blocks.iter().map(|b| b.exit).collect();
    for (e, &flow) in g.edges.iter().zip(&f.edges) {
        left[e.from] += flow;
        if let Some(to) = e.to {
            entered[to] += flow;
        }
    }
    entered == runs(f)
        && left == runs(f)
        && f.edges.iter().all(|&x| x >= 0)
        && f.blocks.iter().all(|b| [b.runs, b.entrance, b.exit].iter().all(|&x| x >= 0))
}

/// Returns whether every block that runs can be reached from an entrance over edges that run.
fn all_entered(g: &FlowGraph, f: &Flow) -> bool {
    let n = g.blocks.len();
    let mut next = vec![Vec::new(); n];
    for (e, _) in g.edges.iter().zip(&f.edges).filter(|&(_, &flow)| flow > 0) {
        next[e.from].extend(e.to);
    }
    let mut seen = vec![false; n];
    for b in (0..n).filter(|&b| f.blocks[b].entrance > 0) {
        flood(&next, b, &mut seen);
    }
    (0..n).all(|b| seen[b] || f.blocks[b].runs == 0)
}

#[test]
fn consistent_weights_are_kept() {
    let g = graph(&[10, 7, 3, 10], &[(0, 1), (0, 2), (1, 3), (2, 3)]);
    let f = g.clone().infer();
    assert_eq!((runs(&f), &f.edges), (vec![10, 7, 3, 10], &vec![7, 3, 7, 3]));
    assert_eq!((f.blocks[0].entrance, f.blocks[3].exit), (10, 10));
}

#[test]
fn a_missed_block_is_filled_in() {
    // Block 1 lies on the only path and was missed; block 2 is on a path that was not taken.
    let g = graph(&[100, 0, 0, 100], &[(0, 1), (0, 2), (1, 3), (2, 1)]);
    assert_eq!(runs(&g.infer()), [100, 100, 0, 100]);
}

#[test]
fn raising_is_preferred_to_lowering() {
    let g = graph(&[100, 60, 100], &[(0, 1), (1, 2)]);
    assert_eq!(runs(&g.infer()), [100, 100, 100]);
    // One block against four is given less weight: raising four blocks by 60 would cost more than lowering
    // one block by 60.
    let g = graph(&[40, 100, 40, 40, 40], &[(0, 1), (1, 2), (2, 3), (3, 4)]);
    assert_eq!(runs(&g.infer()), [40; 5]);
}

#[test]
fn loops_run() {
    let g = graph(&[10, 1000, 10], &[(0, 1), (1, 1), (1, 2)]);
    let f = g.infer();
    assert_eq!(f.edges, [10, 990, 10]);
}

#[test]
fn an_island_is_joined() {
    // The loop 2 <-> 3 is hot; the path to it has no samples.
    let g = graph(&[0, 0, 500, 500, 0], &[(0, 1), (0, 4), (1, 2), (2, 3), (3, 2), (3, 4)]);
    let f = g.clone().infer();
    assert!(conserved(&g, &f) && all_entered(&g, &f), "{f:?}");
    assert_eq!(runs(&f), [1, 1, 501, 501, 1]);
}

#[test]
fn endless_loops_get_exits_and_unreachable_code_entrances() {
    // The loop 1 <-> 2 never ends; the loop 3 <-> 4 is never entered.
    let mut g = graph(&[5, 100, 100, 7, 7, 5], &[(0, 1), (1, 2), (2, 1), (3, 4), (4, 3), (0, 5)]);
    let f = g.clone().infer();
    g.open_closed_parts();
    assert!(conserved(&g, &f) && all_entered(&g, &f), "{f:?}");
    let made_up = [g.blocks[2].exit, g.blocks[4].exit, g.blocks[3].entrance];
    assert_eq!(made_up, [Some(MADE_UP); 3]);
}

#[test]
fn unmeasured_arms_get_equal_flow() {
    // Two arms have one block each; a longer arm costs more.
    let g = graph(&[90, 0, 0, 0, 0, 90], &[(0, 1), (0, 2), (0, 3), (1, 5), (2, 5), (3, 4), (4, 5)]);
    assert_eq!(runs(&g.infer()), [90, 45, 45, 0, 0, 90]);
}

#[test]
fn absurd_weights_do_not_overflow() {
    let g = graph(&[u64::MAX; 40], &(0..39).map(|b| (b, b + 1)).collect::<Vec<_>>());
    let f = g.clone().infer();
    assert!(conserved(&g, &f));
}

/// Returns the least cost, by trying all edge flows up to `most` and all flows through each block's entrance
/// and exit.
fn least_cost(g: &FlowGraph, most: i64) -> i128 {
    let (n, m) = (g.blocks.len(), g.edges.len());
    let mut f = Flow { blocks: vec![BlockFlow::default(); n], edges: vec![0; m] };
    let mut least = i128::MAX;
    loop {
        let (mut entered, mut left) = (vec![0; n], vec![0; n]);
        for (e, &flow) in g.edges.iter().zip(&f.edges) {
            left[e.from] += flow;
            if let Some(to) = e.to {
                entered[to] += flow;
            }
        }
        // When the edge flows are fixed, each block can be solved alone.
        let mut sum = Some(f.edges.iter().zip(&g.edges).map(|(&x, e)| i128::from(x * e.cost)).sum::<i128>());
        for (b, block) in g.blocks.iter().enumerate() {
            let low = entered[b].max(left[b]);
            let mut best: Option<i128> = None;
            for c in low..=low + most {
                let (i, o) = (c - entered[b], c - left[b]);
                if (i > 0 && block.entrance.is_none()) || (o > 0 && block.exit.is_none()) {
                    continue;
                }
                let w = i64::try_from(block.weight).unwrap();
                let unit = if c < w {
                    -LOWER
                } else if w > 0 {
                    RAISE
                } else {
                    RAISE_ZERO
                };
                let cost = (c - w) * unit + i * block.entrance.unwrap_or(0) + o * block.exit.unwrap_or(0);
                best = Some(best.map_or(cost.into(), |x| x.min(cost.into())));
            }
            sum = sum.zip(best).map(|(x, y)| x + y);
        }
        least = least.min(sum.unwrap_or(i128::MAX));
        let Some(at) = f.edges.iter().position(|&x| x < most) else { return least };
        f.edges[..at].fill(0);
        f.edges[at] += 1;
    }
}

fn arb_graph(max_n: usize, max_w: u64, max_m: usize) -> impl Strategy<Value = FlowGraph> {
    (1..=max_n).prop_flat_map(move |n| {
        let cost = prop::sample::select(vec![0, 0, 0, UNLIKELY]);
        let edge = (0..n, prop::option::weighted(0.9, 0..n), cost).prop_map(|(from, to, cost)| Edge {
            from,
            to,
            cost,
        });
        let weight = prop_oneof![1 => Just(0), 2 => 0..=max_w];
        let door = || prop::option::weighted(0.3, Just(0i64));
        let block =
            (weight, door(), door()).prop_map(|(weight, entrance, exit)| Block { weight, entrance, exit });
        (prop::collection::vec(block, n), prop::collection::vec(edge, 0..=max_m)).prop_map(
            |(mut blocks, edges)| {
                blocks[0].entrance = Some(0);
                FlowGraph { blocks, edges }
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_flow_is_cheaper(mut g in arb_graph(5, 3, 6)) {
        g.open_closed_parts();
        let f = g.cheapest();
        prop_assert!(conserved(&g, &f), "{f:?}");
        let (cost, least) = (g.cost(&f), least_cost(&g, 3));
        prop_assert!(cost <= least, "{cost} {least} {f:?}");
        // Where flows join, an edge flow can exceed the values that were tried.
        prop_assert!(cost == least || f.edges.iter().any(|&x| x > 3), "{cost} {least} {f:?}");
    }

    #[test]
    fn flow_is_conserved_and_entered(g in arb_graph(30, 1000, 60)) {
        let f = g.clone().infer();
        let mut opened = g.clone();
        opened.open_closed_parts();
        prop_assert!(conserved(&opened, &f), "{f:?}");
        prop_assert!(all_entered(&opened, &f), "{f:?}");
        prop_assert_eq!(&f, &g.infer());
    }

    #[test]
    fn equal_shares_cost_no_more(g in arb_graph(12, 6, 24)) {
        let mut g = g;
        g.open_closed_parts();
        let before = g.cheapest();
        let mut after = before.clone();
        g.share_equal_arms(&mut after);
        prop_assert!(conserved(&g, &after));
        prop_assert_eq!(g.cost(&before), g.cost(&after));
    }
}

/// Returns a function of `n` blocks with branches, and the true flow of random walks through it.
fn walked(rng: &mut Rng, n: usize, walks: usize) -> (FlowGraph, Vec<i64>) {
    let mut edges = Vec::new();
    let mut out = vec![Vec::new(); n];
    for (b, arms) in out.iter_mut().enumerate().take(n - 1) {
        arms.push(edges.len());
        edges.push((b, b + 1));
        if rng.below(3) > 0 {
            let to = if rng.below(5) == 0 { b.saturating_sub(rng.below(8)) } else { b + rng.below(12) + 1 };
            arms.push(edges.len());
            edges.push((b, to.clamp(1, n - 1)));
        }
    }
    let bias: Vec<u64> = (0..n).map(|_| [3, 15, 50, 85, 97][rng.below(5)]).collect();
    let mut truth = vec![0i64; edges.len()];
    for _ in 0..walks {
        let mut b = 0;
        for _ in 0..8 * n {
            let second = out[b].len() == 2 && rng.below(100) >= bias[b];
            let Some(&e) = out[b].get(usize::from(second)) else { break };
            truth[e] += 1;
            b = edges[e].1;
        }
    }
    (graph(&vec![0; n], &edges), truth)
}

/// Returns the share of the true edge flow that the inferred flow has (1: the same proportions).
fn overlap(truth: &[i64], got: &[i64]) -> f64 {
    let sum = |v: &[i64]| v.iter().sum::<i64>().max(1) as f64;
    let (a, b) = (sum(truth), sum(got));
    truth.iter().zip(got).map(|(&x, &y)| (x as f64 / a).min(y as f64 / b)).sum()
}

#[test]
fn edges_are_recovered_from_samples() {
    let mut rng = Rng(0x2545_f491_4f6c_dd1d);
    for samples in [300u64, 3000, 30_000] {
        let mut sum = 0.0;
        let rounds = 30;
        for _ in 0..rounds {
            let n = 60;
            let (mut g, truth) = walked(&mut rng, n, 2000);
            let insts: Vec<u64> = (0..n).map(|_| 1 + rng.below(12)).collect();
            let mut runs = vec![0u64; n];
            for (e, &t) in g.edges.iter().zip(&truth) {
                runs[e.to.unwrap()] += u64::try_from(t).unwrap();
            }
            runs[0] += 2000;
            // Samples are drawn in proportion to executed instructions.
            let total: u64 = (0..n).map(|b| runs[b] * insts[b]).sum();
            let mut hits = vec![0u64; n];
            for _ in 0..samples {
                let mut at = rng.below(total);
                let b = (0..n)
                    .find(|&b| {
                        let own = runs[b] * insts[b];
                        let here = at < own;
                        at = at.saturating_sub(own);
                        here
                    })
                    .unwrap();
                hits[b] += 1;
            }
            for b in 0..n {
                g.blocks[b].weight =
                    if hits[b] > 0 { ((hits[b] * 64 + insts[b] / 2) / insts[b]).max(1) } else { 0 };
            }
            sum += overlap(&truth, &g.infer().edges);
        }
        let mean = sum / f64::from(rounds);
        eprintln!("{samples} samples on 60 blocks: edge overlap {mean:.3}");
        assert!(mean > if samples >= 3000 { 0.85 } else { 0.7 });
    }
}

#[test]
fn large_functions_are_quick() {
    let mut rng = Rng(99);
    for noisy in [false, true] {
        let n = 3000;
        let (mut g, truth) = walked(&mut rng, n, 300);
        for b in 0..n {
            g.blocks[b].weight = if noisy { rng.below(4) * rng.below(100_000) } else { 0 };
        }
        if !noisy {
            for (e, &t) in g.edges.iter().zip(&truth) {
                g.blocks[e.to.unwrap()].weight += u64::try_from(t).unwrap() * (80 + rng.below(40));
            }
        }
        let begun = cpu_time();
        let f = g.clone().infer();
        let took = cpu_time() - begun;
        eprintln!("3000 blocks, noisy {noisy}: {took:?}");
        let mut opened = g.clone();
        opened.open_closed_parts();
        assert!(conserved(&opened, &f) && all_entered(&opened, &f));
        assert!(took.as_secs() < 4, "{took:?}");
    }
}
