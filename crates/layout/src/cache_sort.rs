//! Function order for shared cache lines and pages.
//!
//! Cache-directed sort, as in LLVM's `CodeLayout` (Newell, Pupyrev and others). Chains of functions are
//! joined, the pair of the greatest gain first, and laid out by executions per byte. A join has two gains.
//! First, calls become shorter: each is worth its count over a small power of its distance. Second, two
//! chains may use the cache better together. The model: a cache has n entries, and each entry holds a page at
//! random. A chain that fills a page is found with the probability that at least one of the n entries holds
//! it.

use crate::function_order::{CallEdge, FuncNode};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// The cache for which chains compete. LLVM's numbers, tuned on large servers.
const ENTRIES: i32 = 16;
const ENTRY_BYTES: f64 = 2048.0;
/// The weight of the cache's part of a gain, relative to the calls' part.
const CACHE_SHARE: f64 = 0.25;
/// A call over d bytes is worth d to the power of minus this.
const DISTANCE_POWER: f64 = 0.25;
/// The most functions of a chain.
const MOST: usize = 128;

/// Returns an order of all functions. Functions that did not run and have no calls in either direction come
/// last, in their old order. Calls with an invalid index are ignored.
#[must_use]
pub(crate) fn cache_sort(functions: &[FuncNode], calls: &[CallEdge]) -> Vec<usize> {
    let mut sorter = Sorter::new(functions, calls);
    sorter.run();
    sorter.order()
}

#[derive(Clone, Copy, Debug)]
struct Call {
    from: usize,
    to: usize,
    offset: f64,
    count: f64,
}

impl Call {
    /// Returns its worth if the caller begins at `from` and the callee at `to`.
    fn worth(&self, from: f64, to: f64) -> f64 {
        let distance = (from + self.offset - to).abs().max(0.1);
        self.count * distance.powf(-DISTANCE_POWER)
    }
}

#[derive(Clone, Debug, Default)]
struct Chain {
    /// Empty once it has been joined to another.
    functions: Vec<usize>,
    size: f64,
    count: f64,
    /// Calls to and from each other chain.
    across: BTreeMap<usize, Vec<usize>>,
    version: u32,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Candidate {
    gain: f64,
    first: usize,
    second: usize,
    versions: (u32, u32),
}

impl Eq for Candidate {}

impl Ord for Candidate {
    /// Breaks ties by place, so that nothing depends on the heap.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let place = |c: &Self| Reverse((c.first, c.second, c.versions));
        self.gain.total_cmp(&other.gain).then_with(|| place(self).cmp(&place(other)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Where a function lies.
#[derive(Debug)]
struct Place {
    chain: usize,
    /// The position of its first byte, from its chain's start.
    offset: f64,
}

#[derive(Debug)]
struct Sorter {
    calls: Vec<Call>,
    chains: Vec<Chain>,
    /// By function.
    places: Vec<Place>,
    total: f64,
    heap: BinaryHeap<Candidate>,
}

impl Sorter {
    fn new(functions: &[FuncNode], calls: &[CallEdge]) -> Self {
        let n = functions.len();
        let mut chains: Vec<Chain> = functions
            .iter()
            .enumerate()
            .map(|(f, node)| Chain {
                functions: vec![f],
                size: number(node.size.max(1)),
                count: number(node.samples),
                ..Chain::default()
            })
            .collect();
        let mut known = Vec::new();
        let named = calls.iter().filter(|c| c.caller < n && c.callee < n && c.caller != c.callee);
        for c in named.filter(|c| c.count > 0) {
            let (from, to) = (c.caller, c.callee);
            chains[from].across.entry(to).or_default().push(known.len());
            chains[to].across.entry(from).or_default().push(known.len());
            let offset = number(c.offset.min(functions[from].size));
            known.push(Call { from, to, offset, count: number(c.count) });
        }
        let total = chains.iter().map(|c| c.count).sum();
        Self {
            calls: known,
            chains,
            places: (0..n).map(|chain| Place { chain, offset: 0.0 }).collect(),
            total,
            heap: BinaryHeap::new(),
        }
    }

    fn run(&mut self) {
        for a in 0..self.chains.len() {
            let others: Vec<usize> = self.chains[a].across.range(a + 1..).map(|(&b, _)| b).collect();
            for b in others {
                self.offer(a, b);
            }
        }
        while let Some(best) = self.heap.pop() {
            let (a, b) = (best.first, best.second);
            if best.versions == (self.chains[a].version, self.chains[b].version) {
                self.join(a, b);
            }
        }
    }

    /// Puts the better way to join two chains on the heap, if it has a gain.
    fn offer(&mut self, a: usize, b: usize) {
        let (x, y) = (&self.chains[a], &self.chains[b]);
        if x.functions.len() + y.functions.len() > MOST {
            return;
        }
        let cache = self.cache_gain(x, y);
        let across = x.across.get(&b).map_or(&[][..], Vec::as_slice);
        let gain = |first: usize, second: usize| {
            let behind = self.chains[first].size;
            let at = |f: usize| {
                let place = &self.places[f];
                place.offset + if place.chain == second { behind } else { 0.0 }
            };
            let calls: f64 =
                across.iter().map(|&c| &self.calls[c]).map(|c| c.worth(at(c.from), at(c.to))).sum();
            // Short chains come first: they get their gain for few bytes.
            (calls + CACHE_SHARE * cache) / x.size.min(y.size)
        };
        let (forward, backward) = (gain(a, b), gain(b, a));
        let (gain, first, second) = if backward > forward { (backward, b, a) } else { (forward, a, b) };
        if gain > 0.0 {
            let versions = (self.chains[first].version, self.chains[second].version);
            self.heap.push(Candidate { gain, first, second, versions });
        }
    }

    /// Returns by how many executions the expected cache misses fall when two chains are joined.
    fn cache_gain(&self, x: &Chain, y: &Chain) -> f64 {
        let missed = |count: f64, size: f64| {
            let held = count / size * ENTRY_BYTES / self.total.max(1.0);
            if held >= 1.0 { 0.0 } else { count * (1.0 - held).powi(ENTRIES) }
        };
        missed(x.count, x.size) + missed(y.count, y.size) - missed(x.count + y.count, x.size + y.size)
    }

    /// Appends the second chain to the first.
    fn join(&mut self, first: usize, second: usize) {
        let gone = std::mem::take(&mut self.chains[second]);
        self.chains[second].version = gone.version + 1;
        let behind = self.chains[first].size;
        for &f in &gone.functions {
            let place = &mut self.places[f];
            place.chain = first;
            place.offset += behind;
        }
        let chain = &mut self.chains[first];
        chain.functions.extend(gone.functions);
        chain.size += gone.size;
        chain.count += gone.count;
        chain.version += 1;
        chain.across.remove(&second);
        for (other, calls) in gone.across {
            if other != first {
                self.chains[first].across.entry(other).or_default().extend(&calls);
                let theirs = &mut self.chains[other].across;
                theirs.remove(&second);
                theirs.entry(first).or_default().extend(calls);
            }
        }
        let others: BTreeSet<usize> = self.chains[first].across.keys().copied().collect();
        for other in others {
            self.offer(first, other);
        }
    }

    /// Returns the chains by executions per byte.
    fn order(&self) -> Vec<usize> {
        let mut left: Vec<&Chain> = self.chains.iter().filter(|c| !c.functions.is_empty()).collect();
        // Chains are in order of their first function, so the stable sort makes ties deterministic.
        left.sort_by(|a, b| (b.count / b.size).total_cmp(&(a.count / a.size)));
        left.iter().flat_map(|c| &c.functions).copied().collect()
    }
}

/// Converts counts and sizes to numbers of a gain, which need not be exact.
#[expect(clippy::cast_precision_loss, reason = "see above")]
pub(crate) fn number(n: u64) -> f64 {
    n as f64
}
