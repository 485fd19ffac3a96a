use super::*;
use crate::block_graph::{Block, Edge, EdgeKind};
use crate::score::jump_value;
use proptest::prelude::*;
use std::time::Duration;
use testkit::Rng;

fn edge(from: usize, to: usize, count: u64, kind: EdgeKind) -> Edge {
    Edge { from, to, count, kind }
}

fn graph(blocks: &[(u64, u64)], edges: &[Edge]) -> Graph {
    let blocks = blocks.iter().map(|&(size, count)| Block { size, count }).collect();
    Graph { blocks, edges: edges.to_vec() }
}

/// Returns a flow-consistent function, by counting random walks from the entry.
fn walked(rng: &mut Rng, n: usize, walks: usize, near: usize) -> Graph {
    let mut blocks: Vec<Block> = (0..n).map(|_| Block { size: 4 + rng.below(60), count: 0 }).collect();
    let mut edges: Vec<Edge> = Vec::new();
    let mut out: Vec<Vec<usize>> = vec![Vec::new(); n];
    let mut bias = Vec::new();
    for (b, arms) in out.iter_mut().enumerate() {
        bias.push(1 + rng.below(99));
        let ways = if b + 1 == n { 0 } else { 1 + rng.below(2) };
        for way in 0..ways {
            let low = b.saturating_sub(near);
            let to = if way == 0 { b + 1 } else { low + rng.below((b + near).min(n - 1) - low + 1) };
            let kind = if ways == 1 { EdgeKind::Unconditional } else { EdgeKind::Conditional };
            arms.push(edges.len());
            edges.push(edge(b, to, 0, kind));
        }
    }
    for _ in 0..walks {
        let mut b = 0;
        for _ in 0..4 * n {
            blocks[b].count += 1;
            let Some(&e) = (match out[b].len() {
                2 => out[b].get(usize::from(rng.below(100) >= bias[b])),
                _ => out[b].first(),
            }) else {
                break;
            };
            edges[e].count += 1;
            b = edges[e].to;
        }
    }
    Graph { blocks, edges }
}

/// Returns the best score of all orders that begin with the entry.
fn best_of_all(g: &Graph) -> f64 {
    fn go(g: &Graph, order: &mut Vec<usize>, k: usize, best: &mut f64) {
        if k == order.len() {
            *best = best.max(score(g, order));
            return;
        }
        for i in k..order.len() {
            order.swap(k, i);
            go(g, order, k + 1, best);
            order.swap(k, i);
        }
    }
    let mut best = 0.0;
    go(g, &mut (0..g.blocks.len()).collect(), 1, &mut best);
    best
}

fn is_permutation(order: &[usize], n: usize) -> bool {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    sorted == (0..n).collect::<Vec<_>>()
}

#[test]
fn values_of_jumps() {
    use EdgeKind::{Conditional, Indirect, Unconditional};
    let v = |kind, end, start| jump_value(kind, 1000.0, end, start);
    assert_eq!(v(Conditional, 64, 64), 1000.0);
    assert_eq!(v(Unconditional, 64, 64), 1050.0);
    assert_eq!(v(Indirect, 64, 64), 100.0);
    assert_eq!(v(Conditional, 0, 512), 50.0);
    assert_eq!(v(Conditional, 0, 1024), 0.0);
    assert_eq!(v(Conditional, 320, 0), 50.0);
    assert_eq!(v(Conditional, 640, 0), 0.0);
    assert_eq!(v(Unconditional, 0, 2000), 0.0);
}

#[test]
fn score_of_a_loop_by_hand() {
    use EdgeKind::{Conditional, Unconditional};
    // 0 -> 1; 1 -> 2 (hot) or 3; 2 -> 1.
    let edges = [
        edge(0, 1, 10, Unconditional),
        edge(1, 2, 90, Conditional),
        edge(1, 3, 10, Conditional),
        edge(2, 1, 90, Unconditional),
    ];
    let g = graph(&[(16, 10), (16, 100), (32, 90), (16, 10)], &edges);
    let s = score(&g, &[0, 1, 2, 3]);
    let by_hand = 10.5 + 90.0 + 0.1 * (1.0 - 32.0 / 1024.0) * 10.0 + 0.1 * (1.0 - 48.0 / 640.0) * 90.0;
    assert!((s - by_hand).abs() < 1e-9);
    // Putting the latch before the header turns the hot jump into a fall-through.
    assert_eq!(ext_tsp(&g), [0, 2, 1, 3]);
}

#[test]
fn odd_graphs() {
    assert!(ext_tsp(&Graph::default()).is_empty());
    assert_eq!(ext_tsp(&graph(&[(0, 0)], &[])), [0]);
    // Edges with invalid indices, loops, huge numbers.
    let edges = [
        edge(7, 0, 1, EdgeKind::Conditional),
        edge(1, 1, u64::MAX, EdgeKind::Conditional),
        edge(1, 0, u64::MAX, EdgeKind::Unconditional),
        edge(0, 2, u64::MAX, EdgeKind::Indirect),
    ];
    let g = graph(&[(u64::MAX, u64::MAX), (0, 0), (u64::MAX, 0)], &edges);
    let order = ext_tsp(&g);
    assert!(is_permutation(&order, 3) && order[0] == 0);
}

#[test]
fn cold_blocks_come_last_in_their_order() {
    let edges = [edge(0, 4, 5, EdgeKind::Conditional), edge(0, 1, 0, EdgeKind::Conditional)];
    let g = graph(&[5, 0, 0, 0, 5, 0].map(|count| (8, count)), &edges);
    assert_eq!(ext_tsp(&g), [0, 4, 1, 2, 3, 5]);
}

#[test]
fn near_the_best_of_all_orders() {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let (mut ratios, mut worst) = (Vec::new(), 1.0f64);
    for _ in 0..300 {
        let n = 3 + rng.below(5);
        let g = walked(&mut rng, n, 50, 4);
        let best = best_of_all(&g);
        let order = ext_tsp(&g);
        assert!(is_permutation(&order, n) && order[0] == 0);
        let got = score(&g, &order);
        assert!(got <= best + 1e-6);
        let hot: Vec<usize> = (0..n).collect();
        assert!(got >= score(&g, &chains::greedy(&g, &hot)) - 1e-9);
        assert!(got >= score(&g, &hot) - 1e-9);
        let ratio = if best > 0.0 { got / best } else { 1.0 };
        worst = worst.min(ratio);
        ratios.push(ratio);
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    eprintln!("ext-TSP against all orders: mean {mean:.4}, worst {worst:.4}");
    assert!(mean >= 0.985, "mean {mean}");
    assert!(worst >= 0.85, "worst {worst}");
}

#[test]
fn better_than_greedy_if_distances_matter() {
    let mut rng = Rng(42);
    let (mut ours, mut greedy, mut merged) = (0.0, 0.0, 0.0);
    for _ in 0..20 {
        let g = walked(&mut rng, 80, 200, 12);
        let hot: Vec<usize> = (0..80).filter(|&b| g.hot()[b]).collect();
        ours += score(&g, &ext_tsp(&g));
        greedy += score(&g, &chains::greedy(&g, &hot));
        merged += score(&g, &chains::merge(&g, &hot));
    }
    eprintln!("80 blocks: ours {ours:.0}, merging alone {merged:.0}, greedy {greedy:.0}");
    assert!(merged > greedy);
}

/// Returns the CPU time of this thread, which other work on the machine does not affect.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn large_functions_take_little_time() {
    let mut rng = Rng(7);
    for (name, g) in [
        ("branches", walked(&mut rng, 3000, 3000, 40)),
        ("switch", {
            let mut edges = Vec::new();
            for case in 1..3000 {
                let count = 1 + rng.below(1000);
                edges.push(edge(0, case, count, EdgeKind::Indirect));
                edges.push(edge(case, 0, count, EdgeKind::Unconditional));
            }
            graph(&[(24, 500); 3000], &edges)
        }),
        ("star of cases", {
            let mut edges = Vec::new();
            for case in (1..2999).step_by(3) {
                edges.push(edge(0, case, 10 + rng.below(1000), EdgeKind::Indirect));
                edges.push(edge(case, case + 1, 5 + rng.below(50), EdgeKind::Conditional));
                edges.push(edge(case, case + 2, 5 + rng.below(50), EdgeKind::Conditional));
                edges.push(edge(case + 1, 2999, 5 + rng.below(50), EdgeKind::Unconditional));
                edges.push(edge(case + 2, 2999, 5 + rng.below(50), EdgeKind::Unconditional));
            }
            graph(&[(24, 500); 3000], &edges)
        }),
    ] {
        let begun = cpu_time();
        let order = ext_tsp(&g);
        let took = cpu_time() - begun;
        eprintln!("3000 blocks, {name}: {took:?}, score {:.0}", score(&g, &order));
        assert!(is_permutation(&order, 3000));
        // A large margin, for unoptimized builds: a join in quadratic time would take a minute.
        assert!(took.as_secs() < 2, "{name}: {took:?}");
    }
}

fn arb_graph() -> impl Strategy<Value = Graph> {
    (1usize..14).prop_flat_map(|n| {
        let kind =
            prop::sample::select(vec![EdgeKind::Conditional, EdgeKind::Unconditional, EdgeKind::Indirect]);
        let edge = (0..n, 0..n, 0u64..1000, kind).prop_map(|(f, t, c, k)| edge(f, t, c, k));
        let block = (0u64..700, 0u64..3);
        (prop::collection::vec(block, n), prop::collection::vec(edge, 0..3 * n))
            .prop_map(|(blocks, edges)| graph(&blocks, &edges))
    })
}

proptest! {
    #[test]
    fn any_graph_is_ordered(g in arb_graph()) {
        let n = g.blocks.len();
        let order = ext_tsp(&g);
        prop_assert!(is_permutation(&order, n));
        prop_assert_eq!(order[0], 0);
        prop_assert_eq!(&order, &ext_tsp(&g));
        let hot = g.hot();
        let hot_blocks: Vec<usize> = (0..n).filter(|&b| hot[b]).collect();
        // Hot blocks first, cold ones in their old order.
        prop_assert!(order[..hot_blocks.len()].iter().all(|&b| hot[b]));
        prop_assert!(order[hot_blocks.len()..].is_sorted());
        // Counts only scale the score.
        prop_assert!(score(&g, &order) >= score(&g, &hot_blocks));
        prop_assert!(score(&g, &order) >= score(&g, &chains::greedy(&g, &hot_blocks)));
    }

    /// The expected gains of merging are real: at the end, the chains' score is the sum of the gains.
    #[test]
    fn promised_gains_are_kept(g in arb_graph()) {
        let hot = g.hot();
        let hot_blocks: Vec<usize> = (0..g.blocks.len()).filter(|&b| hot[b]).collect();
        let (promised, brought) = chains::promise_and_score(&g, &hot_blocks);
        prop_assert!((promised - brought).abs() < 1e-6 * (1.0 + brought), "{promised} {brought}");
    }
}
