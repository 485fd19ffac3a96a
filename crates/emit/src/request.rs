//! What is asked for and what is given.

use crate::{AddressMap, Body, Fragments, Unroll};
use addr::{Avma, AvmaRange};
use code::{BlockId, Cfg, Point, Refusal, Spot};
use rustc_hash::FxHashMap;
use std::fmt;
use unwind::{Lsda, Row};

/// One function to clone.
#[derive(Clone, Debug)]
pub struct Function<'a> {
    /// Its graph.
    pub cfg: &'a Cfg,
    /// The blocks to clone, in the order in which they are to lie; the entry block first, none twice. Edges to the
    /// others go to their original addresses.
    pub order: Vec<BlockId>,
    /// So many of `order`, from the first on, lie in the zone of hot code, where they follow those of the other functions. All
    /// others lie in the zone of warm code, behind the hot code of all functions: as a second
    /// fragment of the clone, or, for 0, as the whole of it.
    pub hot: usize,
    /// Blocks of `order` that are to start at a multiple of a number of bytes (a power of two, at most 4096): heads of hot loops.
    pub align_blocks: Vec<(BlockId, u32)>,
    /// Instructions to whose clones redirects in the original lead, by their places in [`Cfg::insts`]. A counter at such an
    /// instruction counts control that comes from a redirect, too.
    pub entrances: Vec<u32>,
    /// Whether a redirect leads to the clone on every path from the original's entry.
    pub is_redirected: bool,
    /// Unwind rows of all fragments of the original, rising.
    pub rows: &'a [Row],
    /// The original's exception table. Where the function has fragments with tables of their own, the call sites of
    /// all of them: a cloned call that is in no call site ends in `std::terminate` when it throws.
    pub lsda: Option<&'a Lsda>,
    /// The original's personality routine.
    pub personality: Option<Avma>,
    /// The original's signal-frame mark.
    pub signal_frame: bool,
    /// Alignment of the clone's start: a power of two, at most 4096. Bytes.
    pub align: u32,
    /// Counters at points of the function, none twice.
    pub counters: Vec<Counter>,
    /// Registers to keep before instructions.
    pub watches: Vec<Watch>,
    /// Calls, by their places in [`Cfg::insts`], rising, that go where the redirect at their callee's original leads while it is in
    /// force, and to the original otherwise: where that [is redirected](Function::is_redirected) they call it and not its clone. A call
    /// with an inline site goes by that.
    pub through_redirects: Vec<u32>,
    /// Calls to answer more directly, at most one for each call.
    pub inline_sites: Vec<InlineSite<'a>>,
    /// Loops of which several copies are to lie one behind the other, so that control jumps back only behind the last: such
    /// as [`crate::loops`] finds. Not where there are counters or watches, nor where fragments would be mixed.
    pub unrolls: Vec<Unroll>,
}

/// A counter of 8 bytes in the memory of the thread that passes a point: at an offset from its GS base, which user
/// space on x86-64 Linux leaves alone. One instruction counts, without a lock and without a line shared by threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter {
    /// What it counts.
    pub at: Point,
    /// Where it stands, and how it counts.
    pub spot: Spot,
    /// The counter's offset from the GS base, below 2 GiB. Bytes.
    pub offset: u32,
}

/// A register's value is written to the memory of the thread that comes to an instruction, over the last one. Where an
/// indirect call goes is known so from outside, without a register or a flag being touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watch {
    /// The instruction, by its place in [`Cfg::insts`]; no direct jump.
    pub inst: u32,
    /// The general register, by its number.
    pub register: u8,
    /// Where it is kept, as for a [`Counter`]. Bytes.
    pub offset: u32,
}

/// A call to replace, by (partial) inlining, by guarded devirtualization (a compare of the virtual table, then a direct
/// call), or by both.
#[derive(Clone, Copy, Debug)]
pub struct InlineSite<'a> {
    /// The call, by its place in [`Cfg::insts`]: a direct one, or an indirect one with a guard.
    pub call: u32,
    /// Which function it calls where the guard holds: its entry.
    pub callee: Avma,
    /// What of the callee is to run in place, if so; see [`crate::can_inline`].
    pub body: Option<Body<'a>>,
    /// What has to be asked first where the call is indirect.
    pub guard: Option<Guard>,
}

/// A register and the value it has where the guard of an [`InlineSite`] holds: the address of a virtual table from which the call
/// reads its destination. That the table leads to the callee is checked ([`Request::constant`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guard {
    /// The general register, by its number.
    pub register: u8,
    /// Its value.
    pub table: Avma,
}

/// A set of functions to clone together.
#[derive(Clone)]
pub struct Request<'a> {
    /// Where the text will lie; aligned to the largest alignment in the request.
    pub text_at: Avma,
    /// Where the data will lie; aligned to 8.
    pub data_at: Avma,
    /// The functions, in the order in which their clones are to lie in either zone. Each original at most once.
    pub functions: Vec<Function<'a>>,
    /// Clones that exist already: from the entry of an original to the entry of its clone. Asked only about functions that are
    /// not cloned by this request.
    pub known: &'a dyn Fn(Avma) -> Option<Avma>,
    /// Stubs of procedure linkage tables that calls and jumps need not go by.
    pub stubs: &'a Stubs,
    /// The function to which a word of 8 bytes leads, by its entry, if that is so now and ever.
    pub constant: &'a dyn Fn(Avma) -> Option<Avma>,
}

/// By a stub's start what it comes to.
pub type Stubs = FxHashMap<Avma, Stub>;

/// What a stub of a procedure linkage table comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stub {
    /// It goes to this function now and ever: its slot is bound and constant.
    Function(Avma),
    /// Its first instruction (but for an `endbr64`) jumps through this slot of 8 bytes, bound or not.
    Slot(Avma),
}

impl<'a> Function<'a> {
    /// One with these blocks and unwind rows: all of it among the hot code, aligned to nothing, with nothing else.
    #[must_use]
    pub fn new(cfg: &'a Cfg, order: Vec<BlockId>, rows: &'a [Row]) -> Self {
        Self {
            cfg,
            hot: order.len(),
            order,
            align_blocks: Vec::new(),
            entrances: Vec::new(),
            is_redirected: false,
            rows,
            lsda: None,
            personality: None,
            signal_frame: false,
            align: 1,
            counters: Vec::new(),
            watches: Vec::new(),
            through_redirects: Vec::new(),
            inline_sites: Vec::new(),
            unrolls: Vec::new(),
        }
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("text_at", &self.text_at)
            .field("data_at", &self.data_at)
            .field("functions", &self.functions)
            .finish_non_exhaustive()
    }
}

/// One clone.
#[derive(Clone, Debug)]
pub struct CloneInfo {
    /// The entry of the original.
    pub original: Avma,
    /// Where the clone is entered: the start of its first fragment.
    pub entry: Avma,
    /// Its instructions and the original's.
    pub map: AddressMap,
    /// For each of [`Function::entrances`] that is cloned the instruction's address and where the clone is entered for it, in
    /// the order of the clone.
    pub entrances: Vec<(Avma, Avma)>,
}

impl CloneInfo {
    /// Returns where control that comes to the original instruction at `original` by a redirect enters the clone.
    #[must_use]
    pub fn entrance(&self, original: Avma) -> Option<Avma> {
        self.entrances.iter().find(|e| e.0 == original).map(|e| e.1)
    }

    /// Where the clone's bytes lie.
    #[must_use]
    pub fn fragments(&self) -> &Fragments {
        self.map.fragments()
    }
}

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Output {
    /// The bytes for [`Request::text_at`]; the gaps between fragments trap.
    pub text: Vec<u8>,
    /// The bytes for [`Request::data_at`]: jump tables, exception tables, the unwind index and the unwind table.
    pub data: Vec<u8>,
    /// Where in the text the instructions are that touch the memory of counters and watches, rising: each has 9 bytes, of which
    /// the first is the prefix of GS, the second a REX. Bytes from the start of the text.
    pub gs_sites: Vec<u32>,
    /// Where in the data the `.eh_frame_hdr` starts. It covers all clones.
    pub eh_frame_hdr: Avma,
    /// Where in the data the `.eh_frame` lies.
    pub eh_frame: AvmaRange,
    /// The clones, in the order of the request.
    pub clones: Vec<CloneInfo>,
    /// The entries of functions that were not cloned, and why.
    pub refused: Vec<(Avma, Refusal)>,
    /// Totals over all clones.
    pub stats: Stats,
}

/// Totals over the clones of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Original instructions that were cloned, dropped jumps included.
    pub instructions: u64,
    /// Jumps that the original does not have.
    pub inserted_jumps: u64,
    /// Jumps of the original that are not needed.
    pub dropped_jumps: u64,
    /// Loops that are unrolled.
    pub unrolled: u64,
    /// Calls that are inlined.
    pub inlined: u64,
    /// Conditional jumps whose condition was inverted.
    pub inverted: u64,
    /// Bytes of nops for aligned blocks.
    pub nop_bytes: u64,
    /// Bytes of cloned blocks in the original.
    pub original_bytes: u64,
    /// Bytes of the clones, without the gaps between their fragments.
    pub clone_bytes: u64,
    /// Those of them that lie in the zone of warm code.
    pub warm_bytes: u64,
    /// Jump tables that were cloned.
    pub tables: u64,
    /// Jump tables that could have been cloned but for the distance to the data.
    pub tables_out_of_reach: u64,
}

/// A request that cannot be met at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller's mistake: an order that does not start with block 0, names a block twice or a block that is not
    /// there, or a function asked for twice.
    #[error("the block order of the function at {entry} is not one")]
    BadOrder {
        /// The function's entry.
        entry: Avma,
    },
    /// The caller's mistake: an alignment that is no power of two or over 4096, or a start that is not so aligned.
    #[error("{align} is no alignment for {at}")]
    BadAlignment {
        /// What was to be aligned.
        at: Avma,
        /// To what. Bytes.
        align: u32,
    },
    /// Text and data lie further apart than the unwind tables' 32-bit distances reach.
    #[error("text at {text_at} and data at {data_at} are too far apart")]
    TooFarApart {
        /// Where the text was to lie.
        text_at: Avma,
        /// Where the data was to lie.
        data_at: Avma,
    },
    /// The caller wanted no more of it.
    #[error("broken off")]
    BrokenOff,
    /// The unwind tables could not be written although each clone's alone could.
    #[error("cannot write the unwind tables of the clones")]
    Frames(#[source] unwind::Error),
}
