//! A function to be cloned, with all that is known and decided of it.

use crate::analyse::program::{Analysed, FuncId};
use addr::Avma;
use code::{BlockId, RedirectSites};
use emit::{Counter, Guard, Unroll, Watch};
use profile::Counts;

/// One function to be cloned.
#[derive(Debug)]
pub struct Candidate {
    /// Which.
    pub id: FuncId,
    /// Its code.
    pub analysed: Analysed,
    /// Samples in it.
    pub samples: u64,
    /// Samples in each of its blocks; empty where there is none.
    pub hits: Vec<u64>,
    /// How often its blocks and edges ran, up to a factor common to all functions.
    pub counts: Counts,
    /// Whether they were counted, not inferred.
    pub counted: bool,
    /// Whether its counters determined all counts and contradicted nothing, and all of it ran in its clone.
    pub exact: bool,
    /// The blocks that are cloned, in their new order.
    pub order: Vec<BlockId>,
    /// How many of these lie among the hot code; all others lie behind it.
    pub hot: usize,
    /// Counters in its clone.
    pub counters: Vec<Counter>,
    /// What its clone keeps of registers.
    pub watches: Vec<Watch>,
    /// Where indirect calls and jumps of it led, as far as it was seen.
    pub targets: Vec<SiteTargets>,
    /// The way through it that can run in place of calls of it, if there is one.
    pub way: Option<Vec<BlockId>>,
    /// Calls of it that go by the redirect that is in force when they run, by their places in [`code::Cfg::insts`], rising.
    pub through_redirects: Vec<u32>,
    /// Calls of it that are made more direct.
    pub inline_sites: Vec<InlineSite>,
    /// Loops that lie in its clone several times.
    pub unrolls: Vec<Unroll>,
    /// Where control in its original is led to its clone.
    pub sites: RedirectSites,
}

/// Where an indirect call or jump led.
#[derive(Clone, Debug)]
pub struct SiteTargets {
    /// Which, by its place in [`code::Cfg::insts`].
    pub inst: u32,
    /// The destinations and how often each was seen, the most frequent first. Originals, never clones.
    pub callees: Vec<(Avma, u64)>,
    /// Where its address comes from one register, what that held; as above.
    pub bases: Vec<(Avma, u64)>,
    /// How often each of both was something that is not listed.
    pub others: Others,
}

/// What was seen and is not known any more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Others {
    /// Destinations.
    pub callees: u64,
    /// Contents of registers.
    pub bases: u64,
}

impl SiteTargets {
    /// The destinations, each with its part of what ran `count` times, in whole thousandths of that.
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
    /// One of which nothing but samples is known yet.
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

    /// The blocks that lie where the clone is entered: the hot ones, where there are any.
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
    /// The call, by its place in [`code::Cfg::insts`].
    pub call: u32,
    /// The entry of the function that it calls.
    pub callee: Avma,
    /// Whether its path is inlined.
    pub inlined: bool,
    /// What has to hold.
    pub guard: Option<Guard>,
}
