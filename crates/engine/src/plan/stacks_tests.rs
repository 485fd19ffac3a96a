use super::*;
use crate::plan::shuffle::Rng;
use crate::plan::test_candidate::{cloned, cloned_again, cloned_inlined};
use code::{BlockId, Cfg, Dest, Term};
use emit::Unroll;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use profile::{Counts, Rejected};
use std::collections::VecDeque;
use std::fmt::Write;

const ENTRY: u64 = 0x1000;
const TEXT: Avma = Avma(0x10_0000);
/// The caller of the function.
const HOME: Avma = Avma(0x8000);
/// An unknown function.
const OTHER: Avma = Avma(0x9000);
const DEPTH: usize = 32;

/// Returns a function of some blocks: nops, perhaps a call, and a random end.
fn random(rng: &mut Rng) -> Cfg {
    let n = 2 + rng.below(7);
    let blocks: Vec<(usize, bool, usize, usize)> =
        (0..n).map(|_| (1 + rng.below(3), rng.below(3) == 0, rng.below(6), rng.below(n))).collect();
    let size = |&(nops, call, end, _): &(usize, bool, usize, usize), last: bool| {
        let end = match end {
            _ if last => 1,
            0 => 1,
            1 => 0,
            2 => 5,
            _ => 6,
        };
        (nops + if call { 6 } else { 0 } + end) as u64
    };
    let mut starts = vec![ENTRY];
    for (i, b) in blocks.iter().enumerate() {
        starts.push(starts[i] + size(b, i + 1 == n));
    }
    let relative = |op: &str, end: u64, to: u64| {
        let rel = to.wrapping_sub(end).to_le_bytes();
        rel[..4].iter().fold(op.to_owned(), |s, b| format!("{s} {b:02x}"))
    };
    let mut t = format!("function {ENTRY:#x}\npart {ENTRY:#x}..{:#x}\n", starts[n]);
    for (b, &(nops, call, end, to)) in blocks.iter().enumerate() {
        let _ = writeln!(t, "block b{b} {:#x}", starts[b]);
        t.push_str(&"90\n".repeat(nops));
        if call {
            let _ = writeln!(t, "{}\n90", relative("e8", starts[b] + nops as u64 + 5, OTHER.0));
        }
        let (next, ends) = (b + 1, starts[b + 1]);
        // Avoid two edges to one place: they cannot be distinguished.
        let to = if to == next { b } else { to };
        let forward = b + 1 + to % (n - b - 1).max(1);
        let _ = match end {
            _ if next == n => writeln!(t, "c3\nreturn"),
            0 => writeln!(t, "c3\nreturn"),
            1 => writeln!(t, "fall b{next}"),
            2 => writeln!(t, "{}\njump b{forward}", relative("e9", ends, starts[forward])),
            _ => writeln!(t, "{}\ncond e b{to} else b{next}", relative("0f 84", ends, starts[to])),
        };
    }
    code::parse(&t).unwrap()
}

/// Walks through the original. Returns which conditional branches were taken, and the counts.
fn walk(cfg: &Cfg, rng: &mut Rng, entries: usize) -> (VecDeque<bool>, Counts) {
    let (mut ways, mut counts, mut left) = (VecDeque::new(), Counts::zero(cfg), 500);
    for _ in 0..entries {
        counts.entry += 1;
        counts.blocks[0].inflow += 1;
        let mut b = 0;
        loop {
            counts.blocks[b].count += 1;
            let way = match cfg.blocks[b].term {
                Term::Cond { .. } => {
                    let taken = left > 0 && rng.below(2) == 0;
                    left -= usize::from(taken);
                    ways.push_back(taken);
                    usize::from(!taken)
                }
                Term::Return => {
                    counts.blocks[b].outflow += 1;
                    break;
                }
                _ => 0,
            };
            counts.blocks[b].edges[way] += 1;
            let mut to = Vec::new();
            cfg.successors(BlockId(u32::try_from(b).unwrap()), |d| to.push(d));
            let Dest::Block(next) = to[way] else { panic!("the function is whole") };
            b = next.index();
        }
    }
    (ways, counts)
}

/// A walk with clones, recording the taken branches.
struct Clone<'a> {
    cfg: &'a Cfg,
    map: &'a AddressMap,
    text: &'a [u8],
    ways: VecDeque<bool>,
    taken: Vec<Taken>,
    /// The original instruction that is replaced by a jump to its copy.
    site: Avma,
}

impl Clone<'_> {
    fn decode(&self, at: Avma) -> Instruction {
        if self.map.fragments().contains(at) {
            let offset = usize::try_from(at.since(TEXT).unwrap()).unwrap();
            Decoder::with_ip(64, &self.text[offset..], at.0, DecoderOptions::NONE).decode()
        } else {
            self.cfg.insts.iter().find(|i| i.at == at).unwrap().decoded
        }
    }

    fn call(&mut self, redirected: bool) {
        let [clone, behind] = [Avma(ENTRY), self.site].map(|at| self.map.to_clone(at).unwrap());
        let mut at = if redirected { clone } else { Avma(ENTRY) };
        self.taken.push(Taken { from: HOME, to: at });
        while at != HOME {
            let inst = self.decode(at);
            let next = Avma(inst.next_ip());
            let branches_to = if at == self.site {
                Some(behind)
            } else {
                match inst.flow_control() {
                    FlowControl::Return => Some(HOME),
                    FlowControl::UnconditionalBranch => Some(Avma(inst.near_branch64())),
                    FlowControl::ConditionalBranch => {
                        let to = Avma(inst.near_branch64());
                        self.takes(at, to).then_some(to)
                    }
                    FlowControl::Call => {
                        self.taken.push(Taken { from: at, to: OTHER });
                        self.taken.push(Taken { from: OTHER, to: next });
                        None
                    }
                    _ => None,
                }
            };
            if let Some(to) = branches_to {
                self.taken.push(Taken { from: at, to });
            }
            at = branches_to.unwrap_or(next);
        }
    }

    /// Returns whether the branch at `at` to `to` is taken, given the original's next decision.
    fn takes(&mut self, at: Avma, to: Avma) -> bool {
        let original = self.map.to_original(at).unwrap_or(at);
        let taken = self.ways.pop_front().unwrap();
        let inst = self.cfg.insts.iter().find(|i| i.at == original).unwrap();
        let goes = if taken { Avma(inst.decoded.near_branch64()) } else { inst.end() };
        match self.map.fragments().contains(at) {
            true => self.map.to_clone(goes).unwrap_or(goes) == to,
            false => goes == to,
        }
    }
}

#[test]
fn stacks_of_clones_give_the_originals_counts() {
    let (mut ran, mut differ, mut further, mut in_mid_block) = (0, 0, 0, 0);
    for seed in 1..300 {
        let mut rng = Rng::new(seed);
        let cfg = random(&mut rng);
        let mut order: Vec<BlockId> = cfg.block_ids().skip(1).filter(|_| rng.below(4) != 0).collect();
        rng.shuffle(&mut order);
        order.insert(0, BlockId(0));
        let hot = 1 + rng.below(order.len());
        let mut copies = || 1 + u32::try_from(rng.below(4)).unwrap();
        let loops = emit::loops(&cfg, &order).into_iter();
        let unrolls: Vec<_> = loops.map(|r| Unroll { copies: copies(), ..r }).collect();
        let out = cloned_again(&cfg, order, hot, &unrolls, TEXT);
        further += out.stats.unrolled;
        let maps = [out.clones[0].map.clone()];
        let (ways, exact) = walk(&cfg, &mut rng, 20);
        let outside = Taken { from: Avma(0x7000), to: HOME };
        // Choose any instruction that the clone has.
        let copied: Vec<Avma> =
            cfg.insts.iter().map(|i| i.at).filter(|&at| maps[0].to_clone(at).is_some()).collect();
        let site = copied[rng.below(copied.len())];
        in_mid_block += u32::from(cfg.blocks.iter().all(|b| b.range.start != site));
        let (map, text, taken) = (&maps[0], &out.text[..], vec![outside]);
        let mut clone = Clone { cfg: &cfg, map, text, ways, taken, site };
        (0..20).for_each(|_| clone.call(rng.below(2) == 0));
        assert!(clone.ways.is_empty());

        let mut stacks = BranchStacks::default();
        for (i, _) in clone.taken.iter().enumerate().filter(|(i, _)| i % (DEPTH - 1) == 0) {
            let end = (i + DEPTH).min(clone.taken.len());
            stacks.add(clone.taken[i..end].iter().rev().map(|&t| Some(t)));
        }
        let got = carried_back(&stacks, &maps, &Originals::of(&[&cfg])).counts(&[&cfg]);
        let elsewhere = got.rejected.elsewhere;
        assert_eq!(got.rejected, Rejected { elsewhere, ..Rejected::default() }, "seed {seed}\n{cfg}");
        assert_eq!(got.functions, std::slice::from_ref(&exact), "seed {seed}\n{cfg}");
        ran += exact.blocks.iter().map(|b| b.count).sum::<u64>();
        // Without translation, the stacks would give wrong counts.
        differ += u32::from(stacks.counts(&[&cfg]).functions != [exact]);
    }
    assert!(ran > 5_000 && differ > 200 && further > 10, "{ran} {differ} {further}");
    assert!(in_mid_block > 100, "{in_mid_block}");
}

#[test]
fn a_call_of_a_callees_rest_counts_as_the_original_call() {
    let (cfgs, out) = cloned_inlined(TEXT);
    let maps: Vec<AddressMap> = out.clones.iter().map(|c| c.map.clone()).collect();
    let [caller, callee] = &maps[..] else { panic!("two clones") };
    let start = caller.fragments().start();
    let aside = caller.fragments().ranges().nth(1).unwrap().start;
    let [rest, back] = [(callee, 0x2008), (caller, 0x1005)].map(|(m, at)| m.to_clone(Avma(at)).unwrap());
    let mut stacks = BranchStacks::default();
    // test; je aside; aside: call rest; ret; jmp back.
    let way = [(start.add(3), aside), (aside, rest), (rest, aside.add(5)), (aside.add(5), back)];
    way.into_iter().for_each(|(from, to)| stacks.add_taken(Taken { from, to }, 7));
    let originals = Originals::of(&cfgs.iter().collect::<Vec<_>>());
    let carried = carried_back(&stacks, &maps, &originals);
    let mut taken: Vec<_> = carried.taken().into_iter().map(|(t, n)| (t.from.0, t.to.0, n)).collect();
    taken.sort_unstable();
    assert_eq!(taken, [(0x1000, 0x2008, 7), (0x2008, 0x1005, 7)]);
}

#[test]
fn any_addresses_are_safe() {
    let cfg = random(&mut Rng::new(3));
    let maps = [cloned(&cfg, cfg.block_ids().collect(), 1, TEXT).clones[0].map.clone()];
    let mut rng = Rng::new(9);
    for _ in 0..2000 {
        let mut stacks = BranchStacks::default();
        let mut at = || match rng.below(5) {
            0 => Avma(u64::try_from(rng.below(usize::MAX)).unwrap()),
            1 | 2 => Avma(ENTRY + rng.below(120) as u64),
            _ => TEXT.add(rng.below(120) as u64),
        };
        stacks.add_run(Run { first: at(), last: at() }, 1);
        stacks.add_taken(Taken { from: at(), to: at() }, u64::MAX);
        let counts = carried_back(&stacks, &maps, &Originals::of(&[&cfg])).counts(&[&cfg]);
        assert!(counts.functions[0].is_consistent(&cfg));
    }
}
