use super::*;
use crate::counts::BlockCounts;
use crate::links::{enter, leave};
use crate::test_cfg::{arb_cfg, cfg_at, cond, cpu_time, fall, ret};
use code::{BlockId, Dest, Gpr};
use proptest::prelude::*;
use std::collections::HashMap;
use testkit::Rng;

fn block(b: u32) -> Point {
    Point::Block(BlockId(b))
}

fn edge(from: u32, index: u32) -> Point {
    Point::Edge { from: BlockId(from), index }
}

const INC: Spot = Spot { skip: 0, by: CountBy::Inc };

fn anywhere(_: Point) -> Option<Spot> {
    Some(INC)
}

fn points(plan: &CounterPlan) -> Vec<Point> {
    plan.points().iter().map(|p| p.0).collect()
}

fn of_block(count: u64, edges: &[u64], inflow: u64, outflow: u64) -> BlockCounts {
    BlockCounts { count, edges: edges.to_vec(), inflow, outflow }
}

/// Returns how often each block ran.
fn runs(counts: &Counts) -> Vec<u64> {
    counts.blocks.iter().map(|b| b.count).collect()
}

/// A graph in which 0 branches to 2 or falls through to 1, which continues to 2.
fn skip() -> Cfg {
    cfg_at(0, &[(1, cond(2, 1)), (1, fall(2)), (1, ret())])
}

#[test]
fn blocks_are_counted_rather_than_edges() {
    let diamond = cfg_at(0, &[(1, cond(2, 1)), (1, fall(3)), (1, fall(3)), (1, ret())]);
    let plan = CounterPlan::new(&diamond, &Counts::default(), &anywhere);
    assert_eq!(points(&plan), [block(1), block(2)]);
    let solved = plan.solve(&[30, 70]);
    assert!(solved.exact);
    let blocks = [
        of_block(100, &[70, 30], 100, 0),
        of_block(30, &[30], 0, 0),
        of_block(70, &[70], 0, 0),
        of_block(100, &[], 0, 100),
    ];
    assert_eq!(solved.counts, Counts { entry: 100, blocks: blocks.to_vec() });
}

#[test]
fn counters_of_another_graph_are_refused() {
    let links = u32::try_from(links_of(&skip()).len()).unwrap();
    assert!(CounterPlan::again(&skip(), &[links]).is_none());
    // The first link of a function comes from outside, so it cannot have a counter.
    assert!(CounterPlan::again(&skip(), &[0]).is_none());
}

#[test]
fn hot_paths_get_no_counter() {
    let plan = |edges: [u64; 2]| {
        let all = edges[0] + edges[1];
        let blocks = [(all, &edges[..]), (edges[1], &edges[1..]), (all, &[])];
        let blocks = blocks.map(|(count, edges)| of_block(count, edges, 0, 0));
        let estimate = Counts { entry: 0, blocks: blocks.to_vec() };
        // A counter can be placed anywhere except on the taken edge.
        CounterPlan::new(&skip(), &estimate, &|p| (p != edge(0, 0)).then_some(INC))
    };
    assert_eq!(points(&plan([90, 10])), [block(1), block(2)]);
    let all = CounterPlan::new(&skip(), &Counts::default(), &anywhere);
    assert_eq!(points(&all), [edge(0, 0), block(1)]);
    assert_eq!(runs(&all.solve(&[7, 3]).counts), [10, 3, 10]);
    // A loop that runs many rounds is counted where it is left, not on its back edge.
    let turning = cfg_at(0, &[(1, fall(1)), (1, cond(1, 2)), (1, cond(1, 3)), (1, ret())]);
    let plan = CounterPlan::new(&turning, &Counts::default(), &anywhere);
    assert_eq!(points(&plan).len(), 3);
    assert!(!points(&plan).contains(&block(1)));
}

#[test]
fn the_cheaper_way_to_count_is_preferred() {
    // Block 1 and its only edge run equally often. The counter is placed where it takes one instruction.
    for (dear, want) in [(block(1), edge(1, 0)), (edge(1, 0), block(1))] {
        let by = |p| match p {
            _ if p == dear => Some(Spot { by: CountBy::Register(Gpr::new(0).unwrap()), ..INC }),
            _ if p == edge(0, 1) => None,
            _ => Some(INC),
        };
        let plan = CounterPlan::new(&skip(), &Counts::default(), &by);
        assert_eq!(plan.points(), [(edge(0, 0), INC), (want, INC)]);
    }
}

#[test]
fn unseen_entries_explain_a_surplus() {
    let plan =
        CounterPlan::new(&skip(), &Counts::default(), &|p| [block(0), block(1)].contains(&p).then_some(INC));
    assert_eq!(points(&plan), [block(0), block(1)]);
    let solved = plan.solve(&[10, 12]);
    assert!(!solved.exact);
    let want = [of_block(10, &[0, 10], 10, 0), of_block(12, &[12], 2, 0), of_block(12, &[], 0, 12)];
    assert_eq!(solved.counts, Counts { entry: 10, blocks: want.to_vec() });
    // A missing value makes the counts inexact.
    assert!(plan.solve(&[10, 0]).exact);
    assert!(!plan.solve(&[10]).exact);
}

#[test]
fn unknown_counts_are_divided_as_guessed() {
    // Two branches lead to the same two blocks, and no edge has a counter.
    let cfg = cfg_at(0, &[(1, cond(1, 2)), (1, cond(3, 4)), (1, cond(3, 4)), (1, ret()), (1, ret())]);
    let blocks_only = |p| matches!(p, Point::Block(_)).then_some(INC);
    let plan = CounterPlan::new(&cfg, &Counts::default(), &blocks_only);
    let value = |p: &(Point, Spot)| [100, 80, 20, 50, 50][usize::try_from(number(p.0)).unwrap()];
    let solved = plan.solve(&plan.points().iter().map(value).collect::<Vec<_>>());
    assert!(!solved.exact && solved.counts.is_consistent(&cfg));
    assert_eq!(runs(&solved.counts), [100, 80, 20, 50, 50]);
    assert!(solved.counts.blocks[1].edges.iter().all(|&n| n > 0), "{solved:?}");
}

fn number(p: Point) -> u32 {
    let (Point::Block(b) | Point::Edge { from: b, .. }) = p;
    b.0
}

/// The true events: how often each point, entrance and exit was passed.
#[derive(Default, Debug)]
struct Truth {
    hits: HashMap<Point, u64>,
    came: HashMap<u32, u64>,
    left: HashMap<u32, u64>,
}

impl Truth {
    fn values(&self, plan: &CounterPlan) -> Vec<u64> {
        plan.points().iter().map(|(p, _)| self.at(*p)).collect()
    }

    fn at(&self, p: Point) -> u64 {
        self.hits.get(&p).copied().unwrap_or(0)
    }

    fn counts(&self, cfg: &Cfg) -> Counts {
        let of = |m: &HashMap<u32, u64>, b| m.get(&b).copied().unwrap_or(0);
        let of_block = |b: BlockId| BlockCounts {
            count: self.at(block(b.0)),
            edges: (0..degree(cfg, b.0)).map(|i| self.at(edge(b.0, i))).collect(),
            inflow: of(&self.came, b.0),
            outflow: of(&self.left, b.0),
        };
        Counts { entry: of(&self.came, 0), blocks: cfg.block_ids().map(of_block).collect() }
    }
}

fn degree(cfg: &Cfg, b: u32) -> u32 {
    successors(cfg, b).len().try_into().unwrap()
}

fn successors(cfg: &Cfg, b: u32) -> Vec<Dest> {
    let mut all = Vec::new();
    cfg.successors(BlockId(b), |d| all.push(d));
    all
}

/// Returns the blocks with an entrance, and those with an exit.
fn doors(cfg: &Cfg) -> (Vec<u32>, Vec<u32>) {
    let (mut ins, mut outs) = (Vec::new(), Vec::new());
    for link in links_of(cfg) {
        match link.place {
            Place::Entrance(b) => ins.push(b.0),
            Place::Exit(b) => outs.push(b.0),
            _ => {}
        }
    }
    (ins, outs)
}

/// Makes random walks from any entrance to any exit. In each block, a walk ends with a probability of `cut`
/// percent. Returns the true events, and how many walks ended in the middle of a block.
fn walk(cfg: &Cfg, rng: &mut Rng, walks: u64, cut: u64) -> (Truth, u64) {
    let (ins, outs) = doors(cfg);
    let n = cfg.blocks.len();
    // The number of steps to the nearest exit.
    let mut far = vec![usize::MAX; n];
    for _ in 0..=n {
        for b in 0..u32::try_from(n).unwrap() {
            let next = successors(cfg, b).into_iter().map(|d| match d {
                Dest::Block(to) => far[to.index()].saturating_add(1),
                Dest::Outside(_) => 0,
            });
            let own = if outs.contains(&b) { 0 } else { usize::MAX };
            far[b as usize] = next.min().unwrap_or(usize::MAX).min(own);
        }
    }
    let (mut truth, mut unseen) = (Truth::default(), 0);
    for _ in 0..walks {
        let mut b = ins[rng.below(ins.len())];
        *truth.came.entry(b).or_default() += 1;
        let mut budget = rng.below(4 * n);
        loop {
            *truth.hits.entry(block(b)).or_default() += 1;
            if rng.below(100) < cut {
                unseen += 1;
                break;
            }
            let ways = successors(cfg, b);
            let out = outs.contains(&b);
            let mut way = rng.below((ways.len() + usize::from(out)).max(1));
            if budget == 0 {
                let length = |d: &Dest| match d {
                    Dest::Block(to) => far[to.index()].saturating_add(1),
                    Dest::Outside(_) => 0,
                };
                let best = (0..ways.len()).min_by_key(|&w| length(&ways[w]));
                way = best.filter(|_| !out).unwrap_or(ways.len());
            }
            budget = budget.saturating_sub(1);
            let Some(&dest) = ways.get(way) else {
                assert!(out);
                *truth.left.entry(b).or_default() += 1;
                break;
            };
            *truth.hits.entry(edge(b, way.try_into().unwrap())).or_default() += 1;
            match dest {
                Dest::Block(to) => b = to.0,
                Dest::Outside(_) => break,
            }
        }
    }
    (truth, unseen)
}

/// Returns edges minus nodes plus components: the number of links outside any spanning forest.
fn cycles(nodes: usize, links: &[Link]) -> usize {
    let mut colour: Vec<usize> = (0..nodes).collect();
    for l in links {
        let (old, new) = (colour[l.from], colour[l.to]);
        colour.iter_mut().filter(|c| **c == old).for_each(|c| *c = new);
    }
    colour.sort_unstable();
    colour.dedup();
    links.len() + colour.len() - nodes
}

/// Returns the smallest number of increments, by trying every set of links.
fn least_increments(cfg: &Cfg, truth: &Truth) -> u64 {
    let links = links_of(cfg);
    let nodes = 2 * cfg.blocks.len() + 1;
    let need = cycles(nodes, &links);
    let countable: Vec<usize> = (0..links.len()).filter(|&l| links[l].point().is_some()).collect();
    let sets = (0u32..1 << countable.len()).filter(|set| set.count_ones() as usize == need);
    let sums = sets.filter_map(|set| {
        let counted: Vec<usize> =
            countable.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, &l)| l).collect();
        let rest: Vec<Link> = (0..links.len()).filter(|l| !counted.contains(l)).map(|l| links[l]).collect();
        let sum = counted.iter().map(|&l| truth.at(links[l].point().unwrap())).sum();
        (cycles(nodes, &rest) == 0).then_some(sum)
    });
    sums.min().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn counts_are_what_happened(cfg in arb_cfg(20), seed in 1u64.., walks in 0u64..40, guessed in any::<bool>()) {
        let (truth, _) = walk(&cfg, &mut Rng(seed), walks, 0);
        let exact = truth.counts(&cfg);
        prop_assert!(exact.is_consistent(&cfg));
        let estimate = if guessed { Counts::default() } else { exact.clone() };
        let plan = CounterPlan::new(&cfg, &estimate, &anywhere);
        let values = truth.values(&plan);
        prop_assert_eq!(plan.solve(&values), Solved { counts: exact.clone(), exact: true });
        let again = CounterPlan::again(&cfg, &plan.counted()).unwrap();
        prop_assert_eq!(again.solve(&values), Solved { counts: exact.clone(), exact: true });
        prop_assert_eq!(again.counters(), values.len());
        prop_assert_eq!(values.len(), cycles(2 * cfg.blocks.len() + 1, &links_of(&cfg)));
        if !guessed {
            // The increments are at most those of one counter in each block. A loop without a way out needs
            // one more counter, to see that control leaves the loop.
            let (_, outs) = doors(&cfg);
            let endless = outs.iter().filter(|&&b| degree(&cfg, b) > 0).map(|&b| exact.blocks[b as usize].count);
            prop_assert!(values.iter().sum::<u64>() <= runs(&exact).iter().sum::<u64>() + endless.sum::<u64>());
        }
    }

    #[test]
    fn no_set_of_counters_has_fewer_increments(cfg in arb_cfg(5), seed in 1u64..) {
        let (truth, _) = walk(&cfg, &mut Rng(seed), 10, 0);
        prop_assume!(links_of(&cfg).iter().filter(|l| l.point().is_some()).count() <= 14);
        let plan = CounterPlan::new(&cfg, &truth.counts(&cfg), &anywhere);
        prop_assert_eq!(truth.values(&plan).iter().sum::<u64>(), least_increments(&cfg, &truth));
    }

    #[test]
    fn counts_where_counters_cannot_be_placed(cfg in arb_cfg(20), seed in 1u64.., walks in 0u64..40, often in 0u64..=100) {
        let mut rng = Rng(seed);
        let (truth, _) = walk(&cfg, &mut rng, walks, 0);
        let exact = truth.counts(&cfg);
        let links = links_of(&cfg);
        let allowed: Vec<Point> =
            links.iter().filter_map(Link::point).filter(|_| rng.below(100) < often).collect();
        let by = |p| allowed.contains(&p).then_some(Spot { by: CountBy::Register(Gpr::new(1).unwrap()), ..INC });
        let plan = CounterPlan::new(&cfg, &Counts::default(), &by);
        prop_assert!(points(&plan).iter().all(|p| allowed.contains(p)));
        let dark: Vec<Link> =
            links.iter().filter(|l| l.point().is_none_or(|p| !allowed.contains(&p))).copied().collect();
        let nodes = 2 * cfg.blocks.len() + 1;
        let unknown = cycles(nodes, &dark);
        prop_assert_eq!(plan.points().len(), cycles(nodes, &links) - unknown);
        let values = truth.values(&plan);
        let solved = plan.solve(&values);
        prop_assert!(solved.counts.is_consistent(&cfg));
        prop_assert_eq!(solved.exact, unknown == 0);
        let again = CounterPlan::again(&cfg, &plan.counted()).unwrap();
        prop_assert_eq!((again.missing_counters(), again.solve(&values).exact), (plan.missing_counters(), solved.exact));
        if solved.exact {
            prop_assert_eq!(solved.counts, exact);
        } else {
            // The counters' values are kept, and no thread needs to have entered or left unseen.
            prop_assert_eq!(strain(&cfg, &plan, &values, &solved.counts), 0);
        }
    }

    #[test]
    fn cut_walks_give_consistent_counts(cfg in arb_cfg(20), seed in 1u64.., walks in 0u64..40, cut in 0u64..30) {
        let (truth, unseen) = walk(&cfg, &mut Rng(seed), walks, cut);
        let plan = CounterPlan::new(&cfg, &Counts::default(), &anywhere);
        let values = truth.values(&plan);
        let solved = plan.solve(&values);
        prop_assert!(solved.counts.is_consistent(&cfg));
        // The true counts would be one possible answer.
        prop_assert!(strain(&cfg, &plan, &values, &solved.counts) <= 2 * unseen);
    }

    #[test]
    fn arbitrary_values_give_consistent_counts(
        cfg in arb_cfg(20),
        values in prop::collection::vec(prop_oneof![0u64..10, any::<u64>(), Just(u64::MAX)], 0..60),
        guesses in prop::collection::vec(any::<u64>(), 0..25),
        often in 0u64..=100,
    ) {
        let mut rng = Rng(0x9e37_79b9);
        let dark: Vec<Point> =
            links_of(&cfg).iter().filter_map(Link::point).filter(|_| rng.below(100) >= often).collect();
        let edges = guesses.chunks(2).chain(std::iter::repeat(&[][..]));
        let blocks = guesses.iter().zip(edges).map(|(&count, edges)| of_block(count, edges, 0, 0)).collect();
        let estimate = Counts { entry: 0, blocks };
        let plan = CounterPlan::new(&cfg, &estimate, &|p| (!dark.contains(&p)).then_some(INC));
        let solved = plan.solve(&values);
        prop_assert!(solved.counts.is_consistent(&cfg), "{solved:?}");
    }
}

/// Returns how far counts are from the counters' values, at the costs of `solve`: 2 for each entry or exit
/// where the graph has none, 3 for each execution too many or too few.
fn strain(cfg: &Cfg, plan: &CounterPlan, values: &[u64], counts: &Counts) -> u64 {
    let (ins, outs) = doors(cfg);
    let off =
        plan.links.iter().map(|l| l.link).filter(|l| plan.points.iter().any(|p| Some(p.0) == l.point()));
    let off: u64 = off.zip(values).map(|(l, &v)| l.of(counts).abs_diff(v)).sum();
    let unseen = |flow: fn(&BlockCounts) -> u64, doors: &[u32]| -> u64 {
        (0u32..).zip(&counts.blocks).filter(|(b, _)| !doors.contains(b)).map(|(_, b)| flow(b)).sum()
    };
    3 * off + 2 * (unseen(|b| b.inflow, &ins) + unseen(|b| b.outflow, &outs))
}

#[test]
fn nodes_are_numbered_without_overlap() {
    assert_eq!([WORLD, enter(0), leave(0), enter(1)], [0, 1, 2, 3]);
}

#[test]
fn large_functions_are_quick() {
    let n = 5000u32;
    let mut rng = Rng(77);
    let blocks: Vec<_> = (0..n)
        .map(|b| {
            let back = rng.below(4) == 0;
            let near = u32::try_from(rng.below(30)).unwrap();
            let other = if back { b.saturating_sub(near) } else { (b + near + 2).min(n - 1) };
            (1, if b + 1 == n { ret() } else { cond(other, b + 1) })
        })
        .collect();
    let cfg = cfg_at(0, &blocks);
    let (began, rounds) = (cpu_time(), 50);
    for _ in 0..rounds {
        assert!(!CounterPlan::new(&cfg, &Counts::default(), &anywhere).points().is_empty());
    }
    let planned = cpu_time();
    let plan = CounterPlan::new(&cfg, &Counts::default(), &anywhere);
    let values: Vec<u64> = plan.points().iter().map(|_| rng.below(1000)).collect();
    let begin_flows = cpu_time();
    for _ in 0..rounds {
        assert_eq!(plan.flows(&values).len(), plan.links.len());
    }
    let solved = cpu_time();
    let begin_mend = cpu_time();
    let all = plan.solve(&values);
    let mended = cpu_time();
    let (plan_time, solve_time) = ((planned - began) / rounds, (solved - begin_flows) / rounds);
    eprintln!(
        "5000 blocks, {} counters: plan {plan_time:?}, solve {solve_time:?}, mend nonsense {:?}",
        values.len(),
        mended - begin_mend
    );
    assert!(!all.exact && all.counts.is_consistent(&cfg));
    assert!(
        plan_time.as_millis() < 500 && solve_time.as_millis() < 50 && (mended - begin_mend).as_secs() < 4
    );
}
