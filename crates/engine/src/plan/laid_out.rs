//! The phases of a function from its counts to all decisions about its clone: [`Ordered`], [`Linked`],
//! [`Inlined`], [`LaidOut`].
//!
//! A clone that counts has a layout and counters ([`Instrumented`]). A clone that stays has no counters.

use crate::plan::candidate::{Candidate, Counted, Measured};
use addr::Avma;
use code::{BlockId, InstId, RedirectSites};
use emit::{Counter, Guard, Unroll, Watch};
use std::ops::Deref;

/// The blocks of a clone in their order.
#[derive(Clone, Debug)]
pub struct BlockOrder {
    blocks: Vec<BlockId>,
    hot: usize,
}

/// A function with the order of its clone's blocks.
#[derive(Debug)]
pub struct Ordered {
    /// The function, and its counts.
    pub counted: Counted,
    /// The blocks that are cloned.
    pub order: BlockOrder,
}

/// The part of a layout that all kinds of clones have.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The blocks that are cloned.
    pub order: BlockOrder,
    /// Where redirects in the original lead to the clone.
    pub sites: RedirectSites,
    /// Its calls through redirects, ascending: a redirect that is in force at run time leads them.
    pub through_redirects: Vec<InstId>,
}

/// A function whose clone can be entered and left: by redirects, and by calls through them.
#[derive(Debug)]
pub struct Linked {
    /// The function, and its counts.
    pub counted: Counted,
    /// The layout of its clone.
    pub layout: Layout,
}

/// A function with the decisions about inlining.
#[derive(Debug)]
pub struct Inlined {
    /// The function, with the layout of its clone.
    pub linked: Linked,
    /// The path through it that can be inlined for calls of it, if there is one.
    pub way: Option<Vec<BlockId>>,
    /// Its calls that are inlined or guarded.
    pub inline_sites: Vec<InlineSite>,
}

/// A function with all decisions about its clone.
#[derive(Debug)]
pub struct LaidOut {
    /// The function, with the layout of its clone and the decisions about inlining.
    pub inlined: Inlined,
    /// Loops that are unrolled in its clone.
    pub unrolls: Vec<Unroll>,
}

/// A function with all decisions about a clone that counts.
#[derive(Debug)]
pub struct Instrumented<'a> {
    /// The function, with the counts that are known before.
    pub measured: &'a Measured,
    /// The layout of its clone.
    pub layout: Layout,
    /// Counters in its clone.
    pub counters: Vec<Counter>,
    /// Registers whose values its clone records.
    pub watches: Vec<Watch>,
}

/// A function with all decisions about a clone of either kind.
#[derive(Clone, Copy, Debug)]
pub enum ToClone<'a> {
    /// The clone runs from now on.
    ToRun(&'a LaidOut),
    /// The clone counts for a moment.
    ToCount(&'a Instrumented<'a>),
}

/// A call to replace, by (partial) inlining, by guarded devirtualization, or by both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InlineSite {
    /// The call.
    pub call: InstId,
    /// The entry of the function that it calls.
    pub callee: Avma,
    /// True if the callee's path is inlined.
    pub inlined: bool,
    /// The condition that must hold.
    pub guard: Option<Guard>,
}

impl BlockOrder {
    /// Creates an order. The first `hot` blocks, or all if there are fewer, are hot; the others lie behind
    /// the hot blocks of all functions.
    #[must_use]
    pub fn new(blocks: Vec<BlockId>, hot: usize) -> Self {
        Self { hot: hot.min(blocks.len()), blocks }
    }

    /// Returns all blocks.
    #[must_use]
    pub fn all(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Returns the hot blocks.
    #[must_use]
    pub fn hot(&self) -> &[BlockId] {
        self.blocks.get(..self.hot).unwrap_or_default()
    }

    /// Returns the blocks that are not hot.
    #[must_use]
    pub fn warm(&self) -> &[BlockId] {
        self.blocks.get(self.hot..).unwrap_or_default()
    }

    /// Returns the blocks of the fragment where the clone is entered: the hot blocks, if there are any.
    #[must_use]
    pub fn first_fragment(&self) -> &[BlockId] {
        if self.hot == 0 { &self.blocks } else { self.hot() }
    }
}

impl<'a> ToClone<'a> {
    /// Returns the function, and its counts.
    #[must_use]
    pub fn measured(self) -> &'a Measured {
        match self {
            Self::ToRun(c) => c,
            Self::ToCount(c) => c.measured,
        }
    }

    /// Returns the layout of its clone.
    #[must_use]
    pub fn layout(self) -> &'a Layout {
        match self {
            Self::ToRun(c) => &c.layout,
            Self::ToCount(c) => &c.layout,
        }
    }
}

impl AsRef<Candidate> for LaidOut {
    fn as_ref(&self) -> &Candidate {
        self
    }
}

impl Deref for Ordered {
    type Target = Counted;

    fn deref(&self) -> &Counted {
        &self.counted
    }
}

impl Deref for Linked {
    type Target = Counted;

    fn deref(&self) -> &Counted {
        &self.counted
    }
}

impl Deref for Inlined {
    type Target = Linked;

    fn deref(&self) -> &Linked {
        &self.linked
    }
}

impl Deref for LaidOut {
    type Target = Inlined;

    fn deref(&self) -> &Inlined {
        &self.inlined
    }
}
