//! Puts counters and watches into the clones of one round.

use crate::analyse::program::{FuncId, Program};
use crate::base::passes::Style;
use crate::build::round::FunctionPlan;
use crate::plan::block_order;
use crate::plan::candidate::Measured;
use crate::plan::laid_out::{BlockOrder, Instrumented, Layout};
use crate::plan::shuffle::Rng;
use crate::plan::targets::{self, Site};
use crate::plan::{sites, through_redirects};
use addr::AvmaRange;
use code::{BlockId, Cfg, Liveness, TableId, Term};
use emit::Counter;
use profile::{CounterPlan, Counts};
use rustc_hash::FxHashSet;

/// Bytes of a counter.
pub(crate) const COUNTER: u32 = 8;

/// How one function is counted in a round.
pub(crate) struct Own<'a> {
    /// The function, with the counts that are known before the round.
    pub(crate) function: &'a Measured,
    pub(crate) plan: CounterPlan,
    /// The offset of its first counter.
    pub(crate) first: u32,
    /// The offset of its first recorded register.
    pub(crate) watched: u32,
    /// Its watched indirect calls.
    pub(crate) sites: Vec<Site>,
    /// True if the counters cover all of its executions.
    pub(crate) whole: bool,
}

impl Own<'_> {
    /// Returns the same as a later round needs it.
    pub(crate) fn stored(&self) -> FunctionPlan {
        let cfg = &self.function.analysed.cfg;
        let &Self { first, watched, whole, .. } = self;
        let links = self.plan.counted();
        FunctionPlan { entry: cfg.entry, hash: profile::hash(cfg), first, watched, whole, links }
    }
}

/// A function with counters in its clone, and without watches yet.
struct WithCounters<'a> {
    function: &'a Measured,
    layout: Layout,
    plan: CounterPlan,
    counters: Vec<Counter>,
    first: u32,
    whole: bool,
}

/// The clones of a round.
pub(crate) struct Instruments<'a> {
    /// Each clone, and how it counts its function.
    pub(crate) clones: Vec<(Instrumented<'a>, Own<'a>)>,
    /// The offset of the first recorded register.
    pub(crate) watched: u32,
    /// The end of all offsets.
    pub(crate) end: u32,
}

/// The input of a round in new clones.
pub(crate) struct ToInstrument<'a> {
    pub(crate) functions: &'a [Measured],
    /// The functions of earlier rounds.
    pub(crate) callers: &'a [Measured],
    /// Samples in all functions.
    pub(crate) samples: u64,
    /// The first offset of a counter.
    pub(crate) from: u32,
    /// With a random layout, the blocks of the clones are in random order.
    pub(crate) style: Style,
}

/// Instruments whole functions.
pub(crate) fn instrument<'a>(program: &Program<'_>, round: &ToInstrument<'a>) -> Instruments<'a> {
    let &ToInstrument { functions, callers, samples, from, style } = round;
    let met: FxHashSet<FuncId> = functions.iter().chain(callers).map(|c| c.id).collect();
    // Use other orders than the clones that are installed after counting.
    let mut rng = style.shuffle.map(|seed| Rng::new(seed ^ 0xc0));
    let mut end = from;
    let with_counters = |function: &'a Measured| {
        let order = order(function, rng.as_mut());
        let through_redirects = through_redirects::while_it_counts(function, samples);
        let only_called = is_only_called(program, function.id, &met);
        // Redirects lead into the middle of a clone, so executions before a redirect are counted behind it.
        let sites = sites::countable(program, function.id, &function.analysed.cfg, only_called);
        let layout = Layout { order, sites, through_redirects };
        add_counters(function, layout, only_called, &mut end)
    };
    let with_counters: Vec<WithCounters<'a>> = functions.iter().map(with_counters).collect();
    let watched = end;
    let add_watches = |f: WithCounters<'a>| {
        let WithCounters { function, layout, plan, counters, first, whole } = f;
        let watched = end;
        let sites = targets::sites(&function.analysed.cfg, &mut end);
        let watches = sites.iter().flat_map(targets::watches).collect();
        let clone = Instrumented { measured: function, layout, counters, watches };
        (clone, Own { function, plan, first, watched, sites, whole })
    };
    let clones = with_counters.into_iter().map(add_watches).collect();
    Instruments { clones, watched, end }
}

/// Orders all blocks of a function. Blocks that ran, as far as is known, come first.
fn order(function: &Measured, rng: Option<&mut Rng>) -> BlockOrder {
    let (mut blocks, hot) = block_order::all_blocks(&function.analysed.cfg, &function.counts);
    if let Some((rng, rest)) = rng.zip(blocks.get_mut(1..)) {
        rng.shuffle(rest);
    }
    BlockOrder::new(blocks, hot)
}

/// Gives a function its counters. Their offsets begin at `end`, which is advanced.
fn add_counters<'a>(
    function: &'a Measured,
    layout: Layout,
    only_called: bool,
    end: &mut u32,
) -> WithCounters<'a> {
    let cfg = &function.analysed.cfg;
    let first = *end;
    let liveness = Liveness::compute(cfg);
    let countable = |point| layout.sites.countable(point, cfg, &liveness);
    let plan = if leaves(cfg).is_empty() {
        CounterPlan::new(cfg, &function.counts, &countable)
    } else {
        CounterPlan::new(&counted_part(cfg), &Counts::default(), &countable)
    };
    let counter = |&(at, spot)| {
        *end += COUNTER;
        Counter { at, spot, offset: *end - COUNTER }
    };
    let counters = plan.points().iter().map(counter).collect();
    let whole = only_called || layout.sites.complete;
    WithCounters { function, layout, plan, counters, first, whole }
}

/// Returns the graph that is counted. Control flow ends at blocks that leave a clone for good.
pub(crate) fn counted_part(cfg: &Cfg) -> Cfg {
    let mut left = cfg.clone();
    leaves(cfg).iter().for_each(|b| left.blocks[b.index()].term = Term::Indirect);
    left
}

/// Returns whether only direct calls in the functions of `met` enter a function, as far as its module shows.
/// Such calls are redirected; direct jumps from other functions are not.
fn is_only_called(program: &Program<'_>, id: FuncId, met: &FxHashSet<FuncId>) -> bool {
    let (module, entry) = (program.module(id), program.extent(id).entry);
    let here = AvmaRange::with_len(entry, 1);
    // Words of data count too: a module that is linked to fixed addresses has no relocations for them.
    let by_address = module.branches.taken_in(here).len() > 0
        || !module.held_in(here).is_empty()
        || !module.in_data_in(here).is_empty();
    let is_met = |from| program.find(from).is_some_and(|f| met.contains(&f));
    !by_address
        && module.branches.calls_to(entry).all(is_met)
        && module.branches.jumps_into(here).all(|(from, _)| program.find(from) == Some(id))
}

/// Returns the blocks that leave a clone for good: they jump into the original through a table that cannot be
/// cloned. The counts behind them are only those of executions in clones.
pub(crate) fn leaves(cfg: &Cfg) -> Vec<BlockId> {
    let through_original = |t: TableId| cfg.tables.get(t.index()).is_none_or(|t| t.cloneable.is_none());
    cfg.block_ids()
        .zip(&cfg.blocks)
        .filter(|(_, b)| matches!(b.term, Term::Switch { table } if through_original(table)))
        .map(|(id, _)| id)
        .collect()
}
