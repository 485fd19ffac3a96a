//! A function to be cloned, with all facts and decisions about it.

use crate::analyse::program::{Analysed, FuncId};
use addr::Avma;
use code::{BlockId, RedirectSites};
use emit::{Counter, Guard, Unroll, Watch};
use profile::Counts;

/// One function to be cloned.
#[derive(Debug)]
pub struct Candidate {
    /// Identifies the function.
    pub id: FuncId,
    /// Its analysed code.
    pub analysed: Analysed,
    /// Samples in it.
    pub samples: u64,
    /// Samples in each of its blocks; empty without samples.
    pub hits: Vec<u64>,
    /// How often its blocks and edges ran, up to a factor common to all functions.
    pub counts: Counts,
    /// True if the counts were counted, false if they were inferred.
    pub counted: bool,
    /// True if the counters determined all counts without contradiction, and all of the function ran in its
    /// clone.
    pub exact: bool,
    /// The blocks that are cloned, in their new order.
    pub order: Vec<BlockId>,
    /// How many blocks of `order` are hot; the others lie behind them.
    pub hot: usize,
    /// Counters in its clone.
    pub counters: Vec<Counter>,
    /// Registers whose values its clone records.
    pub watches: Vec<Watch>,
    /// Observed targets of its indirect calls and jumps.
    pub targets: Vec<SiteTargets>,
    /// The path through it that can be inlined for calls of it, if there is one.
    pub way: Option<Vec<BlockId>>,
    /// Its calls through redirects: a redirect that is in force at run time leads them. Indices into
    /// [`code::Cfg::insts`], ascending.
    pub through_redirects: Vec<u32>,
    /// Its calls that are inlined or guarded.
    pub inline_sites: Vec<InlineSite>,
    /// Loops that are unrolled in its clone.
    pub unrolls: Vec<Unroll>,
    /// Where redirects in its original lead to its clone.
    pub sites: RedirectSites,
}

/// The targets of an indirect call or jump.
#[derive(Clone, Debug)]
pub struct SiteTargets {
    /// The index of the call or jump in [`code::Cfg::insts`].
    pub inst: u32,
    /// The destinations with the number of observations, the most frequent first. Originals, never clones.
    pub callees: Vec<(Avma, u64)>,
    /// If its address comes from one register, the register's values; in the same form.
    pub bases: Vec<(Avma, u64)>,
    /// How many observations of both are not listed.
    pub others: Others,
}

/// Observations without a known value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Others {
    /// Destinations.
    pub callees: u64,
    /// Values of registers.
    pub bases: u64,
}

impl SiteTargets {
    /// Returns the destinations, each with its share of `count` executions, in whole thousandths.
    pub fn parts(&self, count: u64) -> impl Iterator<Item = (Avma, u64)> {
        let all: u128 =
            self.callees.iter().map(|s| u128::from(s.1)).sum::<u128>() + u128::from(self.others.callees);
        self.callees.iter().map(move |&(to, n)| {
            let share = (u128::from(n) * 1000).checked_div(all).unwrap_or(0);
            (to, u64::try_from(u128::from(count) * share / 1000).unwrap_or(u64::MAX))
        })
    }
}

impl Candidate {
    /// Creates a candidate of which only the samples are known.
    #[must_use]
    pub fn new(id: FuncId, analysed: Analysed, samples: u64) -> Self {
        Self {
            id,
            analysed,
            samples,
            hits: Vec::new(),
            counts: Counts::default(),
            counted: false,
            exact: false,
            order: Vec::new(),
            hot: 0,
            counters: Vec::new(),
            watches: Vec::new(),
            targets: Vec::new(),
            way: None,
            through_redirects: Vec::new(),
            inline_sites: Vec::new(),
            unrolls: Vec::new(),
            sites: RedirectSites::default(),
        }
    }

    /// Returns the blocks of the fragment where the clone is entered: the hot blocks, if there are any.
    #[must_use]
    pub fn first_fragment(&self) -> &[BlockId] {
        match self.hot {
            0 => &self.order,
            hot => self.order.get(..hot).unwrap_or(&self.order),
        }
    }
}

/// A call to replace, by (partial) inlining, by guarded devirtualization, or by both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InlineSite {
    /// The index of the call in [`code::Cfg::insts`].
    pub call: u32,
    /// The entry of the function that it calls.
    pub callee: Avma,
    /// True if the callee's path is inlined.
    pub inlined: bool,
    /// The condition that must hold.
    pub guard: Option<Guard>,
}
