//! One function taken apart: its graph with counts, original and clone side by side.
//!
//! The original is analysed anew, from memory without redirects; what its clone is made of is told by the address map in the
//! target, and how often its blocks ran by the profile there. So this can be asked long after, and by another whet.

mod listing;
mod look;

pub(crate) use look::{Question, take_apart};

use serde::Serialize;
use std::collections::BTreeMap;

/// What became of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It has a clone.
    Cloned,
    /// It was wanted and left alone.
    Refused,
    /// It was not wanted: it ran too rarely while the profile was taken.
    NotHot,
}

/// One function in full.
#[derive(Clone, Debug, Serialize)]
pub struct Anatomy {
    /// The name as the source has it, where the symbol is a mangled one.
    pub demangled: Option<String>,
    /// Its module's file name.
    pub module: String,
    /// Stated address of its entry, as other tools name it in that file.
    pub stated: String,
    /// Where its original lies: the main fragment, then the cold ones.
    pub original: Vec<Stretch>,
    /// Where its clone lies: the blocks that run often, then those that run rarely.
    pub clone: Vec<Stretch>,
    /// What became of it.
    pub standing: Standing,
    /// Why, in a sentence.
    pub why: String,
    /// Whether its edges were counted, not inferred from samples; `None` where no counts are known.
    pub counted: Option<bool>,
    /// How often it was entered at its entry.
    pub entered: Option<u64>,
    /// Places that lead into the clone, by kind.
    pub redirects: BTreeMap<String, usize>,
    /// Its blocks: those with a clone in the clone's order, then the others by address.
    pub blocks: Vec<BlockAnatomy>,
}

/// A run of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stretch {
    /// Process address.
    pub at: String,
    /// How many bytes.
    pub bytes: u64,
}

/// Where a block runs now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Warmth {
    /// In the clone, among what runs often.
    Hot,
    /// In the clone, behind what runs often.
    Warm,
    /// In the original: it did not run, or there is no clone.
    Original,
}

impl Warmth {
    /// The word used in JSON.
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
    /// How often it ran; `None` where no counts are known.
    pub count: Option<u64>,
    /// Whether exceptions come here.
    pub landing_pad: bool,
    /// How it ends: `fall`, `jump`, `cond`, `loop`, `switch`, `indirect`, `return`, `noreturn` or `trap`.
    pub ends: &'static str,
    /// Where it leads.
    pub edges: Vec<EdgeAnatomy>,
    /// Its instructions, the original's beside the clone's.
    pub code: Vec<Row>,
}

/// A way from one block to another.
#[derive(Clone, Debug, Serialize)]
pub struct EdgeAnatomy {
    /// `taken` or `fall` of a branch, else `next`.
    pub way: &'static str,
    /// The block it leads to; `None`: out of the function.
    pub block: Option<u32>,
    /// Process address in the original.
    pub to: String,
    /// Whether it leads from the clone to the original.
    pub leaves_clone: bool,
    /// How often it was taken.
    pub count: Option<u64>,
    /// That as a share of all ways out of the block.
    pub probability: Option<f64>,
}

/// How the two sides of a row belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// The original alone: the block has no clone.
    Original,
    /// The clone's instruction is the copy of the original's.
    Copy,
    /// Another copy of an instruction of a loop, of which there are several one behind the other.
    Again,
    /// A jump or nop of the clone only.
    Extra,
    /// A jump of the original that the clone needs not, or a call that gets where it goes more directly.
    Dropped,
    /// A part of what is done in place of the call before it.
    #[serde(rename = "shortcut")]
    Inlined,
}

/// An instruction of the original, of the clone, or of both.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// How they belong together.
    pub pairing: Pairing,
    /// The original's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original: Option<Asm>,
    /// The clone's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clone: Option<Asm>,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Asm {
    /// Process address.
    pub at: String,
    /// In AT&T syntax.
    pub text: String,
    /// Where a direct branch or call leads, where that has a name: of a function, or `clone of` one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}
