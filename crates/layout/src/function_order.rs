//! Function order by call-chain clustering.
//!
//! C3 of Ottoni and Maher, "Optimizing Function Placement for Large-Scale Data-Center Applications" (CGO
//! 2017). Each function, hottest first, is placed directly behind its most frequent caller, unless the
//! cluster would grow past a page or become much colder per byte. Clusters are then laid out by samples per
//! byte. So a caller and its callee are mostly on one page, and the hottest pages are adjacent.

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FuncNode {
    /// Size of its laid-out code. Bytes.
    pub size: u64,
    /// Its weight: samples, or executed instructions. On one scale for all functions.
    pub samples: u64,
}

/// Calls (or tail calls) from one function to another. Parallel edges add up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallEdge {
    /// Index of the calling function.
    pub caller: usize,
    /// Index of the called function.
    pub callee: usize,
    /// Execution count.
    pub count: u64,
    /// The offset of the call in the caller. Bytes.
    pub offset: u64,
}

/// The bounds of clustering. The defaults are the paper's for huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OrderOptions {
    /// The largest size of a cluster: the page that its code should share. Bytes.
    pub(crate) page: u64,
    /// The largest factor by which a cluster's samples per byte may fall when it absorbs a function.
    pub(crate) dilution: u64,
}

impl Default for OrderOptions {
    fn default() -> Self {
        Self { page: 2 << 20, dilution: 8 }
    }
}

/// Calls [`function_order_with`] with the default options.
#[must_use]
pub(crate) fn function_order(functions: &[FuncNode], calls: &[CallEdge]) -> Vec<usize> {
    function_order_with(functions, calls, OrderOptions::default())
}

/// Returns an order of all functions. Functions without samples come last, in their old order. Calls with an
/// invalid index are ignored.
#[must_use]
pub(crate) fn function_order_with(
    functions: &[FuncNode],
    calls: &[CallEdge],
    options: OrderOptions,
) -> Vec<usize> {
    let callers = hottest_callers(functions, calls);
    let mut clusters: Vec<Cluster> = functions
        .iter()
        .enumerate()
        .map(|(f, node)| Cluster {
            functions: vec![f],
            size: node.size.max(1).into(),
            samples: node.samples.into(),
        })
        .collect();
    let mut cluster_of: Vec<usize> = (0..functions.len()).collect();

    for f in by_heat(functions, &callers) {
        let Some((_, caller)) = callers[f] else { continue };
        let (into, from) = (cluster_of[caller], cluster_of[f]);
        // Only this step moves `f`, so `f` is the head of its cluster. If its caller is in that cluster, the
        // calls form a cycle.
        if into == from || functions[f].samples == 0 || !fits(&clusters[into], &clusters[from], options) {
            continue;
        }
        let taken = std::mem::take(&mut clusters[from]);
        for &g in &taken.functions {
            cluster_of[g] = into;
        }
        let cluster = &mut clusters[into];
        cluster.functions.extend(taken.functions);
        cluster.size += taken.size;
        cluster.samples += taken.samples;
    }

    clusters.retain(|c| !c.functions.is_empty());
    clusters.sort_by(Cluster::denser_first);
    clusters.into_iter().flat_map(|c| c.functions).collect()
}

#[derive(Clone, Debug, Default)]
struct Cluster {
    functions: Vec<usize>,
    size: u128,
    samples: u128,
}

impl Cluster {
    /// Compares by samples per byte, falling; ties by the first function.
    fn denser_first(a: &Self, b: &Self) -> std::cmp::Ordering {
        let (left, right) = (a.samples.saturating_mul(b.size), b.samples.saturating_mul(a.size));
        right.cmp(&left).then_with(|| a.functions.cmp(&b.functions))
    }
}

/// Returns whether `into` may absorb `from`.
fn fits(into: &Cluster, from: &Cluster, options: OrderOptions) -> bool {
    let size = into.size + from.size;
    let samples = into.samples + from.samples;
    // samples / size >= into.samples / into.size / dilution, without fractions.
    let diluted = samples.saturating_mul(into.size).saturating_mul(options.dilution.max(1).into())
        < into.samples.saturating_mul(size);
    size <= options.page.into() && !diluted
}

/// Returns functions by samples per byte, falling; ties by the hottest caller's count, then by index.
fn by_heat(functions: &[FuncNode], callers: &[Option<(u64, usize)>]) -> Vec<usize> {
    let called = |f: usize| callers[f].map_or(0, |(count, _)| count);
    let mut order: Vec<usize> = (0..functions.len()).collect();
    order.sort_by(|&a, &b| {
        let (fa, fb) = (&functions[a], &functions[b]);
        let left = u128::from(fa.samples) * u128::from(fb.size.max(1));
        let right = u128::from(fb.samples) * u128::from(fa.size.max(1));
        right.cmp(&left).then_with(|| called(b).cmp(&called(a))).then(a.cmp(&b))
    });
    order
}

/// Returns for each function its most frequent caller, other than itself, and the call count; ties by index.
fn hottest_callers(functions: &[FuncNode], calls: &[CallEdge]) -> Vec<Option<(u64, usize)>> {
    let n = functions.len();
    let mut arcs: Vec<(usize, usize, u64)> = calls
        .iter()
        .filter(|c| c.caller < n && c.callee < n && c.caller != c.callee && c.count > 0)
        .map(|c| (c.callee, c.caller, c.count))
        .collect();
    arcs.sort_unstable_by_key(|a| (a.0, a.1));
    let mut best: Vec<Option<(u64, usize)>> = vec![None; n];
    for group in arcs.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let (callee, caller, _) = group[0];
        let count = group.iter().fold(0u64, |sum, a| sum.saturating_add(a.2));
        if best[callee].is_none_or(|(most, _)| count > most) {
            best[callee] = Some((count, caller));
        }
    }
    best
}

#[cfg(test)]
mod tests;
