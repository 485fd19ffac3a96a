//! The cost of a function order: how often calls and returns are expected to miss the instruction cache and
//! the instruction TLB.
//!
//! A unit (a line, a page) with the share p of all executions is absent from a cache of n entries with the
//! probability (1 - p)^n, as if the next unit were drawn at random. BOLT's cache metrics use this model.
//! Within one unit nothing is missed.

use crate::cache_sort::{cache_sort, number};
use crate::footprint::{LINE_BYTES, PAGE_BYTES};
use crate::function_order::{CallEdge, FuncNode, function_order};
use std::collections::BTreeMap;

/// A cache of code.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct CodeCache {
    /// Size of the code that one entry holds. Bytes.
    pub(crate) unit: u64,
    /// Its number of entries.
    pub(crate) entries: u16,
    /// The cost of a miss, in any unit.
    pub(crate) cost: f64,
}

/// The first-level caches of a common core: 32 KiB of code; 64 small pages, where a miss costs about twice as
/// much.
pub(crate) const CORE: [CodeCache; 2] = [
    CodeCache { unit: LINE_BYTES, entries: 512, cost: 1.0 },
    CodeCache { unit: PAGE_BYTES, entries: 64, cost: 2.0 },
];

/// The alignment of functions. Bytes.
const ALIGN: u64 = 16;

/// The method by which an order was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderBy {
    /// Call-chain clustering.
    CallChains,
    /// Cache-directed sort.
    CacheSort,
}

/// The better of two orders.
#[derive(Clone, PartialEq, Debug)]
pub struct BestOrder {
    /// The order.
    pub order: Vec<usize>,
    /// Its method.
    pub by: OrderBy,
    /// The cost of the order by call chains: expected misses, in executions times cost.
    pub call_chains: f64,
    /// The cost of the order by cache-directed sort.
    pub cache_sort: f64,
}

/// Orders functions by both methods and returns the order with the lower cost; call chains if the costs are
/// equal.
#[must_use]
pub fn best_function_order(functions: &[FuncNode], calls: &[CallEdge]) -> BestOrder {
    let (chains, sorted) = (function_order(functions, calls), cache_sort(functions, calls));
    let cost = |order: &[usize]| miss_cost(functions, calls, order, &CORE);
    let (call_chains, cache_sort) = (cost(&chains), cost(&sorted));
    let (order, by) = match cache_sort < call_chains {
        true => (sorted, OrderBy::CacheSort),
        false => (chains, OrderBy::CallChains),
    };
    BestOrder { order, by, call_chains, cache_sort }
}

/// Returns the expected cost of misses by calls and returns in this order of functions, in executions times
/// cost.
#[must_use]
pub(crate) fn miss_cost(
    functions: &[FuncNode],
    calls: &[CallEdge],
    order: &[usize],
    caches: &[CodeCache],
) -> f64 {
    let mut starts = vec![None; functions.len()];
    let mut at = 0u64;
    for &f in order {
        if let (Some(start), Some(node)) = (starts.get_mut(f), functions.get(f)) {
            *start = Some(at);
            at = at.saturating_add(node.size).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
        }
    }
    caches.iter().map(|cache| cache.cost * missed(functions, calls, &starts, cache)).sum()
}

fn missed(functions: &[FuncNode], calls: &[CallEdge], starts: &[Option<u64>], cache: &CodeCache) -> f64 {
    let unit = cache.unit.max(1);
    let place = |f: usize| starts.get(f).copied().flatten();
    // Only units with an end of a call are needed.
    let mut ends: BTreeMap<u64, f64> = BTreeMap::new();
    let sites: Vec<(u64, u64, f64)> = calls
        .iter()
        .filter_map(|c| {
            let from = place(c.caller)?.saturating_add(c.offset) / unit;
            Some((from, place(c.callee)? / unit, number(c.count)))
        })
        .filter(|(from, to, count)| from != to && *count > 0.0)
        .collect();
    for &(from, to, _) in &sites {
        ends.insert(from, 0.0);
        ends.insert(to, 0.0);
    }
    let mut total = 0.0;
    for (f, node) in functions.iter().enumerate().filter(|(_, node)| node.samples > 0 && node.size > 0) {
        let Some(start) = place(f) else { continue };
        total += number(node.samples);
        let last = start.saturating_add(node.size - 1);
        for (&u, share) in ends.range_mut(start / unit..=last / unit) {
            let begin = u.saturating_mul(unit);
            let bytes = last.min(begin.saturating_add(unit - 1)) - start.max(begin) + 1;
            *share += number(node.samples) * number(bytes) / number(node.size);
        }
    }
    let absent = |u: u64| {
        let share = ends.get(&u).map_or(0.0, |n| n / f64::max(total, 1.0));
        (1.0 - share).max(0.0).powi(cache.entries.into())
    };
    sites.iter().map(|&(from, to, count)| count * (absent(to) + absent(from))).sum()
}

#[cfg(test)]
mod tests;
