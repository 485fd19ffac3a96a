//! Forward dataflow: what each general register certainly is where a block begins.
//!
//! Compilers hoist a table's address out of loops and rely on the upper half of a register being zero since far
//! back; the paths that [`super::path`] follows do not reach so far.

use super::eval::Machine;
use super::value::{Node, V, mask};
use crate::{BlockId, Cfg, Dest};

/// What a register is at one place, over all ways to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// This constant.
    Const(u64),
    /// Below 2^n.
    Bits(u8),
}

const NOTHING: Known = Known::Bits(64);

impl Known {
    fn bits(self) -> u8 {
        match self {
            Known::Bits(b) => b,
            Known::Const(c) => class(c),
        }
    }

    fn meet(self, o: Known) -> Known {
        if self == o { self } else { Known::Bits(self.bits().max(o.bits())) }
    }
}

/// The narrowest register width that holds a value.
fn class(max: u64) -> u8 {
    [8u8, 16, 32].into_iter().find(|&b| max <= mask(b)).unwrap_or(64)
}

/// What is known at each block's start; `None` where control was not seen to arrive.
pub(super) struct Facts {
    at: Vec<Option<[Known; 16]>>,
}

impl Facts {
    pub(super) fn compute(cfg: &Cfg, m: &mut Machine) -> Self {
        let mut at: Vec<Option<[Known; 16]>> = vec![None; cfg.blocks.len()];
        let mut work: Vec<u32> = Vec::new();
        for (b, id) in cfg.blocks.iter().zip(0u32..) {
            if id == 0 || b.landing_pad {
                at[id as usize] = Some([NOTHING; 16]);
                work.push(id);
            }
        }
        while let Some(b) = work.pop() {
            let Some(start) = at[b as usize] else { continue };
            begin(m, &start);
            let block = &cfg.blocks[b as usize];
            for n in block.insts.clone() {
                m.step(&cfg.insts[n as usize].decoded, n);
            }
            let end: [Known; 16] = m.regs.map(|v| seen(m, v));
            cfg.successors(BlockId(b), |d| {
                let Dest::Block(to) = d else { return };
                let old = at[to.index()];
                let new = match old {
                    None => end,
                    Some(o) => std::array::from_fn(|r| o[r].meet(end[r])),
                };
                if old != Some(new) {
                    at[to.index()] = Some(new);
                    work.push(to.0);
                }
            });
        }
        Self { at }
    }

    /// Sets a machine to the start of a block.
    pub(super) fn begin(&self, m: &mut Machine, b: BlockId) {
        begin(m, &self.at[b.index()].unwrap_or([NOTHING; 16]));
    }
}

fn begin(m: &mut Machine, known: &[Known; 16]) {
    m.reset();
    for (r, k) in known.iter().enumerate() {
        match *k {
            Known::Const(c) => m.regs[r] = m.values.constant(c),
            Known::Bits(b) => m.regs[r] = m.values.zext(m.regs[r], b),
        }
    }
}

fn seen(m: &Machine, v: V) -> Known {
    match m.values.node(v) {
        Node::Const(c) => Known::Const(c),
        _ => Known::Bits(class(m.values.width_bound(v))),
    }
}
