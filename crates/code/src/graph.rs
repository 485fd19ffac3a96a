//! Builds blocks from decoded instructions.

use crate::decode::Flow;
use crate::explore::Explorer;
use crate::table::Known;
use crate::{Block, BlockId, Cfg, Dest, Inst, JumpTable, TableId, Term};
use addr::{Avma, AvmaRange};
use rustc_hash::FxHashMap;

/// Builds the graph of the explored code. `tables` holds the known tables of indirect jumps, by the jump's
/// address. The graph's tables do not have [`JumpTable::cloneable`] yet.
pub(crate) fn build(
    entry: Avma,
    landing_pads: &[Avma],
    ex: &Explorer<'_>,
    tables: &FxHashMap<Avma, Known>,
) -> Cfg {
    let order = ex.sorted();
    let mut runs = split(&order, ex);
    // INVARIANT: block 0 starts at the entry.
    if let Some(e) = runs.iter().position(|r| ex.found[r[0] as usize].inst.at == entry) {
        runs[..=e].rotate_right(1);
    }
    let starts: FxHashMap<Avma, BlockId> =
        runs.iter().zip(0..).map(|(r, b)| (ex.found[r[0] as usize].inst.at, BlockId(b))).collect();
    let dest = |at: Avma| starts.get(&at).map_or(Dest::Outside(at), |&b| Dest::Block(b));

    let mut cfg = Cfg {
        entry,
        parts: ex.parts(),
        insts: Vec::with_capacity(order.len()),
        blocks: Vec::with_capacity(runs.len()),
        tables: Vec::new(),
        functions: Vec::new(),
    };
    let mut first = 0u32;
    for run in &runs {
        let insts: Vec<Inst> = run.iter().map(|&i| ex.found[i as usize].inst.clone()).collect();
        let (Some(head), Some(last)) = (insts.first(), insts.last()) else { continue };
        let range = AvmaRange::new(head.at, last.end());
        let flow = run.last().map_or(Flow::Trap, |&i| ex.found[i as usize].flow);
        let mut term = term(flow, range.end, &dest);
        if let (Term::Indirect, Some(k)) = (&term, tables.get(&last.at).filter(|k| !k.entries.is_empty())) {
            term = Term::Switch { table: TableId(u32::try_from(cfg.tables.len()).unwrap_or(u32::MAX)) };
            let targets = k.entries.iter().map(|&e| dest(e)).collect();
            cfg.tables.push(JumpTable { at: k.at, form: k.form, targets, cloneable: None });
        }
        let next = first + u32::try_from(insts.len()).unwrap_or(u32::MAX);
        cfg.blocks.push(Block {
            range,
            insts: first..next,
            term,
            landing_pad: landing_pads.contains(&head.at),
        });
        first = next;
        cfg.insts.extend(insts);
    }
    cfg
}

/// Returns the end of a block whose last instruction ends at `end`. No table is known.
fn term(flow: Flow, end: Avma, dest: &dyn Fn(Avma) -> Dest) -> Term {
    match flow {
        Flow::Next | Flow::Call => Term::Fall { next: dest(end) },
        Flow::NoReturnCall => Term::NoReturnCall { next: end },
        Flow::Jump(to) => Term::Jump { to: dest(to) },
        Flow::Cond(cc, to) => Term::Cond { cc, taken: dest(to), fall: dest(end) },
        Flow::CondShort(to) => Term::CondShort { taken: dest(to), fall: dest(end) },
        Flow::Return => Term::Return,
        Flow::Trap | Flow::Leave => Term::Trap,
        Flow::Indirect => Term::Indirect,
    }
}

/// Splits sorted instructions into runs entered only at their start and left only at their end.
fn split(order: &[u32], ex: &Explorer<'_>) -> Vec<Vec<u32>> {
    let mut runs: Vec<Vec<u32>> = Vec::new();
    let mut ended: Option<Avma> = None;
    for &i in order {
        let f = &ex.found[i as usize];
        let goes_on = ended == Some(f.inst.at) && !ex.is_leader(f.inst.at);
        match runs.last_mut().filter(|_| goes_on) {
            Some(run) => run.push(i),
            None => runs.push(vec![i]),
        }
        ended = matches!(f.flow, Flow::Next | Flow::Call).then(|| f.inst.end());
    }
    runs
}

/// Removes unreachable blocks: code that a guessed table reached before the guess was dropped.
pub(crate) fn prune(cfg: &mut Cfg) {
    let mut keep = vec![false; cfg.blocks.len()];
    let mut work: Vec<usize> =
        cfg.blocks.iter().enumerate().filter(|(n, b)| *n == 0 || b.landing_pad).map(|(n, _)| n).collect();
    while let Some(b) = work.pop() {
        if std::mem::replace(&mut keep[b], true) {
            continue;
        }
        cfg.successors(BlockId(u32::try_from(b).unwrap_or(u32::MAX)), |d| {
            if let Dest::Block(to) = d {
                work.push(to.index());
            }
        });
    }
    if keep.iter().all(|&k| k) {
        return;
    }
    let mut next = 0u32;
    let ids: Vec<BlockId> = keep
        .iter()
        .map(|&k| {
            let id = BlockId(next);
            next += u32::from(k);
            id
        })
        .collect();
    let moved = |d: &mut Dest| {
        if let Dest::Block(b) = d {
            *b = ids[b.index()];
        }
    };
    let (blocks, insts) = (std::mem::take(&mut cfg.blocks), std::mem::take(&mut cfg.insts));
    let mut tables = Vec::new();
    for (mut b, _) in blocks.into_iter().zip(keep).filter(|(_, k)| *k) {
        let first = u32::try_from(cfg.insts.len()).unwrap_or(u32::MAX);
        cfg.insts.extend_from_slice(&insts[b.insts.start as usize..b.insts.end as usize]);
        b.insts = first..first + (b.insts.end - b.insts.start);
        match &mut b.term {
            Term::Fall { next } => moved(next),
            Term::Jump { to } => moved(to),
            Term::Cond { taken, fall, .. } | Term::CondShort { taken, fall } => {
                moved(taken);
                moved(fall);
            }
            Term::Switch { table } => {
                let mut t = cfg.tables[table.index()].clone();
                t.targets.iter_mut().for_each(moved);
                *table = TableId(u32::try_from(tables.len()).unwrap_or(u32::MAX));
                tables.push(t);
            }
            Term::Indirect | Term::Return | Term::NoReturnCall { .. } | Term::Trap => {}
        }
        cfg.blocks.push(b);
    }
    cfg.tables = tables;
}
