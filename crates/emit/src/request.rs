//! The input and output of this crate.

use crate::{AddressMap, Body, Fragments, Unroll};
use addr::{Avma, AvmaRange};
use code::{BlockId, Cfg, Gpr, InstId, Point, Refusal, Spot};
use rustc_hash::FxHashMap;
use std::fmt;
use unwind::{Lsda, Row};

/// One function to clone.
#[derive(Clone, Debug)]
pub struct Function<'a> {
    /// The function's graph.
    pub cfg: &'a Cfg,
    /// The blocks to clone, in the order in which they are to lie: the entry block first, none twice. Edges
    /// to other blocks go to their original addresses.
    pub order: Vec<BlockId>,
    /// The number of leading blocks of `order` in the zone of hot code, where they follow the hot blocks of
    /// the other functions. The remaining blocks lie in the zone of warm code, behind the hot code of all
    /// functions. They form a second fragment of the clone or, if this is 0, the whole clone.
    pub hot: usize,
    /// Instructions to whose clones redirects in the original lead. A counter at such an instruction also
    /// counts control that comes from a redirect.
    pub entrances: Vec<InstId>,
    /// Whether a redirect leads to the clone on every path from the original's entry.
    pub is_redirected: bool,
    /// Unwind rows of all fragments of the original, rising.
    pub rows: &'a [Row],
    /// The original's exception table. If the function has fragments with tables of their own, this holds the
    /// call sites of all of them: a cloned call that is in no call site ends in `std::terminate` when it
    /// throws.
    pub lsda: Option<&'a Lsda>,
    /// The original's personality routine.
    pub personality: Option<Avma>,
    /// The original's signal-frame mark.
    pub signal_frame: bool,
    /// Counters at points of the function, none twice.
    pub counters: Vec<Counter>,
    /// Register values to store before instructions.
    pub watches: Vec<Watch>,
    /// Calls, rising, that go through the redirect at their callee's original. While the redirect is in force,
    /// they reach its destination, and otherwise the original. If the callee [is
    /// redirected](Function::is_redirected), they call the original and not its clone. If such a
    /// call also has an inline site, the inline site applies; control that leaves its inlined path continues in the
    /// callee's original.
    pub through_redirects: Vec<InstId>,
    /// Calls to inline or guard, at most one site for each call.
    pub inline_sites: Vec<InlineSite<'a>>,
    /// Loops to unroll, as [`crate::loops`] finds them: control jumps back only behind the last copy. Ignored
    /// if there are counters or watches, or if a loop is not within one fragment.
    pub unrolls: Vec<Unroll>,
}

/// An 8-byte counter in the memory of the thread that passes a point. It lies at an offset from the thread's
/// GS base, which user space on x86-64 Linux does not use. One instruction counts, without a lock and without
/// a cache line shared by threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter {
    /// The point whose passes are counted.
    pub at: Point,
    /// The counter's instruction, and how it counts.
    pub spot: Spot,
    /// The counter's offset from the GS base, below 2 GiB. Bytes.
    pub offset: u32,
}

/// A store of a register's value to the memory of the thread that reaches an instruction; each store
/// overwrites the last. So the destination of an indirect call can be read from outside, and no register or
/// flag changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watch {
    /// The instruction; not a direct jump.
    pub inst: InstId,
    /// The general register.
    pub register: Gpr,
    /// The offset of the stored value, as for a [`Counter`]. Bytes.
    pub offset: u32,
}

/// A call to replace, by (partial) inlining, by guarded devirtualization (a compare of the virtual table,
/// then a direct call), or by both.
#[derive(Clone, Copy, Debug)]
pub struct InlineSite<'a> {
    /// The call: a direct call, or an indirect call with a guard.
    pub call: InstId,
    /// The function that is called if the guard holds, by its entry.
    pub callee: Avma,
    /// The part of the callee to inline, if any; see [`crate::can_inline`].
    pub body: Option<Body<'a>>,
    /// The condition to check first, if the call is indirect.
    pub guard: Option<Guard>,
}

/// A register and its value when the guard of an [`InlineSite`] holds. The value is the address of a virtual
/// table from which the call reads its destination. The verifier checks with [`Request::constant`] that the
/// table leads to the callee.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guard {
    /// The general register.
    pub register: Gpr,
    /// Its value.
    pub table: Avma,
}

/// A set of functions to clone together.
#[derive(Clone)]
pub struct Request<'a> {
    /// The address of the text.
    pub text_at: Avma,
    /// The address of the data; aligned to 8.
    pub data_at: Avma,
    /// The functions, in the order of their clones in either zone. Each original at most once.
    pub functions: Vec<Function<'a>>,
    /// Stubs of procedure linkage tables that calls and jumps may bypass.
    pub stubs: &'a Stubs,
    /// Returns the entry of the function to which an 8-byte word leads, if the word never changes.
    pub constant: &'a dyn Fn(Avma) -> Option<Avma>,
}

/// The start of each stub of a procedure linkage table, with the slot of 8 bytes, bound or not, through which its first
/// instruction (but for an `endbr64`) jumps.
pub type Stubs = FxHashMap<Avma, Avma>;

impl<'a> Function<'a> {
    /// Creates a function with these blocks and unwind rows. All its blocks are hot, and everything else is
    /// empty or off.
    #[must_use]
    pub fn new(cfg: &'a Cfg, order: Vec<BlockId>, rows: &'a [Row]) -> Self {
        Self {
            cfg,
            hot: order.len(),
            order,
            entrances: Vec::new(),
            is_redirected: false,
            rows,
            lsda: None,
            personality: None,
            signal_frame: false,
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
    /// The address at which the clone is entered: the start of its first fragment.
    pub entry: Avma,
    /// The map between the clone's instructions and the original's.
    pub map: AddressMap,
    /// For each cloned instruction of [`Function::entrances`], its original address and the clone address for
    /// it, in the order of the clone.
    pub entrances: Vec<(Avma, Avma)>,
}

impl CloneInfo {
    /// Returns the clone address for control that comes by a redirect to the original instruction at
    /// `original`.
    #[must_use]
    pub fn entrance(&self, original: Avma) -> Option<Avma> {
        self.entrances.iter().find(|e| e.0 == original).map(|e| e.1)
    }

    /// Returns the address ranges of the clone's bytes.
    #[must_use]
    pub fn fragments(&self) -> &Fragments {
        self.map.fragments()
    }
}

/// The result of a request.
#[derive(Clone, Debug)]
pub struct Output {
    /// The bytes for [`Request::text_at`].
    pub text: Vec<u8>,
    /// The bytes for [`Request::data_at`]: jump tables, exception tables, the unwind index and the unwind
    /// table.
    pub data: Vec<u8>,
    /// The rising offsets of the instructions that access the memory of counters and watches. Each has 9
    /// bytes: the first is the GS prefix, the second a REX prefix. Bytes from the start of the text.
    pub gs_sites: Vec<u32>,
    /// The address of the `.eh_frame_hdr` in the data. It covers all clones.
    pub eh_frame_hdr: Avma,
    /// The addresses of the `.eh_frame` in the data.
    pub eh_frame: AvmaRange,
    /// The clones, in the order of the request.
    pub clones: Vec<CloneInfo>,
    /// The entries of functions that were not cloned, with the reasons.
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
    /// Jumps of the original that the clones do not need.
    pub dropped_jumps: u64,
    /// Loops that are unrolled.
    pub unrolled: u64,
    /// Calls that are inlined.
    pub inlined: u64,
    /// Conditional jumps whose condition was inverted.
    pub inverted: u64,
    /// Bytes of cloned blocks in the original.
    pub original_bytes: u64,
    /// Bytes of the clones.
    pub clone_bytes: u64,
    /// The part of `clone_bytes` in the zone of warm code.
    pub warm_bytes: u64,
    /// Jump tables that were cloned.
    pub tables: u64,
    /// Jump tables that were not cloned only because the data is too far away.
    pub tables_out_of_reach: u64,
}

/// The reason why a whole request fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Caller's mistake: the order does not start with block 0, names a block twice or an unknown block, or a
    /// function is requested twice.
    #[error("the block order of the function at {entry} is not one")]
    BadOrder {
        /// The function's entry.
        entry: Avma,
    },
    /// Caller's mistake: the data does not start at a multiple of 8.
    #[error("data at {data_at} is not aligned to 8 bytes")]
    Misaligned {
        /// The requested address of the data.
        data_at: Avma,
    },
    /// Text and data are too far apart for the 32-bit distances of the unwind tables.
    #[error("text at {text_at} and data at {data_at} are too far apart")]
    TooFarApart {
        /// The requested address of the text.
        text_at: Avma,
        /// The requested address of the data.
        data_at: Avma,
    },
    /// The caller stopped the work.
    #[error("broken off")]
    BrokenOff,
    /// The unwind tables could not be written, although the table of each clone alone could be.
    #[error("cannot write the unwind tables of the clones")]
    Frames(#[source] unwind::Error),
}
