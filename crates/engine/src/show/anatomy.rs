//! One function in detail: its graph with counts, original and clone side by side.
//!
//! The original is analysed anew, from memory without redirects. The address map in the target describes the
//! clone. The profile in the target has the counts of its blocks. So a later whet can show a function too.

mod listing;
mod look;

pub(crate) use look::{Question, take_apart};

use serde::Serialize;
use std::collections::BTreeMap;

/// The state of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The function has a clone.
    Cloned,
    /// The function was hot but was left alone.
    Refused,
    /// The function was not hot: it ran too rarely while the profile was taken.
    NotHot,
}

/// One function in full.
#[derive(Clone, Debug, Serialize)]
pub struct Anatomy {
    /// The name in the source, if the symbol is mangled.
    pub demangled: Option<String>,
    /// Its module's file name.
    pub module: String,
    /// SVMA of its entry, as other tools name it in the module's file.
    pub stated: String,
    /// The ranges of its original: the main fragment, then the cold ones.
    pub original: Vec<CodeRange>,
    /// The ranges of its clone: the hot blocks, then the warm ones.
    pub clone: Vec<CodeRange>,
    /// Its state.
    pub standing: Standing,
    /// The reason for its state, in a sentence.
    pub why: String,
    /// True if its edges were counted, false if they were inferred from samples; `None` without counts.
    pub counted: Option<bool>,
    /// How often it was entered at its entry.
    pub entered: Option<u64>,
    /// Places that lead into the clone, by kind.
    pub redirects: BTreeMap<String, usize>,
    /// Its blocks: those with a clone in the clone's order, then the others by address.
    pub blocks: Vec<BlockAnatomy>,
}

/// A range of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CodeRange {
    /// Process address.
    pub at: String,
    /// How many bytes.
    pub bytes: u64,
}

/// Where a block runs now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Warmth {
    /// In the clone, among the hot blocks.
    Hot,
    /// In the clone, behind the hot blocks.
    Warm,
    /// In the original: it did not run, or there is no clone.
    Original,
}

impl Warmth {
    /// Returns the word used in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Warmth::Hot => "hot",
            Warmth::Warm => "warm",
            Warmth::Original => "original",
        }
    }
}

/// One block.
#[derive(Clone, Debug, Serialize)]
pub struct BlockAnatomy {
    /// Its number in the graph; 0 is the entry.
    pub block: u32,
    /// Process address of the original.
    pub at: String,
    /// Bytes of the original.
    pub bytes: u64,
    /// Where it runs now.
    pub runs: Warmth,
    /// Process address of its clone.
    pub clone: Option<String>,
    /// How often it ran; `None` without counts.
    pub count: Option<u64>,
    /// True if it is a landing pad of exceptions.
    pub landing_pad: bool,
    /// How it ends: `fall`, `jump`, `cond`, `loop`, `switch`, `indirect`, `return`, `noreturn` or `trap`.
    pub ends: &'static str,
    /// Its outgoing edges.
    pub edges: Vec<EdgeAnatomy>,
    /// Its instructions, the original's beside the clone's.
    pub code: Vec<Row>,
}

/// An edge from one block to another.
#[derive(Clone, Debug, Serialize)]
pub struct EdgeAnatomy {
    /// `taken` or `fall` for a branch, else `next`.
    pub way: &'static str,
    /// The destination block; `None` if the edge leaves the function.
    pub block: Option<u32>,
    /// Process address of the destination in the original.
    pub to: String,
    /// True if the edge leads from the clone to the original.
    pub leaves_clone: bool,
    /// How often it was taken.
    pub count: Option<u64>,
    /// `count` as a share of all edges out of the block.
    pub probability: Option<f64>,
}

/// How the two sides of a row correspond.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// The original alone: the block has no clone.
    Original,
    /// The clone's instruction is the copy of the original's.
    Copy,
    /// A further copy of an instruction in an unrolled loop; the copies follow each other.
    Again,
    /// A jump that only the clone has.
    Extra,
    /// A jump of the original that the clone does not need, or a call that the clone replaces by a more
    /// direct one.
    Dropped,
    /// An instruction of a callee that is inlined for the call before it.
    Inlined,
}

/// An instruction of the original, of the clone, or of both.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// How the two sides correspond.
    pub pairing: Pairing,
    /// The original's instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original: Option<Asm>,
    /// The clone's instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clone: Option<Asm>,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Asm {
    /// Process address.
    pub at: String,
    /// Text in AT&T syntax.
    pub text: String,
    /// The name of a direct branch's or call's destination, if it has one: a function, or `clone of` a
    /// function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}
