//! The parameters of a named CPU.

use serde::{Deserialize, Serialize};

/// The shape of a cache. The least recently used way of a set is replaced first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Geometry {
    /// Number of sets. The number of a line or page modulo this selects its set; a branch's set is selected
    /// by a hash.
    pub sets: u32,
    /// Entries in each set.
    pub ways: u32,
}

/// A direction predictor: a table of two-bit counters by the branch's address alone, and tagged tables by
/// address and the path to the branch. Of the tagged tables that contain the branch, the table with the
/// longest path predicts it (TAGE; Seznec and Michaud, "A case for (partially) tagged geometric history
/// length branch prediction", JILP 8, 2006).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Direction {
    /// Two-bit counters in the table by address alone.
    pub base: u32,
    /// The shape of each tagged table.
    pub tagged: Geometry,
    /// Length of the path of each tagged table, rising. Taken branches before the predicted one.
    pub history: [u16; 3],
}

/// The parameters of the model for one CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cpu {
    /// Its name.
    pub name: &'static str,
    /// First-level instruction cache.
    pub icache: Geometry,
    /// Size of its lines, a power of two. Bytes.
    pub line: u32,
    /// First-level instruction TLB for pages of 4 KiB.
    pub itlb: Geometry,
    /// First-level instruction TLB for pages of 2 MiB.
    pub itlb_huge: Geometry,
    /// Second-level TLB, for both page sizes.
    pub stlb: Geometry,
    /// Branch target buffer: taken branches by their address.
    pub btb: Geometry,
    /// Targets of indirect branches by their address and the path to them.
    pub targets: Geometry,
    /// Predictor of the direction of conditional branches.
    pub direction: Direction,
    /// Number of return addresses in the return stack.
    pub returns: u32,
}

/// Intel's Ice Lake server cores (Sunny Cove, Xeon Scalable of 2021).
///
/// | figure | source |
/// |---|---|
/// | L1I 32 KiB, 64 sets of 8 ways, 64-byte lines | CPUID leaf 4 of such cores; Intel 64 and IA-32 Architectures Optimization Reference Manual, "Ice Lake Client Microarchitecture"; WikiChip, "Sunny Cove" |
/// | ITLB 4 KiB: 128 entries, 8 ways | the same manual's table of TLBs for Skylake, which WikiChip has unchanged in Sunny Cove |
/// | ITLB 2 MiB: 16 entries, fully associative | WikiChip, "Sunny Cove": "16 entries, up from 8" |
/// | STLB 2048 entries | CPUID leaf 18h of such cores: two halves of 128 sets of 8 ways. Pages of 4 KiB use both halves, pages of 2 MiB one half; in the model both sizes use one TLB of 128 sets of 16 ways |
/// | BTB 5120 entries, 4 ways | not published by Intel; the second of the two levels in `PARAMS.sunny_cove` of the Scarab simulator |
/// | indirect targets 4096 entries, 4 ways | as above |
/// | direction: 8192 counters, three tables of 512 sets of 4 ways, paths of 34, 66 and 194 taken branches | not published by Intel; measured on Intel's cores by Yavarzadeh and others ("Half&Half: Demystifying Intel's Directional Branch Predictors", IEEE S&P 2023), who report these lengths for cores newer than this one. Hashes, tags and replacement are the model's own |
/// | 16 return addresses | Intel's manual as above, for Core microarchitectures |
pub const ICE_LAKE_SERVER: Cpu = Cpu {
    name: "Intel Ice Lake server",
    icache: Geometry { sets: 64, ways: 8 },
    line: 64,
    itlb: Geometry { sets: 16, ways: 8 },
    itlb_huge: Geometry { sets: 1, ways: 16 },
    stlb: Geometry { sets: 128, ways: 16 },
    btb: Geometry { sets: 1280, ways: 4 },
    targets: Geometry { sets: 1024, ways: 4 },
    direction: Direction { base: 8192, tagged: Geometry { sets: 512, ways: 4 }, history: [34, 66, 194] },
    returns: 16,
};
