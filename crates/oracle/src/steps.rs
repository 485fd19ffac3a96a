//! Counts executions one instruction at a time, as a reference for counters.
//!
//! A thread is stopped where it enters a function, and a twin of it is stepped until the function returns.
//! The passed edges follow from the graphs alone, so the result does not depend on how counters work.
//!
//! | the twin goes on | passed |
//! |---|---|
//! | from the last instruction of a block to where an edge leads | that edge |
//! | from there to anywhere else, or behind an instruction that does not go on | the block is left by no edge |
//! | from a return to behind the call that ends a block | that block's edge to there |
//! | to the start of a block | that block; it is entered from outside unless one of the above led there inside the graph |

use crate::Error;
use addr::{Avma, ReadMemory};
use code::{BlockId, Cfg, Dest, Inst, Term};
use iced_x86::FlowControl;
use profile::Counts;
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::Duration;
use tracee::{Pid, Process, Run, Stepped, Tid, Twin, Watched};

/// Most instructions that are stepped.
const MOST_STEPS: u64 = 50_000_000;

/// Counts what the main thread executes in the functions of `cfgs`, from its next entry to the function at
/// `entry` until that function returns. `start` makes the thread come there; the thread itself continues
/// meanwhile. The function must not make a system call. `each` gets every step: the addresses of the executed
/// and of the next instruction.
///
/// # Errors
/// [`Error::NotStepped`] if the thread does not get there within `patience`, or its twin does not get to the
/// end.
pub fn count_steps(
    pid: Pid,
    entry: Avma,
    cfgs: &[&Cfg],
    start: &mut dyn FnMut(),
    patience: Duration,
    each: &mut dyn FnMut(Avma, Avma),
) -> Result<Vec<Counts>, Error> {
    let process = Process::open(pid)?;
    let mut twin = {
        let mut thread = Watched::seize(&process, Tid(pid.0))?;
        start();
        if thread.run_to(&[entry], patience)? != Run::Hit {
            return Err(Error::NotStepped("the thread does not get to the function"));
        }
        thread.twin()?
    };
    let dead = twin.process().pid();
    let counted = step_through(&mut twin, entry, cfgs, each);
    drop(twin);
    tracee::with_one_stopped(&process, |remote| tracee::bury(remote, &[dead]))?;
    counted
}

fn step_through(
    twin: &mut Twin,
    entry: Avma,
    cfgs: &[&Cfg],
    each: &mut dyn FnMut(Avma, Avma),
) -> Result<Vec<Counts>, Error> {
    let mut tally = Tally::new(cfgs);
    let sp = twin.regs()?.0.rsp;
    let home = twin.process().u64(Avma(sp))?;
    tally.comes_to(entry, None);
    let mut at = entry;
    for _ in 0..MOST_STEPS {
        if twin.step()? != Stepped::Done {
            return Err(Error::NotStepped("the twin raised a signal"));
        }
        let regs = twin.regs()?;
        let next = regs.ip();
        tally.passes(at, next);
        each(at, next);
        if next.0 == home && regs.0.rsp > sp {
            return Ok(tally.functions.into_iter().map(|f| f.counts).collect());
        }
        at = next;
    }
    Err(Error::NotStepped("the function does not return"))
}

/// A block: the index of its graph, and its own number.
type Place = (usize, BlockId);

/// A function and what was counted in it.
struct Counted<'a> {
    cfg: &'a Cfg,
    counts: Counts,
}

struct Tally<'a> {
    functions: Vec<Counted<'a>>,
    /// Blocks by the address of their first instruction.
    starts: FxHashMap<Avma, Place>,
    /// Blocks by the address of their last one.
    lasts: FxHashMap<Avma, Place>,
    /// Blocks that end in a call and continue behind it, by the address behind the call.
    calls: FxHashMap<Avma, Place>,
    /// Instructions that are not returns.
    others: FxHashSet<Avma>,
    /// Repeated string instructions, which take several steps at one address.
    repeated: FxHashSet<Avma>,
}

impl<'a> Tally<'a> {
    fn new(cfgs: &'a [&'a Cfg]) -> Self {
        let mut tally = Self {
            functions: cfgs.iter().map(|&cfg| Counted { cfg, counts: Counts::zero(cfg) }).collect(),
            starts: FxHashMap::default(),
            lasts: FxHashMap::default(),
            calls: FxHashMap::default(),
            others: FxHashSet::default(),
            repeated: FxHashSet::default(),
        };
        for (i, cfg) in cfgs.iter().enumerate() {
            for (id, block) in cfg.block_ids().zip(&cfg.blocks) {
                tally.starts.insert(block.range.start, (i, id));
                if let Some(last) = cfg.insts_of(id).last() {
                    if matches!(block.term, Term::Fall { .. }) && is_call(last) {
                        tally.calls.insert(block.range.end, (i, id));
                    } else {
                        tally.lasts.insert(last.at, (i, id));
                    }
                }
            }
            for inst in &cfg.insts {
                let d = &inst.decoded;
                if d.flow_control() != FlowControl::Return {
                    tally.others.insert(inst.at);
                }
                if d.is_string_instruction() && (d.has_rep_prefix() || d.has_repne_prefix()) {
                    tally.repeated.insert(inst.at);
                }
            }
        }
        tally
    }

    /// Counts the step of the twin from the instruction at `at` to `next`.
    fn passes(&mut self, at: Avma, next: Avma) {
        if at == next && self.repeated.contains(&at) {
            return;
        }
        let mut within = None;
        if let Some(&(i, b)) = self.lasts.get(&at) {
            let (mut index, mut edge) = (0, None);
            let Counted { cfg, counts } = &mut self.functions[i];
            cfg.successors(b, |dest| {
                if edge.is_none() && start_of(cfg, dest) == next {
                    edge = Some((index, dest));
                }
                index += 1;
            });
            match edge {
                Some((index, dest)) => {
                    counts.blocks[b.index()].edges[index] += 1;
                    within = matches!(dest, Dest::Block(_)).then_some(i);
                }
                None => counts.blocks[b.index()].outflow += 1,
            }
        }
        // A return from code outside the graphs leads here as well. A step from an instruction in a graph
        // that is not a return is a jump or a call to this address.
        if let Some(&(i, b)) = self.calls.get(&next).filter(|_| !self.others.contains(&at)) {
            self.functions[i].counts.blocks[b.index()].edges[0] += 1;
            within = Some(i);
        }
        self.comes_to(next, within);
    }

    /// Counts the arrival of the twin at `next`, before it executes the instruction there; `within` is the
    /// graph that has the edge to it, if any.
    fn comes_to(&mut self, next: Avma, within: Option<usize>) {
        if let Some(&(i, b)) = self.starts.get(&next) {
            let counts = &mut self.functions[i].counts;
            let block = &mut counts.blocks[b.index()];
            block.count += 1;
            if within != Some(i) {
                block.inflow += 1;
                counts.entry += u64::from(b.0 == 0);
            }
        }
    }
}

fn is_call(inst: &Inst) -> bool {
    matches!(inst.decoded.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

fn start_of(cfg: &Cfg, dest: Dest) -> Avma {
    match dest {
        Dest::Block(b) => cfg.blocks[b.index()].range.start,
        Dest::Outside(at) => at,
    }
}
