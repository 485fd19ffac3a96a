//! Finds the instructions of an original that can carry a redirect to the clone.
//!
//! INVARIANT(first byte): no byte at which an instruction of the original begins ever changes. A redirect
//! changes only later bytes of one instruction, so:
//! - a jump to any instruction of the original is right, even if no analysis of the file can find the jump;
//! - a redirect never touches the byte that a probe or a breakpoint replaces, the first byte of an
//!   instruction: each can be set and removed without harm to the other. For a uprobe, the kernel executes a
//!   copy of the *file's* instruction (Linux, `kernel/events/uprobes.c`), so a probed site runs the original;
//! - no thread can be about to execute the middle of a redirect.
//!
//! Two kinds of instruction can be changed in this way:
//! - an instruction with room for the rest of a jump behind its first byte ([`SiteForm::behind`]). The first
//!   byte is a prefix without effect on jumps, or the opcode of indirect jumps;
//! - a direct jump, conditional or not, with a 32-bit displacement. Only the displacement changes, so the
//!   redirect leads to the clone of the jump's destination.
//!
//! Clones stand for originals instruction by instruction, so a clone can be entered at any instruction. The
//! search follows control from the entry and picks the first instruction on each path that can carry a
//! redirect. A path without such an instruction is still right: it runs in the original.

use crate::liveness::Liveness;
use crate::{BlockId, Cfg, Dest, InstId, Point, Spot, Term};
use addr::{Addr, AvmaRange};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

/// The most redirects of one function.
const MOST_SITES: usize = 8;
/// The most blocks that are searched in one function.
const MOST_BLOCKS: usize = 64;

/// The way in which an instruction carries a redirect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SiteForm {
    /// A `jmp rel32` lies behind the first byte, a prefix without effect on such a jump.
    Jump,
    /// A `jmp rel32` with a REX.W prefix lies behind the first byte, an operand-size prefix that REX.W
    /// overrides.
    WideJump,
    /// The first byte is the opcode ff, and the rest of a `jmp *word(%rip)` lies behind it. The word is in
    /// the code cache and holds the destination.
    IndirectJump,
    /// The instruction is a direct jump, and its displacement changes.
    Displacement,
}

impl SiteForm {
    /// Returns the form of a jump behind the first byte of an instruction; `None` if no jump begins with that
    /// byte. The opcode ff begins indirect jumps. They need no `endbr64` at their destination: Linux does not
    /// track indirect branches of programs. The prefixes, and why they have no effect on a direct jump:
    /// - REX (40 to 4f): a near jump has the operand size of REX.W anyway, and no operand that REX.R, X and B
    ///   extend (Intel SDM volume 2, `JMP`; AMD APM volume 3, `JMP (Near)`).
    /// - FS override (64): it selects the segment of a memory operand, and the jump has none (AMD APM volume
    ///   3, "Segment-Override Prefixes"). Intel calls segment overrides of jumps reserved; compilers emit
    ///   them (GCC, `-mindirect-branch-cs-prefix`).
    /// - BND (f2): it affects bound registers only, and processors without bound registers ignore it (Intel
    ///   SDM volume 1, "Intel MPX"). Linkers emit `bnd jmp rel32` in procedure linkage tables.
    /// - Operand size (66): AMD processors would jump to a 16-bit address, so REX.W follows, as in
    ///   `data16 data16 rex.W call` (System V ABI, "Thread-Local Storage").
    #[must_use]
    pub fn behind(first: u8) -> Option<Self> {
        match first {
            0x40..=0x4f | 0x64 | 0xf2 => Some(Self::Jump),
            0x66 => Some(Self::WideJump),
            0xff => Some(Self::IndirectJump),
            _ => None,
        }
    }

    /// Returns the number of bytes that change.
    #[must_use]
    pub const fn changed_bytes(self) -> u64 {
        match self {
            Self::Displacement => 4,
            Self::Jump | Self::IndirectJump => 5,
            Self::WideJump => 6,
        }
    }
}

/// An instruction that can carry a redirect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RedirectSite {
    /// The instruction.
    pub inst: InstId,
    /// The way in which it carries the redirect.
    pub form: SiteForm,
    /// The original instruction to whose clone the redirect leads.
    pub leads_to: InstId,
    /// The bytes that change: none of them is the first of an instruction.
    pub range: AvmaRange,
}

/// The redirects of one function.
#[derive(Clone, Debug, Default)]
pub struct RedirectSites {
    /// The sites, rising by address.
    pub sites: Vec<RedirectSite>,
    /// Whether every path from the entry reaches a site before it leaves the function.
    pub complete: bool,
    /// The points that control passes in the original before a redirect leads it to the clone.
    passed: FxHashSet<Point>,
    /// For each block with a site, the number of its instructions before the site.
    skipped: FxHashMap<BlockId, u32>,
}

impl RedirectSites {
    /// Returns the spot for a counter of `point` that counts all control that comes from a redirect, as
    /// [`Point::countable`]. Returns `None` if such control has passed the point in the original.
    #[must_use]
    pub fn countable(&self, point: Point, cfg: &Cfg, liveness: &Liveness) -> Option<Spot> {
        if self.passed.contains(&point) {
            return None;
        }
        let skipped = match point {
            Point::Block(b) => self.skipped.get(&b).copied().unwrap_or(0),
            Point::Edge { .. } => 0,
        };
        point.countable_behind(skipped, cfg, liveness)
    }

    /// Returns a block, if any, to which two passed edges lead (the entry counts as one).
    fn join(&self, cfg: &Cfg) -> Option<BlockId> {
        let mut met: FxHashSet<BlockId> = FxHashSet::from_iter([BlockId(0)]);
        for b in cfg.block_ids() {
            let (mut index, mut join) = (0, None);
            cfg.successors(b, |to| {
                let passed = self.passed.contains(&Point::Edge { from: b, index });
                if let (true, Dest::Block(next)) = (passed, to)
                    && !met.insert(next)
                {
                    join = Some(next);
                }
                index += 1;
            });
            if join.is_some() {
                return join;
            }
        }
        None
    }
}

/// Searches the redirects of a function.
///
/// `is_cloned` returns whether the clone has a block; the search ends at blocks that it does not have.
/// `is_free` returns whether the bytes of a range may change: they lie in one page, and nothing in the module
/// reads them or refers to an address in them.
#[must_use]
pub fn redirect_sites(
    cfg: &Cfg,
    is_cloned: &dyn Fn(BlockId) -> bool,
    is_free: &dyn Fn(AvmaRange) -> bool,
) -> RedirectSites {
    Search::of(cfg, is_cloned, is_free).found()
}

/// Works like [`redirect_sites`], but keeps only sites for which counters determine how control reached them.
/// At most one path leads from the entry to any block on the way to a site.
#[must_use]
pub fn countable_sites(cfg: &Cfg, is_free: &dyn Fn(AvmaRange) -> bool) -> RedirectSites {
    let mut barred: FxHashSet<BlockId> = FxHashSet::default();
    loop {
        let is_open = |b: BlockId| !barred.contains(&b);
        let found = Search::of(cfg, &is_open, is_free).found();
        match found.join(cfg) {
            Some(b) if b != BlockId(0) => barred.insert(b),
            _ => return RedirectSites { complete: found.complete && barred.is_empty(), ..found },
        };
    }
}

struct Search<'a> {
    cfg: &'a Cfg,
    is_cloned: &'a dyn Fn(BlockId) -> bool,
    is_free: &'a dyn Fn(AvmaRange) -> bool,
    /// The edges whose branch displacement is a site.
    displaced: Vec<(BlockId, u32)>,
    found: RedirectSites,
}

impl<'a> Search<'a> {
    fn of(
        cfg: &'a Cfg,
        is_cloned: &'a dyn Fn(BlockId) -> bool,
        is_free: &'a dyn Fn(AvmaRange) -> bool,
    ) -> Self {
        Self { cfg, is_cloned, is_free, displaced: Vec::new(), found: RedirectSites::default() }
    }

    fn found(mut self) -> RedirectSites {
        self.run();
        self.found.sites.sort_by_key(|s| s.range.start);
        self.found
    }

    fn run(&mut self) {
        self.found.complete = true;
        let mut seen: Vec<BlockId> = Vec::new();
        // The nearest blocks come first.
        let mut left = VecDeque::from([BlockId(0)]);
        while let Some(b) = left.pop_front() {
            if b.index() >= self.cfg.blocks.len() || !(self.is_cloned)(b) || seen.contains(&b) {
                continue;
            }
            if seen.len() >= MOST_BLOCKS || self.found.sites.len() >= MOST_SITES {
                self.found.complete = false;
                break;
            }
            seen.push(b);
            if self.jump_in(b) {
                continue;
            }
            let displaced = self.displacement_at(b);
            let (mut index, mut leaves) = (0, false);
            self.cfg.successors(b, |to| {
                match to {
                    _ if displaced == Some(index) => self.displaced.push((b, index)),
                    Dest::Block(next) => left.push_back(next),
                    Dest::Outside(_) => leaves = true,
                }
                index += 1;
            });
            let ends = matches!(self.cfg.blocks[b.index()].term, Term::Return | Term::Indirect);
            self.found.complete &= !leaves && !ends;
        }
        self.find_passed(&seen);
    }

    /// Finds the points from which control continues to a site. These are the blocks without a site from
    /// which a site can be reached, and their edges on the way.
    fn find_passed(&mut self, seen: &[BlockId]) {
        let mut goes_on: FxHashSet<BlockId> = self.displaced.iter().map(|l| l.0).collect();
        let edges: Vec<(BlockId, u32, Dest)> = seen
            .iter()
            .filter(|b| !self.found.skipped.contains_key(b))
            .flat_map(|&b| {
                let mut edges = Vec::new();
                let mut index = 0;
                self.cfg.successors(b, |to| {
                    edges.push((b, index, to));
                    index += 1;
                });
                edges
            })
            .collect();
        let mut known = usize::MAX;
        while known != goes_on.len() {
            known = goes_on.len();
            for &(from, index, to) in &edges {
                let Dest::Block(next) = to else { continue };
                let reaches = self.found.skipped.contains_key(&next) || goes_on.contains(&next);
                if reaches || self.displaced.contains(&(from, index)) {
                    goes_on.insert(from);
                    self.found.passed.insert(Point::Edge { from, index });
                }
            }
        }
        self.found.passed.extend(goes_on.into_iter().map(Point::Block));
    }

    /// Adds the first site in a block at which the rest of a jump fits behind the first byte, if there is
    /// one.
    fn jump_in(&mut self, b: BlockId) -> bool {
        let cfg = self.cfg;
        let block = &cfg.blocks[b.index()];
        let site = block.inst_ids().filter_map(|inst| {
            let i = cfg.insts.get(inst.index())?;
            let form = SiteForm::behind(*i.bytes.as_slice().first()?)?;
            let range = AvmaRange::with_len(i.at.add(1), form.changed_bytes());
            // The displacement of a branch is a site of its own, which another generation may change.
            let fits = range.end <= i.end() && i.branches_to().is_none();
            let fits = fits && !self.differs(inst) && (self.is_free)(range);
            fits.then_some(RedirectSite { inst, form, leads_to: inst, range })
        });
        let Some(site) = { site }.next() else { return false };
        self.found.skipped.insert(b, site.inst.0 - block.insts.start);
        self.found.sites.push(site);
        true
    }

    /// Adds the direct jump at the end of a block as a site, if its destination is cloned; returns its index
    /// among the block's successors.
    fn displacement_at(&mut self, b: BlockId) -> Option<u32> {
        let cfg = self.cfg;
        let block = &cfg.blocks[b.index()];
        let (Term::Jump { to: Dest::Block(to) } | Term::Cond { taken: Dest::Block(to), .. }) = block.term
        else {
            return None;
        };
        let inst = block.last_inst()?;
        let i = cfg.insts.get(inst.index())?;
        let form = SiteForm::Displacement;
        let range = AvmaRange::new(i.end().sub(form.changed_bytes()), i.end());
        let leads_to = InstId(cfg.blocks.get(to.index())?.insts.start);
        i.branches_to()?;
        if !(self.is_cloned)(to) || self.differs(leads_to) || !(self.is_free)(range) {
            return None;
        }
        self.found.sites.push(RedirectSite { inst, form, leads_to, range });
        Some(0)
    }

    /// Returns whether a register differs between original and clone at an instruction: see
    /// [`crate::TableLoad::differs`].
    fn differs(&self, inst: InstId) -> bool {
        let loads = self.cfg.tables.iter().filter_map(|t| t.cloneable);
        loads.map(|load| load.differs).any(|(from, to)| (from..to).contains(&inst))
    }
}

#[cfg(test)]
#[path = "redirect_sites_tests.rs"]
mod tests;
