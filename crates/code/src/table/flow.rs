//! Forward dataflow: the known value of each general register at the start of a block.
//!
//! Compilers hoist a table's address out of loops, and check a bound long before the jump. They rely on the
//! upper half of a register that was zeroed much earlier. The paths that [`super::path`] follows are too
//! short for these cases.

use super::eval::Machine;
use super::value::{Node, V, mask};
use crate::{BlockId, Cfg, Dest, Term};

/// The known value of a register at one place, over all paths to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// This constant.
    Const(u64),
    /// At most this value; true if a compare proves it.
    AtMost(u64, bool),
}

const NOTHING: Known = Known::AtMost(u64::MAX, false);

/// How often the facts at a block's start may change before bounds are rounded up to register widths.
const PATIENCE: u8 = 6;

impl Known {
    fn limit(self) -> (u64, bool) {
        match self {
            Known::AtMost(max, compared) => (max, compared),
            Known::Const(c) => (c, false),
        }
    }

    fn meet(self, o: Known) -> Known {
        if self == o {
            return self;
        }
        let ((a, x), (b, y)) = (self.limit(), o.limit());
        Known::AtMost(a.max(b), x && y)
    }

    /// Returns the bound of the narrowest register width that contains it.
    fn widened(self) -> Known {
        match self {
            Known::Const(_) => self,
            Known::AtMost(max, _) => Known::AtMost(class(max), false),
        }
    }
}

/// Returns the greatest value of the narrowest register width that contains `max`.
fn class(max: u64) -> u64 {
    [8u8, 16, 32].into_iter().map(mask).find(|&b| max <= b).unwrap_or(u64::MAX)
}

/// The known values at each block's start.
pub(super) struct Facts {
    starts: Vec<Start>,
}

/// The state at a block's start.
#[derive(Clone, Default)]
struct Start {
    /// The known values; `None` if control was not seen to reach it.
    known: Option<[Known; 16]>,
    /// How often they have changed.
    changes: u8,
}

impl Facts {
    pub(super) fn compute(cfg: &Cfg, m: &mut Machine) -> Self {
        let mut facts = Solver { starts: vec![Start::default(); cfg.blocks.len()], work: Vec::new() };
        for (b, id) in cfg.blocks.iter().zip(0u32..) {
            if id == 0 || b.landing_pad {
                facts.starts[id as usize].known = Some([NOTHING; 16]);
                facts.work.push(id);
            }
        }
        // An unproven fact here would be used without a record.
        m.strict = true;
        while let Some(b) = facts.work.pop() {
            let Some(start) = facts.starts[b as usize].known else { continue };
            begin(m, &start);
            let block = &cfg.blocks[b as usize];
            for n in block.inst_ids() {
                m.step(&cfg.insts[n.index()].decoded, n);
            }
            if let Term::Cond { cc, taken, fall } = block.term
                && taken != fall
            {
                let before = m.values.facts();
                for (to, is_taken) in [(taken, true), (fall, false)] {
                    m.values.set_facts(before.clone());
                    m.assume(cc, is_taken);
                    facts.reach(to, end(m));
                }
            } else {
                let end = end(m);
                cfg.successors(BlockId(b), |to| facts.reach(to, end));
            }
        }
        m.strict = false;
        Self { starts: facts.starts }
    }

    /// Resets a machine to the start of a block.
    pub(super) fn begin(&self, m: &mut Machine, b: BlockId) {
        begin(m, &self.starts[b.index()].known.unwrap_or([NOTHING; 16]));
    }
}

struct Solver {
    starts: Vec<Start>,
    /// Blocks that are still to be followed from.
    work: Vec<u32>,
}

impl Solver {
    /// Adds the fact that control reaches `to` in this state.
    fn reach(&mut self, to: Dest, state: [Known; 16]) {
        let Dest::Block(to) = to else { return };
        let start = &mut self.starts[to.index()];
        let Some(old) = start.known else {
            start.known = Some(state);
            self.work.push(to.0);
            return;
        };
        let new = std::array::from_fn(|r| match old[r].meet(state[r]) {
            changed if changed != old[r] && start.changes >= PATIENCE => changed.widened(),
            same => same,
        });
        if new != old {
            *start = Start { known: Some(new), changes: start.changes.saturating_add(1) };
            self.work.push(to.0);
        }
    }
}

fn begin(m: &mut Machine, known: &[Known; 16]) {
    m.reset();
    for (r, k) in known.iter().enumerate() {
        m.regs[r] = match *k {
            Known::Const(c) => m.values.constant(c),
            Known::AtMost(u64::MAX, _) => continue,
            Known::AtMost(max, true) => {
                let v = m.values.upto(class(max));
                m.values.learn(v, max);
                v
            }
            Known::AtMost(max, false) => m.values.upto(max),
        };
    }
}

fn end(m: &Machine) -> [Known; 16] {
    m.regs.map(|v| seen(m, v))
}

fn seen(m: &Machine, v: V) -> Known {
    match m.values.node(v) {
        Node::Const(c) => Known::Const(c),
        _ => {
            let max = m.values.bound(v);
            Known::AtMost(max, max < m.values.width_bound(v))
        }
    }
}
