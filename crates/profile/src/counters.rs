//! Exact counts from few counters.
//!
//! After Knuth and Stevenson, "Optimal measurement of points for program frequency counts" (BIT 1973), and Ball and
//! Larus, "Optimally profiling and tracing programs" (TOPLAS 1994): in a circulation the flows outside a spanning tree
//! determine those on the tree. With the tree of greatest weight, counters run as rarely as can be.

mod guess;

use crate::counts::Counts;
use crate::links::{Link, Place, WORLD, counts_of, links_of};
use crate::mend::{Price, mend};
use code::{Cfg, CountBy, Point, Spot, Term};
use guess::guess;
use std::cmp::Reverse;
use std::collections::VecDeque;

/// Cost of a thread that came to a block, or left one, unseen. Counting begins and ends while threads are inside functions,
/// and exceptions and `longjmp` leave from the middle of a block: that explains most of what contradicts.
const UNSEEN: i64 = 2;
/// Cost of one that a counter has too few, or too many: an increment can be lost, but only where nothing else explains it.
const MISCOUNTED: i64 = 3;

/// Where the counters of a function go, and how its counts follow from them.
#[derive(Clone, Debug)]
pub struct CounterPlan {
    blocks: usize,
    links: Vec<Link>,
    /// By link.
    roles: Vec<Role>,
    /// In the order of the links; empty where they were put there before.
    points: Vec<(Point, Spot)>,
    /// How many counters there are.
    counters: usize,
    /// What all counters together were guessed to count.
    guessed: u128,
    /// Nodes, each before the one it hangs on in the tree, and the link by which it hangs there.
    tree: Vec<(usize, usize)>,
}

/// How the flow of a link becomes known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// By a counter.
    Counted,
    /// It follows from the others.
    Tree,
    /// It does not: no counter can be put there, nor could its cycle be broken elsewhere.
    Open { guess: u64 },
}

/// Counts, and whether they are the truth.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Solved {
    /// Consistent always ([`Counts::is_consistent`]).
    pub counts: Counts,
    /// Whether the counters determine all counts and contradict nothing. Threads that leave a function in the middle
    /// need not contradict anything, so counts may still be off by the number of those.
    pub exact: bool,
}

impl CounterPlan {
    /// Puts counters where together they count least often.
    ///
    /// `estimate` says how often that is: consistent counts known so far, up to a factor. Where it says nothing (it
    /// may be empty) or the same of two places, the look of the graph decides, and then what a counter there costs.
    /// `countable` says how a counter can be put at a point, or that it cannot.
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
        let mut roles = vec![Role::Counted; links.len()];
        for l in order {
            if trees.join(links[l].from, links[l].to) {
                roles[l] = Role::Tree;
            } else if spots[l].is_none() {
                roles[l] = Role::Open { guess: best[l] };
            }
        }
        let counted = (0..links.len()).filter(|&l| roles[l] == Role::Counted);
        let guessed = counted.clone().map(|l| u128::from(best[l])).sum();
        let points = counted.filter_map(|l| links[l].point().zip(spots[l])).collect();
        Self::with_roles(blocks, links, roles, points, guessed)
    }

    /// Has counters where an earlier plan has put them, by [`CounterPlan::counted`]; `None` where the graph has no such links.
    #[must_use]
    pub fn again(cfg: &Cfg, counted: &[u32]) -> Option<Self> {
        let blocks = cfg.blocks.len();
        let links = links_of(cfg);
        let looks = guess(blocks, &links);
        let mut roles = vec![Role::Tree; links.len()];
        for &l in counted {
            let l = usize::try_from(l).ok()?;
            links.get(l)?.point()?;
            roles[l] = Role::Counted;
        }
        let mut trees = UnionFind::new(2 * blocks + 1);
        // What can have no counter hangs in the tree first, as it did then.
        let mut order: Vec<usize> = (0..links.len()).filter(|&l| roles[l] == Role::Tree).collect();
        order.sort_by_key(|&l| (links[l].point().is_some(), Reverse(looks[l])));
        for l in order {
            if !trees.join(links[l].from, links[l].to) {
                roles[l] = Role::Open { guess: looks[l] };
            }
        }
        let guessed = counted.iter().map(|&l| u128::from(looks[l as usize])).sum();
        Some(Self::with_roles(blocks, links, roles, Vec::new(), guessed))
    }

    fn with_roles(
        blocks: usize,
        links: Vec<Link>,
        roles: Vec<Role>,
        points: Vec<(Point, Spot)>,
        guessed: u128,
    ) -> Self {
        let tree = hang(2 * blocks + 1, &links, &roles);
        let counters = roles.iter().filter(|r| **r == Role::Counted).count();
        Self { blocks, links, roles, points, counters, guessed, tree }
    }

    /// The links that have counters, by their places among all, rising.
    #[must_use]
    pub fn counted(&self) -> Vec<u32> {
        (0u32..).zip(&self.roles).filter(|(_, r)| **r == Role::Counted).map(|(l, _)| l).collect()
    }

    /// How many counters there are.
    #[must_use]
    pub fn counters(&self) -> usize {
        self.counters
    }

    /// Where counters go, and how each counts there.
    #[must_use]
    pub fn points(&self) -> &[(Point, Spot)] {
        &self.points
    }

    /// How many counters more it would take to tell all counts, where none can be put.
    #[must_use]
    pub fn untold(&self) -> usize {
        self.roles.iter().filter(|r| matches!(r, Role::Open { .. })).count()
    }

    /// The counts of all blocks and edges. `values` are the counters', in the order of [`CounterPlan::points`];
    /// missing ones are 0 and make the counts inexact.
    #[must_use]
    pub fn solve(&self, values: &[u64]) -> Solved {
        let flows = self.flows(values);
        let open = self.untold() > 0;
        match flows.iter().map(|&f| u64::try_from(f)).collect::<Result<Vec<u64>, _>>() {
            Ok(whole) => Solved {
                counts: counts_of(self.blocks, &self.links, &whole),
                exact: !open && values.len() == self.counters,
            },
            Err(_) => {
                let price = |link: usize| {
                    let cost = match self.roles[link] {
                        Role::Counted => MISCOUNTED,
                        Role::Tree | Role::Open { .. } => 0,
                    };
                    Price { more: cost, less: cost }
                };
                Solved { counts: mend(self.blocks, &self.links, &flows, &price, UNSEEN), exact: false }
            }
        }
    }

    /// The flow of each link: conserved in every node, but perhaps negative or beyond 64 bits.
    fn flows(&self, values: &[u64]) -> Vec<i128> {
        let total: u128 = values.iter().map(|&v| u128::from(v)).sum();
        // What an open link carries if the counters' share in all that was guessed is its share, too.
        let share = |guess: u64| {
            let part = u128::from(guess).checked_mul(total).and_then(|x| x.checked_div(self.guessed));
            part.and_then(|p| u64::try_from(p).ok()).unwrap_or(0)
        };
        let mut values = values.iter().copied();
        let mut surplus = vec![0i128; 2 * self.blocks + 1];
        let mut flows = vec![0i128; self.links.len()];
        for ((link, role), flow) in self.links.iter().zip(&self.roles).zip(&mut flows) {
            *flow = match *role {
                Role::Counted => values.next().unwrap_or(0).into(),
                Role::Open { guess } => share(guess).into(),
                Role::Tree => 0,
            };
            surplus[link.to] += *flow;
            surplus[link.from] -= *flow;
        }
        // All links of a node but that on which it hangs are known by now.
        for &(node, l) in &self.tree {
            let link = &self.links[l];
            flows[l] = if link.from == node { surplus[node] } else { -surplus[node] };
            surplus[link.to] += flows[l];
            surplus[link.from] -= flows[l];
        }
        flows
    }
}

/// What a counter costs besides how often it runs: instructions, then code that must be put somewhere of its own. The
/// start of a block is the cheapest place; a taken edge needs a jump more.
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

/// Hangs every node of the tree on another, up to the world. Every node is in it, as each block is reached from there.
fn hang(nodes: usize, links: &[Link], roles: &[Role]) -> Vec<(usize, usize)> {
    let mut touching = vec![Vec::new(); nodes];
    for (l, link) in links.iter().enumerate().filter(|&(l, _)| roles[l] == Role::Tree) {
        touching[link.from].push(l);
        touching[link.to].push(l);
    }
    let mut hung = vec![false; nodes];
    hung[WORLD] = true;
    let mut tree = Vec::with_capacity(nodes);
    let mut queue = VecDeque::from([WORLD]);
    while let Some(node) = queue.pop_front() {
        for &l in &touching[node] {
            let other = links[l].from ^ links[l].to ^ node;
            if !std::mem::replace(&mut hung[other], true) {
                tree.push((other, l));
                queue.push_back(other);
            }
        }
    }
    tree.reverse();
    tree
}

/// Which nodes are joined.
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

    /// False where they were joined already.
    fn join(&mut self, a: usize, b: usize) -> bool {
        let (a, b) = (self.find(a), self.find(b));
        self.0[a] = b;
        a != b
    }
}

#[cfg(test)]
mod tests;
