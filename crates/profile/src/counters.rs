//! Exact counts from few counters.
//!
//! After Knuth and Stevenson, "Optimal measurement of points for program frequency counts" (BIT 1973), and
//! Ball and Larus, "Optimally profiling and tracing programs" (TOPLAS 1994). In a circulation, the flows
//! outside a spanning tree determine those on the tree. With a spanning tree of the greatest weight, the
//! counters are incremented as rarely as possible.

mod guess;

use crate::counts::Counts;
use crate::links::{Link, Place, WORLD, counts_of, links_of};
use crate::mend::{Measured, Price, mend};
use code::{Cfg, CountBy, Point, Spot, Term};
use guess::guess;
use std::cmp::Reverse;
use std::collections::VecDeque;

/// Cost of a thread that enters or leaves a block unseen. Counting begins and ends while threads are inside
/// functions, and exceptions and `longjmp` leave from the middle of a block. This explains most
/// contradictions.
const UNSEEN: i64 = 2;
/// Cost of one execution that a counter has too few or too many. An increment can be lost, but this is
/// assumed only if nothing else explains the contradiction.
const MISCOUNTED: i64 = 3;

/// The places of a function's counters, and how its counts follow from them.
#[derive(Clone, Debug)]
pub struct CounterPlan {
    blocks: usize,
    links: Vec<PlannedLink>,
    /// The counters' places, in the order of the links; empty if an earlier plan has placed them.
    points: Vec<(Point, Spot)>,
    /// The number of counters.
    counters: usize,
    /// The sum of the guesses of all counters' values.
    guessed: u128,
    /// The nodes of the spanning tree except its root, each before its parent, with the link to its parent.
    tree: Vec<(usize, usize)>,
}

/// A link with its part in a plan.
#[derive(Clone, Copy, Debug)]
struct PlannedLink {
    link: Link,
    role: Role,
}

/// How the flow of a link becomes known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// A counter measures it.
    Counted,
    /// It follows from the flows of other links.
    Tree,
    /// It stays unknown: neither this link nor another link of its cycle can have a counter.
    Open { guess: u64 },
}

/// Counts, and whether they are exact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Solved {
    /// The counts, always consistent ([`Counts::is_consistent`]).
    pub counts: Counts,
    /// Whether the counters determine all counts and do not contradict each other. Threads that leave a
    /// function in the middle need not cause a contradiction, so even exact counts may be wrong by the number
    /// of such threads.
    pub exact: bool,
}

impl CounterPlan {
    /// Places the counters where, in sum, they are incremented least often.
    ///
    /// `estimate` holds consistent counts known so far, up to a factor; it may be empty. Two places may have
    /// no count, or the same. Then a guess from the shape of the graph decides, and after it the cost of a
    /// counter at each place. `countable` returns how a counter can be placed at a point, or `None` if it
    /// cannot.
    #[must_use]
    pub fn new(cfg: &Cfg, estimate: &Counts, countable: &dyn Fn(Point) -> Option<Spot>) -> Self {
        let blocks = cfg.blocks.len();
        let links = links_of(cfg);
        let spots: Vec<Option<Spot>> = links.iter().map(|l| l.point().and_then(countable)).collect();
        let estimated: Vec<u64> = links.iter().map(|l| l.of(estimate)).collect();
        let looks = guess(blocks, &links);
        let best = if estimated.iter().any(|&n| n > 0) { &estimated } else { &looks };
        let mut order: Vec<usize> = (0..links.len()).collect();
        order.sort_by_key(|&l| {
            let price = spots[l].map(|s| price(cfg, links[l].place, s.by));
            (price.is_some(), Reverse((estimated[l], looks[l], price)))
        });
        let mut trees = UnionFind::new(2 * blocks + 1);
        let mut links = planned(&links, Role::Counted);
        for l in order {
            let PlannedLink { link, role } = &mut links[l];
            if trees.join(link.from, link.to) {
                *role = Role::Tree;
            } else if spots[l].is_none() {
                *role = Role::Open { guess: best[l] };
            }
        }
        let counted = (0..links.len()).filter(|&l| links[l].role == Role::Counted);
        let guessed = counted.clone().map(|l| u128::from(best[l])).sum();
        let points = counted.filter_map(|l| links[l].link.point().zip(spots[l])).collect();
        Self::with_roles(blocks, links, points, guessed)
    }

    /// Returns a plan with the counters of an earlier plan, given as [`CounterPlan::counted`] returns them.
    /// Returns `None` if the graph has no such links.
    #[must_use]
    pub fn again(cfg: &Cfg, counted: &[u32]) -> Option<Self> {
        let blocks = cfg.blocks.len();
        let links = links_of(cfg);
        let looks = guess(blocks, &links);
        let mut links = planned(&links, Role::Tree);
        for &l in counted {
            let planned = links.get_mut(usize::try_from(l).ok()?)?;
            planned.link.point()?;
            planned.role = Role::Counted;
        }
        let mut trees = UnionFind::new(2 * blocks + 1);
        // Links that cannot have a counter join the tree first, as in the earlier plan.
        let mut order: Vec<usize> = (0..links.len()).filter(|&l| links[l].role == Role::Tree).collect();
        order.sort_by_key(|&l| (links[l].link.point().is_some(), Reverse(looks[l])));
        for l in order {
            let PlannedLink { link, role } = &mut links[l];
            if !trees.join(link.from, link.to) {
                *role = Role::Open { guess: looks[l] };
            }
        }
        let guessed = counted.iter().map(|&l| u128::from(looks[l as usize])).sum();
        Some(Self::with_roles(blocks, links, Vec::new(), guessed))
    }

    fn with_roles(blocks: usize, links: Vec<PlannedLink>, points: Vec<(Point, Spot)>, guessed: u128) -> Self {
        let tree = hang(2 * blocks + 1, &links);
        let counters = links.iter().filter(|l| l.role == Role::Counted).count();
        Self { blocks, links, points, counters, guessed, tree }
    }

    /// Returns the links that have counters, as rising indices into all links.
    #[must_use]
    pub fn counted(&self) -> Vec<u32> {
        (0u32..).zip(&self.links).filter(|(_, l)| l.role == Role::Counted).map(|(l, _)| l).collect()
    }

    /// Returns the number of counters.
    #[must_use]
    pub fn counters(&self) -> usize {
        self.counters
    }

    /// Returns the places of the counters and their instructions; empty for a plan by [`CounterPlan::again`].
    #[must_use]
    pub fn points(&self) -> &[(Point, Spot)] {
        &self.points
    }

    /// Returns how many more counters would be needed to determine all counts, on links that cannot have a
    /// counter.
    #[must_use]
    pub fn missing_counters(&self) -> usize {
        self.links.iter().filter(|l| matches!(l.role, Role::Open { .. })).count()
    }

    /// Returns the counts of all blocks and edges. `values` are the values of the counters, in the order of
    /// [`CounterPlan::counted`] and [`CounterPlan::points`]. A missing value is taken as 0 and makes the
    /// counts inexact.
    #[must_use]
    pub fn solve(&self, values: &[u64]) -> Solved {
        let flows = self.flows(values);
        let open = self.missing_counters() > 0;
        match flows.iter().map(|&f| u64::try_from(f)).collect::<Result<Vec<u64>, _>>() {
            Ok(whole) => Solved {
                counts: counts_of(self.blocks, self.links.iter().map(|l| l.link.place).zip(whole)),
                exact: !open && values.len() == self.counters,
            },
            Err(_) => {
                let measured = |(planned, flow): (&PlannedLink, i128)| {
                    let cost = match planned.role {
                        Role::Counted => MISCOUNTED,
                        Role::Tree | Role::Open { .. } => 0,
                    };
                    Measured { link: planned.link, flow, price: Price { more: cost, less: cost } }
                };
                let links: Vec<Measured> = self.links.iter().zip(flows).map(measured).collect();
                Solved { counts: mend(self.blocks, &links, UNSEEN), exact: false }
            }
        }
    }

    /// Returns the flow of each link. The flows are conserved in every node, but may be negative or exceed 64
    /// bits.
    fn flows(&self, values: &[u64]) -> Vec<i128> {
        let total: u128 = values.iter().map(|&v| u128::from(v)).sum();
        // The flow of an open link is its guess, scaled by the sum of the counters' values over the sum of
        // their guesses.
        let share = |guess: u64| {
            let part = u128::from(guess).checked_mul(total).and_then(|x| x.checked_div(self.guessed));
            part.and_then(|p| u64::try_from(p).ok()).unwrap_or(0)
        };
        let mut values = values.iter().copied();
        let mut surplus = vec![0i128; 2 * self.blocks + 1];
        let mut flows = vec![0i128; self.links.len()];
        for (PlannedLink { link, role }, flow) in self.links.iter().zip(&mut flows) {
            *flow = match *role {
                Role::Counted => values.next().unwrap_or(0).into(),
                Role::Open { guess } => share(guess).into(),
                Role::Tree => 0,
            };
            surplus[link.to] += *flow;
            surplus[link.from] -= *flow;
        }
        // At this point all links of a node are known except the link to its parent.
        for &(node, l) in &self.tree {
            let link = &self.links[l].link;
            flows[l] = if link.from == node { surplus[node] } else { -surplus[node] };
            surplus[link.to] += flows[l];
            surplus[link.from] -= flows[l];
        }
        flows
    }
}

/// Returns the cost of one increment: instructions, and whether the counter needs code of its own elsewhere.
/// The start of a block is the cheapest place. A taken edge costs more, because it needs one more jump.
fn price(cfg: &Cfg, place: Place, by: CountBy) -> (u32, bool) {
    let instructions = match by {
        CountBy::Inc => 1,
        CountBy::Register(_) => 3,
    };
    match place {
        Place::Edge(b, 0)
            if matches!(cfg.blocks[b.index()].term, Term::Cond { .. } | Term::CondShort { .. }) =>
        {
            (instructions + 3, true)
        }
        Place::Edge(..) => (instructions, true),
        Place::Entrance(_) | Place::Block(_) | Place::Exit(_) => (instructions, false),
    }
}

/// Gives all links the same role.
fn planned(links: &[Link], role: Role) -> Vec<PlannedLink> {
    links.iter().map(|&link| PlannedLink { link, role }).collect()
}

/// Returns the spanning tree: each node except the world, with the link to its parent, children before
/// parents. The tree holds every node, because each block can be reached from the world.
fn hang(nodes: usize, links: &[PlannedLink]) -> Vec<(usize, usize)> {
    let mut touching = vec![Vec::new(); nodes];
    for (l, PlannedLink { link, .. }) in links.iter().enumerate().filter(|(_, l)| l.role == Role::Tree) {
        touching[link.from].push(l);
        touching[link.to].push(l);
    }
    let mut hung = vec![false; nodes];
    hung[WORLD] = true;
    let mut tree = Vec::with_capacity(nodes);
    let mut queue = VecDeque::from([WORLD]);
    while let Some(node) = queue.pop_front() {
        for &l in &touching[node] {
            let other = links[l].link.from ^ links[l].link.to ^ node;
            if !std::mem::replace(&mut hung[other], true) {
                tree.push((other, l));
                queue.push_back(other);
            }
        }
    }
    tree.reverse();
    tree
}

/// Sets of nodes that are connected (a union-find structure).
struct UnionFind(Vec<usize>);

impl UnionFind {
    fn new(nodes: usize) -> Self {
        Self((0..nodes).collect())
    }

    fn find(&mut self, mut node: usize) -> usize {
        while self.0[node] != node {
            self.0[node] = self.0[self.0[node]];
            node = self.0[node];
        }
        node
    }

    /// Connects two nodes; returns false if they were connected before.
    fn join(&mut self, a: usize, b: usize) -> bool {
        let (a, b) = (self.find(a), self.find(b));
        self.0[a] = b;
        a != b
    }
}

#[cfg(test)]
mod tests;
