//! Small graphs for tests: blocks of so many 4-byte instructions, ended as told.

use addr::{Addr, Avma, AvmaRange};
use code::{Block, BlockId, Cfg, Dest, Inst, InstBytes, Term};

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
