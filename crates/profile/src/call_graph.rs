//! The graph of calls between functions, with the number of each call, and call stacks that are estimated from
//! it for samples without stacks.
//!
//! Samples of a profile name a function and no callers. The counts of calls are exact: they give the callers
//! of a function, and how often each calls it. The samples of a function are divided among its callers in
//! this proportion, then further among the callers of these. This assumes, as `gprof` does, that a call costs
//! the same from every caller. The number of samples of each function stays exact; the division is an
//! estimate.

use crate::{BuildId, FunctionKey, FunctionProfile, ModuleProfile, Origin, Place, Profile};
use addr::Svma;
use std::collections::{BTreeMap, HashMap};

/// The most frames of a stack.
const DEEPEST: usize = 64;
/// Samples are divided into parts of at least this share of all samples: one in so many.
const FINEST: u64 = 20_000;

/// A function of the graph.
#[derive(Clone, Debug)]
pub struct CallNode<'a> {
    /// Its module.
    pub build_id: &'a BuildId,
    /// The profile of its module.
    pub module: &'a ModuleProfile,
    /// Its key in the module.
    pub key: FunctionKey,
    /// Its profile.
    pub function: &'a FunctionProfile,
    /// Its callers with the numbers of their calls, by index of the caller.
    callers: Vec<(usize, u64)>,
    /// How often it was entered from a place that the profile does not name.
    elsewhere: u64,
}

/// Calls between the functions of a profile.
#[derive(Clone, Debug)]
pub struct CallGraph<'a> {
    nodes: Vec<CallNode<'a>>,
}

/// A call: the instruction in the caller, the callee, and the number of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallCount {
    /// Index of the caller.
    pub caller: usize,
    /// The offset of the instruction from the caller's entry.
    pub at: i64,
    /// Index of the callee.
    pub callee: usize,
    /// The number of calls. For indirect calls it follows from the share of observations.
    pub count: u64,
}

/// Functions of a stack from the outermost to the innermost, and its samples.
pub type EstimatedStack = (Vec<usize>, u64);

impl<'a> CallGraph<'a> {
    /// Returns the graph of all calls between functions whose counts have one unit: functions that were
    /// counted, or all functions if none was. The others have no callers.
    #[must_use]
    pub fn of(profile: &'a Profile) -> Self {
        let nodes: Vec<CallNode<'a>> = profile
            .modules
            .iter()
            .flat_map(|(build_id, module)| {
                module.functions.iter().map(move |(&key, function)| CallNode {
                    build_id,
                    module,
                    key,
                    function,
                    callers: Vec::new(),
                    elsewhere: 0,
                })
            })
            .collect();
        let mut graph = Self { nodes };
        let unit = graph.unit();
        let mut into: Vec<BTreeMap<usize, u64>> = vec![BTreeMap::new(); graph.nodes.len()];
        for call in graph.calls() {
            if graph.is_of(unit, call.caller)
                && graph.is_of(unit, call.callee)
                && let Some(callers) = into.get_mut(call.callee)
            {
                let sum = callers.entry(call.caller).or_default();
                *sum = sum.saturating_add(call.count);
            }
        }
        for (n, callers) in graph.nodes.iter_mut().zip(into) {
            n.elsewhere = n.function.entered.saturating_sub(sum(callers.values().copied()));
            n.callers = callers.into_iter().collect();
        }
        graph
    }

    /// Returns the functions.
    #[must_use]
    pub fn nodes(&self) -> &[CallNode<'a>] {
        &self.nodes
    }

    /// Returns whether a function's counts have the unit of this graph.
    #[must_use]
    pub fn has_counts(&self, node: usize) -> bool {
        self.is_of(self.unit(), node)
    }

    /// Returns the number of functions whose callers are not known, because their counts are estimated.
    #[must_use]
    pub fn without_callers(&self) -> usize {
        (0..self.nodes.len()).filter(|&i| !self.has_counts(i)).count()
    }

    /// Returns all calls that ran, in a fixed order. Callees that the profile does not have are left out.
    #[must_use]
    pub fn calls(&self) -> Vec<CallCount> {
        let mut index: HashMap<(&BuildId, Svma), usize> = HashMap::new();
        for (i, n) in self.nodes.iter().enumerate() {
            // Of several graphs at one address the heaviest is meant.
            let best = index.entry((n.build_id, n.key.at)).or_insert(i);
            if self.nodes.get(*best).is_none_or(|b| b.function.weight() < n.function.weight()) {
                *best = i;
            }
        }
        let mut out = Vec::new();
        for (caller, n) in self.nodes.iter().enumerate() {
            let find = |p: &Place| index.get(&(p.module.as_ref().unwrap_or(n.build_id), p.at)).copied();
            let mut add = |at: i64, place: &Place, count: u64| {
                if let Some(callee) = find(place).filter(|_| count > 0) {
                    out.push(CallCount { caller, at, callee, count });
                }
            };
            for ((at, place), &count) in &n.function.calls {
                add(*at, place, count);
            }
            for (&at, site) in &n.function.sites {
                site.called(n.function.count_at(at)).for_each(|(place, count)| add(at, place, count));
            }
        }
        out
    }

    /// Estimates the stacks of samples, given by function. The sum of samples over the stacks that end in a
    /// function is the number that was given. Recursion is left out: a function is in a stack once.
    #[must_use]
    pub fn stacks(&self, samples: &[u64]) -> Vec<EstimatedStack> {
        let mut out = Vec::new();
        // A sum that saturates would make the parts too small, and the stacks too many.
        let all: u128 = samples.iter().map(|&n| u128::from(n)).sum();
        let least = u64::try_from(all / u128::from(FINEST)).unwrap_or(u64::MAX).max(1);
        for (f, &n) in samples.iter().enumerate().take(self.nodes.len()) {
            let mut stack = vec![f];
            self.climb(&mut stack, n, least, &mut out);
        }
        out.sort();
        out
    }

    /// Divides samples of a stack, given from the innermost function, among the callers of the outermost.
    /// A part of less than `least` goes to the largest part, so that the number of stacks is limited.
    fn climb(&self, stack: &mut Vec<usize>, n: u64, least: u64, out: &mut Vec<EstimatedStack>) {
        let Some(&top) = stack.last().filter(|_| n > 0) else { return };
        let Some(CallNode { callers, elsewhere, .. }) = self.nodes.get(top) else { return };
        let others: Vec<(usize, u64)> =
            callers.iter().copied().filter(|(c, _)| stack.len() < DEEPEST && !stack.contains(c)).collect();
        // A function that only functions of this stack call was entered before it was counted.
        let begins = if others.is_empty() { (*elsewhere).max(1) } else { *elsewhere };
        let parts: Vec<u64> = others.iter().map(|o| o.1).chain([begins]).collect();
        let mut shares = divide(n, &parts);
        let largest = (0..shares.len()).max_by_key(|&i| (shares[i], std::cmp::Reverse(i))).unwrap_or(0);
        for i in (0..shares.len()).filter(|&i| i != largest) {
            if shares[i] < least {
                shares[largest] = shares[largest].saturating_add(std::mem::take(&mut shares[i]));
            }
        }
        let mut shares = shares.into_iter();
        for ((caller, _), share) in others.iter().zip(shares.by_ref()) {
            stack.push(*caller);
            self.climb(stack, share, least, out);
            stack.pop();
        }
        if let Some(share) = shares.next().filter(|&s| s > 0) {
            out.push((stack.iter().rev().copied().collect(), share));
        }
    }

    fn unit(&self) -> bool {
        self.nodes.iter().any(|n| n.function.origin == Origin::Counted)
    }

    fn is_of(&self, counted: bool, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|n| (n.function.origin == Origin::Counted) == counted)
    }
}

fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// Divides `n` in proportion to `parts`, of which one is not 0, in whole numbers whose sum is `n`. The units
/// left after rounding down go to the largest remainders.
fn divide(n: u64, parts: &[u64]) -> Vec<u64> {
    let all: u128 = parts.iter().map(|&p| u128::from(p)).sum::<u128>().max(1);
    let exact = |p: u64| u128::from(n) * u128::from(p);
    let mut out: Vec<u64> = parts.iter().map(|&p| u64::try_from(exact(p) / all).unwrap_or(n)).collect();
    let mut rest: Vec<usize> = (0..parts.len()).collect();
    rest.sort_by_key(|&i| (std::cmp::Reverse(exact(parts[i]) % all), i));
    let left = n.saturating_sub(sum(out.iter().copied()));
    for i in rest.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        out[i] = out[i].saturating_add(1);
    }
    out
}

#[cfg(test)]
#[path = "call_graph_tests.rs"]
mod tests;
