//! The answer of `replay`.

use super::inputs::Inputs;
use crate::FunctionCounts;
use crate::analyse::program::{FuncId, Program};
use crate::build::caches::Built;
use crate::plan::candidates::Candidates;
use crate::plan::laid_out::LaidOut;
use emit::Fragments;
use flate2::Crc;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::BTreeMap;

/// A rebuild from a capture. It has no addresses of the process, so that two builds of one source can be
/// compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplayReport {
    /// The program of the capture.
    pub exe: String,
    /// The version of whet that made the capture.
    pub captured_by: String,
    /// The seed of a random layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle: Option<u64>,
    /// Passes that were left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// Numbers of functions.
    pub functions: FunctionCounts,
    /// Why functions, or entries of cloned functions, were left alone: number for each reason.
    pub refusals: BTreeMap<String, usize>,
    /// The code caches.
    pub caches: Vec<CacheReport>,
    /// The clones, by module and address of their originals.
    pub layouts: Vec<FunctionLayout>,
}

/// One code cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheReport {
    /// Bytes of clones.
    pub code_bytes: usize,
    /// Bytes of tables.
    pub data_bytes: usize,
    /// Redirects that lead into it.
    pub redirects: usize,
    /// CRC-32 of clones and tables. It depends on all addresses.
    pub crc: String,
}

/// The layout of one clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FunctionLayout {
    /// The function's name, or its module and SVMA.
    pub name: String,
    /// Bytes of its clone.
    pub bytes: u64,
    /// Its hot blocks in their order. A block's number is its place in the original.
    pub hot: Vec<u32>,
    /// The blocks behind all hot ones.
    pub warm: Vec<u32>,
    /// How many of its blocks are not cloned.
    pub cold: usize,
    /// Calls that are inlined.
    pub inlined: usize,
    /// Calls that are devirtualized by a guard.
    pub guards: usize,
    /// The copies of each unrolled loop.
    pub unrolled: Vec<u32>,
    /// Places of its original that lead to the clone.
    pub entries: usize,
}

/// Returns the facts about a rebuild.
pub(super) fn report(
    inputs: &Inputs,
    program: &Program<'_>,
    candidates: &Candidates<LaidOut>,
    built: &Built,
) -> ReplayReport {
    let clones: FxHashMap<FuncId, &Fragments> = built.cloned.iter().map(|(f, at)| (*f, at)).collect();
    let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
    for reason in candidates.refused.iter().map(|r| r.2).chain(built.reasons().map(|r| r.1)) {
        *refusals.entry(reason.code().to_owned()).or_default() += 1;
    }
    let layout = |c: &LaidOut| Some(layout(program, c, clones.get(&c.id)?));
    ReplayReport {
        exe: inputs.exe.clone(),
        captured_by: inputs.whet.clone(),
        shuffle: inputs.shuffle,
        without: inputs.without.clone(),
        functions: FunctionCounts {
            hot: candidates.chosen.len() + candidates.refused.len(),
            cloned: built.cloned.len(),
            refused: candidates.refused.len() + built.refused.len(),
            last: None,
        },
        refusals,
        caches: built.caches.iter().map(|c| cache(&c.plan)).collect(),
        layouts: candidates.chosen.iter().filter_map(layout).collect(),
    }
}

fn cache(plan: &splice::CachePlan) -> CacheReport {
    let mut crc = Crc::new();
    crc.update(&plan.text);
    crc.update(&plan.blob);
    CacheReport {
        code_bytes: plan.text.len(),
        data_bytes: plan.blob.len(),
        redirects: plan.records.len(),
        crc: format!("{:08x}", crc.sum()),
    }
}

fn layout(program: &Program<'_>, c: &LaidOut, clone: &Fragments) -> FunctionLayout {
    let numbers = |blocks: &[code::BlockId]| blocks.iter().map(|b| b.0).collect();
    let order = &c.layout.order;
    FunctionLayout {
        name: program.name(c.id),
        bytes: clone.ranges().map(|r| r.len()).sum(),
        hot: numbers(order.hot()),
        warm: numbers(order.warm()),
        cold: c.analysed.cfg.blocks.len().saturating_sub(order.all().len()),
        inlined: c.inline_sites.iter().filter(|s| s.inlined).count(),
        guards: c.inline_sites.iter().filter(|s| s.guard.is_some()).count(),
        unrolled: c.unrolls.iter().map(|u| u.copies).collect(),
        entries: c.layout.sites.sites.len(),
    }
}
