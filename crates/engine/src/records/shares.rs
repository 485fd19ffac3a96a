//! Divides user time into named shares: every sample counts in exactly one row.

use crate::analyse::program::{FuncId, Program};
use crate::build::caches::Built;
use crate::plan::candidates::Candidates;
use crate::plan::laid_out::LaidOut;
use addr::{Avma, AvmaRange};
use code::Refusal;
use image::{Image, Mapping, ModuleKind};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Shares are whole multiples of 1/`PARTS`, so that they sum to exactly 1.
const PARTS: u64 = 10_000;
/// The reason for a mapped file that is no ELF module, or could not be read.
const NO_MODULE: &str = "no_module";
/// The reason for a module that was loaded while samples were taken.
const LOADED_LATER: &str = "loaded_later";

/// How user time is distributed, by the samples (or the profile) from which the clones were built. Shares sum
/// to 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserTime {
    /// In blocks that now have clones. A thread that has not left an original since is counted as well: the samples
    /// are of before. The daemon's later samples show where threads are (`whet_target_clones_ratio`).
    pub in_clones: f64,
    /// In functions that cannot be cloned: share for each reason.
    pub refused: BTreeMap<String, f64>,
    /// In modules that are left alone as a whole: share for each reason.
    pub module_left_alone: BTreeMap<String, f64>,
    /// In a module's code without unwind tables.
    pub no_unwind_tables: f64,
    /// In executable memory outside of modules: anonymous, or of a file without a name (memfd, deleted).
    pub generated_code: f64,
    /// In code that the kernel maps into every process.
    pub vdso: f64,
    /// In functions, or blocks, that could have clones and have none: too few samples, or excluded by an
    /// option.
    pub not_rebuilt: f64,
    /// In functions that the profile lacks, or that have changed since the profile was taken.
    pub not_in_profile: f64,
    /// At addresses that are no longer code, or in whet's own code.
    pub unknown: f64,
}

/// The row of one sample.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Row {
    InClones,
    Refused(Refusal),
    ModuleLeftAlone(&'static str),
    NoUnwindTables,
    GeneratedCode,
    Vdso,
    NotRebuilt,
    NotInProfile,
    Unknown,
}

impl UserTime {
    /// Computes shares from counts; `None` without samples. The largest remainders are rounded up.
    pub(crate) fn of(rows: &BTreeMap<Row, u64>) -> Option<Self> {
        let all: u128 = rows.values().map(|&n| u128::from(n)).sum();
        if all == 0 {
            return None;
        }
        let exact = |n: u64| u128::from(n) * u128::from(PARTS);
        let mut parts: Vec<(Row, u128, u128)> =
            rows.iter().map(|(&row, &n)| (row, exact(n) / all, exact(n) % all)).collect();
        parts.sort_by_key(|&(row, _, remainder)| (std::cmp::Reverse(remainder), row));
        let left = u128::from(PARTS) - parts.iter().map(|p| p.1).sum::<u128>();
        let mut out = Self::default();
        for (i, (row, part, _)) in (0u128..).zip(parts) {
            let part = u32::try_from(part + u128::from(i < left)).unwrap_or(u32::MAX);
            out.add(row, f64::from(part) / PARTS as f64);
        }
        Some(out)
    }

    fn add(&mut self, row: Row, share: f64) {
        match row {
            Row::InClones => self.in_clones = share,
            Row::Refused(why) => drop(self.refused.insert(why.code().to_owned(), share)),
            Row::ModuleLeftAlone(why) => drop(self.module_left_alone.insert(why.to_owned(), share)),
            Row::NoUnwindTables => self.no_unwind_tables = share,
            Row::GeneratedCode => self.generated_code = share,
            Row::Vdso => self.vdso = share,
            Row::NotRebuilt => self.not_rebuilt = share,
            Row::NotInProfile => self.not_in_profile = share,
            Row::Unknown => self.unknown = share,
        }
    }

    /// Returns all rows above 0, the largest first: the name in JSON, the reason if any, the share.
    #[must_use]
    pub fn rows(&self) -> Vec<(&'static str, Option<&str>, f64)> {
        let plain = [
            ("in_clones", self.in_clones),
            ("no_unwind_tables", self.no_unwind_tables),
            ("generated_code", self.generated_code),
            ("vdso", self.vdso),
            ("not_rebuilt", self.not_rebuilt),
            ("not_in_profile", self.not_in_profile),
            ("unknown", self.unknown),
        ];
        let reasons = [("refused", &self.refused), ("module_left_alone", &self.module_left_alone)];
        let by_reason = reasons.iter().flat_map(|(name, by)| {
            by.iter().map(move |(reason, &share)| (*name, Some(reason.as_str()), share))
        });
        let mut rows: Vec<_> = plain.into_iter().map(|(name, share)| (name, None, share)).collect();
        rows.extend(by_reason);
        rows.retain(|r| r.2 > 0.0);
        rows.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(b.0)).then(a.1.cmp(&b.1)));
        rows
    }
}

/// The outcome for each function of a program.
pub(crate) struct Fates {
    /// The cloned blocks of cloned functions, by ascending address.
    cloned: FxHashMap<FuncId, Vec<AvmaRange>>,
    refused: FxHashMap<FuncId, Refusal>,
}

impl Fates {
    /// Collects the outcomes of one rebuild.
    pub(crate) fn new(candidates: &Candidates<LaidOut>, built: &Built) -> Self {
        let before = candidates.refused.iter().map(|r| (r.0, r.2));
        let refused = before.chain(built.refused.iter().copied()).collect();
        let mut cloned: FxHashMap<FuncId, Vec<AvmaRange>> =
            built.cloned.iter().map(|(f, _)| (*f, Vec::new())).collect();
        for c in &candidates.chosen {
            let Some(ranges) = cloned.get_mut(&c.id) else { continue };
            let blocks = &c.analysed.cfg.blocks;
            ranges.extend(c.layout.order.all().iter().filter_map(|b| Some(blocks.get(b.index())?.range)));
            ranges.sort_unstable_by_key(|r| r.start);
        }
        Self { cloned, refused }
    }

    fn row(&self, f: FuncId, at: Avma) -> Row {
        if let Some(&why) = self.refused.get(&f) {
            return Row::Refused(why);
        }
        let blocks = self.cloned.get(&f).map_or(&[][..], Vec::as_slice);
        let i = blocks.partition_point(|b| b.end <= at);
        if blocks.get(i).is_some_and(|b| b.contains(at)) { Row::InClones } else { Row::NotRebuilt }
    }
}

/// Counts the samples of each row. `own` is whet's code in the process; `later` are mappings from after
/// sampling.
pub(crate) fn of_samples(
    program: &Program<'_>,
    fates: &Fates,
    ips: &[Avma],
    own: &[AvmaRange],
    later: &[Mapping],
) -> BTreeMap<Row, u64> {
    let mut ips = ips.to_vec();
    ips.sort_unstable();
    let mut rows = BTreeMap::new();
    for same in ips.chunk_by(|a, b| a == b) {
        let Some(&at) = same.first() else { continue };
        let row = if own.iter().any(|r| r.contains(at)) {
            Row::Unknown
        } else {
            in_module(program, fates, at).unwrap_or_else(|| outside(program.image(), at, later))
        };
        *rows.entry(row).or_default() += same.len() as u64;
    }
    rows
}

/// Counts the samples of each row if a profile replaced sampling; `all` is its number of samples. `module`
/// returns why the module of a function is left alone.
pub(crate) fn of_profile(
    candidates: &Candidates<LaidOut>,
    fates: &Fates,
    all: u64,
    module: impl Fn(FuncId) -> Option<Refusal>,
) -> BTreeMap<Row, u64> {
    let mut rows = BTreeMap::new();
    let mut left = all;
    let chosen = candidates.chosen.iter().map(|c| (c.id, c.samples));
    for (id, samples) in chosen.chain(candidates.refused.iter().map(|r| (r.0, r.1))) {
        let row = match (module(id), fates.refused.get(&id), fates.cloned.contains_key(&id)) {
            (Some(why), ..) => Row::ModuleLeftAlone(why.code()),
            (_, Some(&why), _) => Row::Refused(why),
            (_, _, true) => Row::InClones,
            (_, _, false) => Row::NotRebuilt,
        };
        let samples = samples.min(left);
        left -= samples;
        *rows.entry(row).or_default() += samples;
    }
    *rows.entry(Row::NotInProfile).or_default() += left;
    rows
}

/// Returns the row of an address in the code of a module.
fn in_module(program: &Program<'_>, fates: &Fates, at: Avma) -> Option<Row> {
    let image = program.image();
    let module = image.module_of(at)?;
    if module.kind == ModuleKind::Vdso {
        return Some(Row::Vdso);
    }
    image.exec_ranges(module).iter().find(|r| r.contains(at))?;
    let code = program.modules().iter().find(|m| std::ptr::eq(image.module(m.id), module));
    if let Some(why) = code.and_then(|c| c.refused) {
        return Some(Row::ModuleLeftAlone(why.code()));
    }
    Some(program.find(at).map_or(Row::NoUnwindTables, |f| fates.row(f, at)))
}

/// Returns the row of an address outside of modules, by its mapping when the program was read, or afterwards.
fn outside(image: &Image, at: Avma, later: &[Mapping]) -> Row {
    let early = image.mapping_of(at).filter(|m| m.perms.x);
    let mapping = early.or_else(|| later.iter().find(|m| m.range.contains(at) && m.perms.x));
    match mapping {
        None => Row::Unknown,
        Some(m) if m.path.as_deref().is_some_and(of_kernel) => Row::Vdso,
        Some(m) if is_generated(m) => Row::GeneratedCode,
        Some(_) if early.is_some() => Row::ModuleLeftAlone(NO_MODULE),
        Some(_) => Row::ModuleLeftAlone(LOADED_LATER),
    }
}

fn of_kernel(path: &str) -> bool {
    ["[vdso]", "[vsyscall]", "[uprobes]"].contains(&path)
}

/// Returns whether mapped code is of no named file: anonymous memory, or a memfd, which the kernel shows as
/// deleted.
fn is_generated(m: &Mapping) -> bool {
    m.file().is_none() || m.deleted
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
