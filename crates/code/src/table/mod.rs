//! Jump tables: the possible destinations of an indirect jump, and how much is proven.
//!
//! There are three levels. *Proven*: the code on every path to the jump implies the greatest index, the table
//! is constant, and all its entries are sound. If, in addition, no code can notice a different destination
//! ([`proof`]), the table may be cloned. *Found*: the table is known, but its length is a guess. The guess
//! adds blocks to the graph and nothing else. *Unknown*: the jump is [`crate::Term::Indirect`].

mod eval;
mod flow;
mod path;
mod proof;
mod value;

use crate::explore::{Explorer, same_cfa};
use crate::{BlockId, Cfg, Input, Liveness, Question, Refusal, TableForm, Term};
use addr::{Addr, Avma, AvmaRange};
use eval::Machine;
use flow::Facts;
use iced_x86::OpKind;
use path::{Resolved, Search, Shape, predecessors};
use rustc_hash::{FxHashMap, FxHashSet};

/// The largest number of entries that is guessed.
const MAX_GUESS: u64 = 1024;

/// The facts about one indirect jump.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    pub(crate) at: Avma,
    pub(crate) form: TableForm,
    /// Destinations by index.
    pub(crate) entries: Vec<Avma>,
    /// The instruction that reads the table.
    load: Avma,
    /// Whether the number of entries is proven.
    proven: bool,
    /// Whether each jump reads the table itself, in its own block.
    local: bool,
    /// Whether the bound is that of a `switch`.
    checked: bool,
    /// Whether a proof with fewer edges failed with more edges. If so, the table is never treated as proven
    /// again.
    lost: bool,
}

impl Known {
    /// Returns a table of which nothing is proven.
    fn guessed(shape: Shape, load: Avma, entries: Vec<Avma>) -> Self {
        let Shape { at, form, .. } = shape;
        Self { at, form, entries, load, proven: false, local: false, checked: false, lost: false }
    }
}

fn entry_size(form: TableForm) -> u64 {
    match form {
        TableForm::Absolute8 => 8,
        TableForm::Relative4 { .. } => 4,
    }
}

/// Returns the blocks that end with a jump that may read a table. A jump through a fixed slot does not.
fn candidates(cfg: &Cfg) -> impl Iterator<Item = BlockId> + '_ {
    cfg.blocks.iter().zip(0u32..).filter_map(|(b, id)| {
        let last = &cfg.insts.get(b.last_inst()?.index())?.decoded;
        let maybe = match last.op0_kind() {
            OpKind::Register => true,
            OpKind::Memory => !last.is_ip_rel_memory_operand(),
            _ => false,
        };
        (maybe && matches!(b.term, Term::Indirect | Term::Switch { .. })).then_some(BlockId(id))
    })
}

/// Returns whether the graph has an indirect jump to resolve.
pub(crate) fn has_candidates(cfg: &Cfg) -> bool {
    candidates(cfg).next().is_some()
}

/// Analyses every indirect jump of a graph, replaces `known` by the results, and explores the new
/// destinations. Returns `true` if nothing changed: then all facts hold for the graph with all its edges.
pub(crate) fn round(
    cfg: &Cfg,
    input: &Input<'_>,
    ex: &mut Explorer<'_>,
    known: &mut FxHashMap<Avma, Known>,
    dropped: &mut FxHashSet<Avma>,
) -> Result<bool, Refusal> {
    let resolved = resolve(cfg, input, dropped);
    // A guess ends where another table begins, so all tables must be known before. Proven tables come first.
    let starts: FxHashSet<Avma> = resolved.iter().map(|(_, r)| r.shape.at).collect();
    let mut new: FxHashMap<Avma, Known> = FxHashMap::default();
    let mut guesses = Vec::new();
    for (jump, r) in resolved {
        let load = cfg.insts[r.shape.load.index()].at;
        let lost = known.get(&jump).is_some_and(|k| k.lost);
        let full =
            r.bound.filter(|_| !lost).and_then(|max| full_table(input, ex, r.shape, max)).filter(|_| {
                // A bound that relies on the program's promises must agree with the visible end of the table.
                let end = r.shape.at.add((r.bound.unwrap_or(0) + 1) * entry_size(r.shape.form));
                !r.trusting || starts.contains(&end) || entry(input, ex, r.shape, jump, end).is_none()
            });
        match full {
            Some(entries) if explore_all(ex, &entries)? => {
                let Resolved { local, checked, .. } = r;
                let table = Known::guessed(r.shape, load, entries);
                new.insert(jump, Known { proven: true, local, checked, ..table });
            }
            _ => guesses.push((jump, r.shape, load)),
        }
    }
    // Code behind proven tables comes first: it is certain, and a guess that contradicts it is wrong.
    let grown = new.iter().any(|(j, k)| known.get(j) != Some(k));
    if grown {
        for (jump, k) in known.drain() {
            new.entry(jump).or_insert(k);
        }
        *known = new;
        return Ok(false);
    }
    for (jump, shape, load) in guesses {
        if let Some(k) = known.get(&jump).filter(|k| !k.proven && k.at == shape.at && k.form == shape.form) {
            new.insert(jump, k.clone());
            continue;
        }
        let lost = known.get(&jump).is_some_and(|k| k.proven || k.lost);
        let entries = guess(input, ex, shape, jump, &starts)?;
        if entries.is_empty() {
            dropped.insert(jump);
        } else {
            new.insert(jump, Known { lost, ..Known::guessed(shape, load, entries) });
        }
    }
    let same = *known == new;
    *known = new;
    Ok(same)
}

/// Returns the tables that the indirect jumps of a graph read, by the jump's address.
fn resolve(cfg: &Cfg, input: &Input<'_>, dropped: &FxHashSet<Avma>) -> Vec<(Avma, Resolved)> {
    let mut machine = Machine::new();
    let facts = Facts::compute(cfg, &mut machine);
    let preds = predecessors(cfg);
    let mut resolved = Vec::new();
    for b in candidates(cfg) {
        let Some(jump) = cfg.insts_of(b).last() else { continue };
        if dropped.contains(&jump.at) {
            continue;
        }
        if let Some(r) = Search::new(cfg, &preds, &facts, &mut machine, input.constant).resolve(b) {
            resolved.push((jump.at, r));
        }
    }
    resolved
}

/// Returns all entries of a table whose greatest index is proven; `None` if they cannot be valid entries.
fn full_table(input: &Input<'_>, ex: &Explorer<'_>, shape: Shape, max: u64) -> Option<Vec<Avma>> {
    let size = entry_size(shape.form);
    let bytes = (input.constant)(AvmaRange::with_len(shape.at, (max + 1).checked_mul(size)?))?;
    let entries = decode(&bytes, shape.form);
    let wanted = usize::try_from(max + 1).ok()?;
    // gcc leaves gaps that are declared unreachable: these entries lead past the end of the function, or
    // nowhere. A table that consists mostly of such entries is no table.
    let inside = entries.iter().filter(|&&e| ex.inside(e)).count();
    (entries.len() == wanted && inside * 2 > wanted).then_some(entries)
}

fn decode(bytes: &[u8], form: TableForm) -> Vec<Avma> {
    let word = |c: &[u8]| c.iter().rev().fold(0u64, |w, &b| w << 8 | u64::from(b));
    match form {
        TableForm::Absolute8 => bytes.chunks_exact(8).map(|c| Avma(word(c))).collect(),
        TableForm::Relative4 { base } => bytes
            .chunks_exact(4)
            .map(|c| base.offset(i64::from(u32::try_from(word(c)).unwrap_or(0).cast_signed())))
            .collect(),
    }
}

/// Explores every entry inside; returns `false`, with nothing changed, if one is no instruction.
fn explore_all(ex: &mut Explorer<'_>, entries: &[Avma]) -> Result<bool, Refusal> {
    let back = ex.checkpoint();
    for &e in entries {
        if ex.inside(e) && !sound(ex.explore(e))? {
            ex.rollback(back);
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether exploring succeeded; an error if the function must be refused, whatever the reason.
fn sound(r: Result<(), Refusal>) -> Result<bool, Refusal> {
    match r {
        Ok(()) => Ok(true),
        Err(Refusal::OverlappingCode | Refusal::BadInstruction | Refusal::NoUnwindInfo) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Returns the entries from the start of a table up to the first that is no possible destination of this
/// jump.
fn guess(
    input: &Input<'_>,
    ex: &mut Explorer<'_>,
    shape: Shape,
    jump: Avma,
    starts: &FxHashSet<Avma>,
) -> Result<Vec<Avma>, Refusal> {
    let size = entry_size(shape.form);
    let mut entries = Vec::new();
    for n in 0..MAX_GUESS {
        let at = shape.at.add(n * size);
        if n > 0 && starts.contains(&at) {
            break;
        }
        let Some(to) = entry(input, ex, shape, jump, at) else { break };
        let back = ex.checkpoint();
        if !sound(ex.explore(to))? {
            ex.rollback(back);
            break;
        }
        entries.push(to);
    }
    Ok(entries)
}

/// Returns the destination at an address in or behind a table, if it looks like a destination.
fn entry(input: &Input<'_>, ex: &Explorer<'_>, shape: Shape, jump: Avma, at: Avma) -> Option<Avma> {
    let bytes = (input.constant)(AvmaRange::with_len(at, entry_size(shape.form)))?;
    let to = *decode(&bytes, shape.form).first()?;
    // A jump does not change the stack, so both ends compute the frame address in the same way.
    let same_frame = matches!((ex.row(jump), ex.row(to)), (Some(a), Some(b)) if same_cfa(a, b));
    (ex.inside(to) && !ex.is_interior(to) && same_frame).then_some(to)
}

/// Marks the tables of a finished graph that may be cloned.
pub(crate) fn prove(cfg: &mut Cfg, known: &FxHashMap<Avma, Known>) {
    let mut answers: [Option<Liveness>; 2] = [None, None];
    for b in 0..cfg.blocks.len() {
        let block = &cfg.blocks[b];
        let Term::Switch { table } = block.term else { continue };
        let Some(jump) = block.last_inst().and_then(|n| cfg.insts.get(n.index())) else { continue };
        let Some(k) = known.get(&jump.at).filter(|k| k.proven && k.local) else { continue };
        let q = if k.checked { Question::SwitchTarget } else { Question::LabelValue };
        let live = answers[usize::from(k.checked)].get_or_insert_with(|| Liveness::answer(cfg, q));
        let proven = proof::table_load(cfg, block, (k.load, k.at), live, q);
        cfg.tables[table.index()].cloneable = proven;
    }
}
