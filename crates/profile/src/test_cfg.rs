//! Small graphs for tests, from blocks of 4-byte instructions with given ends; also CPU time.

use addr::{Addr, Avma, AvmaRange};
use code::{Block, BlockId, Cfg, Dest, Inst, InstBytes, JumpTable, TableForm, TableId, Term};
use proptest::prelude::*;
use std::time::Duration;

pub(crate) const OUT: Dest = Dest::Outside(Avma(0x9000));

pub(crate) fn to(b: u32) -> Dest {
    Dest::Block(BlockId(b))
}

pub(crate) fn fall(next: u32) -> Term {
    Term::Fall { next: to(next) }
}

pub(crate) fn cond(taken: u32, fall: u32) -> Term {
    Term::CondShort { taken: to(taken), fall: to(fall) }
}

pub(crate) fn ret() -> Term {
    Term::Return
}

pub(crate) fn cfg_at(entry: u64, blocks: &[(u32, Term)]) -> Cfg {
    let mut cfg = Cfg {
        entry: Avma(entry),
        parts: Vec::new(),
        insts: Vec::new(),
        blocks: Vec::new(),
        tables: Vec::new(),
        functions: Vec::new(),
    };
    let mut at = Avma(entry);
    for (len, term) in blocks {
        let first = u32::try_from(cfg.insts.len()).unwrap();
        let start = at;
        for _ in 0..*len {
            let bytes = InstBytes::new(&[0x0f, 0x1f, 0x40, 0x00]).unwrap();
            cfg.insts.push(Inst { at, decoded: Default::default(), bytes });
            at = at.add(4);
        }
        cfg.blocks.push(Block {
            range: AvmaRange::new(start, at),
            insts: first..first + len,
            term: term.clone(),
            landing_pad: false,
        });
    }
    cfg.parts.push(AvmaRange::new(Avma(entry), at));
    cfg
}

fn arb_dest(n: u32) -> impl Strategy<Value = Dest> {
    prop_oneof![6 => (0..n).prop_map(to), 1 => Just(OUT)]
}

pub(crate) fn arb_term(n: u32) -> impl Strategy<Value = Term> {
    (arb_dest(n), arb_dest(n), 0..12).prop_map(|(a, b, kind)| match kind {
        0 => Term::Return,
        1 => Term::Indirect,
        2 => Term::Trap,
        3 => Term::NoReturnCall { next: Avma(1) },
        4 | 5 => Term::Fall { next: a },
        6 => Term::Jump { to: a },
        _ => Term::CondShort { taken: a, fall: b },
    })
}

/// Returns a strategy for graphs of fewer than `most` blocks with every kind of block end, jump tables and
/// landing pads.
pub(crate) fn arb_cfg(most: u32) -> impl Strategy<Value = Cfg> {
    (1..most)
        .prop_flat_map(|n| {
            let n_blocks = n as usize;
            (
                prop::collection::vec((1u32..6, arb_term(n)), n_blocks),
                prop::collection::vec((0..n_blocks, prop::collection::vec(arb_dest(n), 1..6)), 0..3),
                prop::collection::vec(0..n_blocks, 0..2),
            )
        })
        .prop_map(|(blocks, switches, pads)| {
            let mut cfg = cfg_at(0x1000, &blocks);
            for (table, (b, targets)) in (0u32..).map(TableId).zip(switches) {
                cfg.blocks[b].term = Term::Switch { table };
                let at = Avma(0x8000);
                cfg.tables.push(JumpTable { at, form: TableForm::Absolute8, targets, cloneable: None });
            }
            for b in pads {
                cfg.blocks[b].landing_pad = true;
            }
            cfg
        })
}

/// Returns the CPU time of this thread, so that other work on the machine does not count.
pub(crate) fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}
