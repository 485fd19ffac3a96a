use super::*;
use addr::Addr;
use std::collections::VecDeque;
use std::fmt::Write;
use testkit::Rng;

const DEPTH: usize = 32;
/// The address outside all functions from which they are called and to which they return.
const WORLD: Avma = Avma(0x100);

/// The end of a block of a test program.
#[derive(Clone, Copy, Debug)]
enum End {
    Return,
    Fall,
    Jump(usize),
    Cond(usize),
    Tail(usize),
    /// An indirect jump to another function.
    Indirect(usize),
}

#[derive(Clone, Debug)]
struct TestBlock {
    nops: u64,
    /// A call of another function, and the number of nops behind it.
    call: Option<(usize, u64)>,
    end: End,
}

impl TestBlock {
    fn size(&self) -> u64 {
        let call = self.call.map_or(0, |(_, nops)| 5 + nops);
        let end = match self.end {
            End::Return => 1,
            End::Fall => 0,
            End::Jump(_) | End::Tail(_) => 5,
            End::Cond(_) => 6,
            End::Indirect(_) => 2,
        };
        self.nops + call + end
    }
}

/// Functions that call only functions with a higher index. Only conditional jumps go back, so a walk that
/// does not take them reaches an end.
struct Program {
    functions: Vec<Vec<TestBlock>>,
    cfgs: Vec<Cfg>,
}

fn entry(f: usize) -> u64 {
    0x1_0000 * (f as u64 + 1)
}

fn hex(op: &[u8], at: u64, to: u64) -> String {
    let len = op.len() as u64 + 4;
    let rel = to.wrapping_sub(at + len).to_le_bytes();
    op.iter().chain(&rel[..4]).map(|b| format!("{b:02x} ")).collect()
}

impl Program {
    fn random(rng: &mut Rng) -> Self {
        let count = 1 + rng.below(4);
        let functions: Vec<Vec<TestBlock>> = (0..count)
            .map(|f| {
                let n = 1 + rng.below(7);
                let behind = count - f - 1;
                (0..n)
                    .map(|b| {
                        let other = |rng: &mut Rng| f + 1 + rng.below(behind);
                        let call = (behind > 0 && rng.below(3) == 0).then(|| (other(rng), rng.below(3)));
                        let last = b + 1 == n;
                        let end = match rng.below(8) {
                            0 if behind > 0 => End::Tail(other(rng)),
                            1 if behind > 0 => End::Indirect(other(rng)),
                            2 => End::Return,
                            _ if last => End::Return,
                            3 => End::Jump(b + 1 + rng.below(n - b - 1)),
                            4 => End::Fall,
                            _ => End::Cond(rng.below(n)),
                        };
                        TestBlock { nops: 1 + rng.below(3), call, end }
                    })
                    .collect()
            })
            .collect();
        let cfgs = (0..count).map(|f| code::parse(&text(f, &functions[f])).unwrap()).collect();
        Self { functions, cfgs }
    }

    fn graphs(&self) -> Vec<&Cfg> {
        self.cfgs.iter().collect()
    }
}

fn starts(f: usize, blocks: &[TestBlock]) -> Vec<u64> {
    let next = |at: &mut u64, b: &TestBlock| Some(std::mem::replace(at, *at + b.size()));
    blocks.iter().scan(entry(f), next).collect()
}

fn text(f: usize, blocks: &[TestBlock]) -> String {
    let starts = starts(f, blocks);
    let size: u64 = blocks.iter().map(TestBlock::size).sum();
    let mut t = format!("function {:#x}\npart {:#x}..{:#x}\n", entry(f), entry(f), entry(f) + size);
    for (b, block) in blocks.iter().enumerate() {
        let _ = writeln!(t, "block b{b} {:#x}", starts[b]);
        (0..block.nops).for_each(|_| t.push_str("  90\n"));
        if let Some((g, nops)) = block.call {
            let _ = writeln!(t, "  {}", hex(&[0xe8], starts[b] + block.nops, entry(g)));
            (0..nops).for_each(|_| t.push_str("  90\n"));
        }
        let end = starts[b] + block.size();
        let _ = match block.end {
            End::Return => writeln!(t, "  c3\n  return"),
            End::Fall => writeln!(t, "  fall b{}", b + 1),
            End::Jump(to) => writeln!(t, "  {}\n  jump b{to}", hex(&[0xe9], end - 5, starts[to])),
            End::Tail(g) => writeln!(t, "  {}\n  jump {:#x}", hex(&[0xe9], end - 5, entry(g)), entry(g)),
            End::Cond(to) => {
                writeln!(t, "  {}\n  cond e b{to} else b{}", hex(&[0x0f, 0x84], end - 6, starts[to]), b + 1)
            }
            End::Indirect(_) => writeln!(t, "  ff e0\n  indirect"),
        };
    }
    t
}

/// One execution: every branch that it takes, and the exact counts.
struct Walk<'a> {
    program: &'a Program,
    rng: Rng,
    left: usize,
    taken: Vec<Taken>,
    exact: Vec<Counts>,
    calls: BTreeMap<Taken, u64>,
}

impl<'a> Walk<'a> {
    fn of(program: &'a Program, seed: u64, entries: usize) -> Self {
        let exact = program.cfgs.iter().map(Counts::zero).collect();
        let (rng, taken, calls) = (Rng(seed), Vec::new(), BTreeMap::new());
        let mut walk = Self { program, rng, left: 3000, taken, exact, calls };
        walk.taken.push(Taken { from: WORLD.add(0x40), to: WORLD });
        for _ in 0..entries {
            walk.takes(WORLD, Avma(entry(0)));
            *walk.calls.entry(Taken { from: WORLD, to: Avma(entry(0)) }).or_default() += 1;
            walk.function(0, WORLD);
        }
        walk
    }

    fn takes(&mut self, from: Avma, to: Avma) {
        self.taken.push(Taken { from, to });
    }

    fn calls(&mut self, from: Avma, g: usize, home: Avma) {
        let to = Avma(entry(g));
        *self.calls.entry(Taken { from, to }).or_default() += 1;
        self.takes(from, to);
        self.function(g, home);
    }

    fn function(&mut self, f: usize, home: Avma) {
        let blocks = &self.program.functions[f];
        let starts: Vec<Avma> = starts(f, blocks).into_iter().map(Avma).collect();
        self.exact[f].entry += 1;
        self.exact[f].blocks[0].inflow += 1;
        let mut b = 0;
        loop {
            self.exact[f].blocks[b].count += 1;
            self.left = self.left.saturating_sub(1);
            let block = &blocks[b];
            if let Some((g, _)) = block.call {
                let at = starts[b].add(block.nops);
                self.calls(at, g, at.add(5));
            }
            let end = starts[b].add(block.size());
            match block.end {
                End::Return => {
                    self.exact[f].blocks[b].outflow += 1;
                    return self.takes(end.sub(1), home);
                }
                End::Fall => {
                    self.exact[f].blocks[b].edges[0] += 1;
                    b += 1;
                }
                End::Jump(to) => {
                    self.exact[f].blocks[b].edges[0] += 1;
                    self.takes(end.sub(5), starts[to]);
                    b = to;
                }
                End::Cond(to) if self.left > 0 && self.rng.below(2) == 0 => {
                    self.exact[f].blocks[b].edges[0] += 1;
                    self.takes(end.sub(6), starts[to]);
                    b = to;
                }
                End::Cond(_) => {
                    self.exact[f].blocks[b].edges[1] += 1;
                    b += 1;
                }
                End::Tail(g) => {
                    self.exact[f].blocks[b].edges[0] += 1;
                    return self.calls(end.sub(5), g, home);
                }
                End::Indirect(g) => {
                    self.exact[f].blocks[b].outflow += 1;
                    return self.calls(end.sub(2), g, home);
                }
            }
        }
    }

    /// Returns stacks of `depth` branches, one taken after every `every` branches.
    fn stacks(&self, depth: usize, every: usize) -> BranchStacks {
        let mut stacks = BranchStacks::default();
        let mut recent = VecDeque::new();
        for (i, &taken) in self.taken.iter().enumerate() {
            recent.push_front(Some(taken));
            recent.truncate(depth);
            let last = i + 1 == self.taken.len();
            if i > 0 && i % every == 0 {
                stacks.add(recent.iter().copied());
            } else if last {
                // Only branches that are in no earlier stack are added.
                stacks.add(recent.iter().copied().take(i % every + 1));
            }
        }
        stacks
    }
}

#[test]
fn stacks_that_cover_all_give_exact_counts() {
    let mut ran = 0u64;
    for seed in 1..200 {
        let program = Program::random(&mut Rng(seed * 0x9e37_79b9));
        let walk = Walk::of(&program, seed, 1 + usize::try_from(seed % 5).unwrap());
        for depth in [2, 3, 16, DEPTH] {
            let got = walk.stacks(depth, depth - 1).counts(&program.graphs());
            assert_eq!(got.functions, walk.exact, "seed {seed}, depth {depth}");
            assert_eq!(got.calls, walk.calls, "seed {seed}, depth {depth}");
            let elsewhere = got.rejected.elsewhere;
            assert_eq!(got.rejected, Rejected { elsewhere, ..Rejected::default() }, "seed {seed}");
        }
        ran += walk.exact.iter().flat_map(|c| &c.blocks).map(|b| b.count).sum::<u64>();
    }
    assert!(ran > 3_000, "{ran}");
}

#[test]
fn sparse_stacks_give_consistent_counts_of_the_same_shape() {
    for seed in 1..60 {
        let program = Program::random(&mut Rng(seed * 0x1234_5677));
        let walk = Walk::of(&program, seed, 40);
        let got = walk.stacks(DEPTH, 97).counts(&program.graphs());
        for (counts, cfg) in got.functions.iter().zip(&program.cfgs) {
            assert!(counts.is_consistent(cfg), "seed {seed}");
        }
        let elsewhere = got.rejected.elsewhere;
        assert_eq!(got.rejected, Rejected { elsewhere, ..Rejected::default() }, "seed {seed}");
    }
}

/// Two functions: a loop of three blocks with a call and a system call, and a function that only returns.
///
/// ```text
/// 1000 nop; 1001 je 1010
/// 1007 call 2000; 100c syscall; 100e nop; 100f nop
/// 1010 nop; 1011 je 1000
/// 1017 ret
/// ```
fn small() -> Vec<Cfg> {
    let f = "function 0x1000\npart 0x1000..0x1018\n\
        block b0 0x1000\n90\n0f 84 09 00 00 00\ncond e b2 else b1\n\
        block b1 0x1007\ne8 f4 0f 00 00\n0f 05\n90\n90\nfall b2\n\
        block b2 0x1010\n90\n0f 84 e9 ff ff ff\ncond e b0 else b3\n\
        block b3 0x1017\nc3\nreturn\n";
    let g = "function 0x2000\npart 0x2000..0x2002\nblock b0 0x2000\n90\nc3\nreturn\n";
    [f, g].map(|text| code::parse(text).unwrap()).into()
}

fn of_runs(runs: &[(u64, u64)]) -> BranchProfile {
    let mut stacks = BranchStacks::default();
    runs.iter().for_each(|&(first, last)| stacks.add_run(Run { first: Avma(first), last: Avma(last) }, 7));
    let cfgs = small();
    stacks.counts(&cfgs.iter().collect::<Vec<_>>())
}

fn of_taken(from: u64, to: u64) -> BranchProfile {
    let mut stacks = BranchStacks::default();
    stacks.add_taken(Taken { from: Avma(from), to: Avma(to) }, 7);
    let cfgs = small();
    stacks.counts(&cfgs.iter().collect::<Vec<_>>())
}

#[test]
fn impossible_runs_are_rejected() {
    let rejected = |first, last| of_runs(&[(first, last)]).rejected;
    let none = Rejected::default();
    // Sound runs, including a run past a branch that was not taken and a run past a system call.
    for (first, last) in [(0x1000, 0x1001), (0x1000, 0x1007), (0x100c, 0x1017), (0x2000, 0x2001)] {
        assert_eq!(rejected(first, last), none, "{first:x}");
    }
    assert_eq!(rejected(0x1010, 0x1001), Rejected { backward: 7, ..none });
    assert_eq!(rejected(0x1010, 0x2001), Rejected { crossing: 7, ..none });
    assert_eq!(rejected(0x1010, 0x1018), Rejected { crossing: 7, ..none });
    assert_eq!(rejected(0x0fff, 0x1001), Rejected { crossing: 7, ..none });
    assert_eq!(rejected(0x1008, 0x1017), Rejected { broken: 7, ..none }, "begins inside an instruction");
    assert_eq!(rejected(0x1000, 0x1013), Rejected { broken: 7, ..none }, "ends inside one");
    assert_eq!(rejected(0x1007, 0x1017), Rejected { broken: 7, ..none }, "passes a call");
    assert_eq!(rejected(0x5000, 0x5008), Rejected { elsewhere: 7, ..none });
    // Rejected runs count nothing.
    let all = of_runs(&[(0x1010, 0x1001), (0x1010, 0x2001), (0x1007, 0x1017), (0x1008, 0x1017)]);
    assert!(!all.functions.iter().any(Counts::has_run));
}

#[test]
fn a_block_with_calls_is_counted_once() {
    let cfgs = small();
    let cfgs: Vec<&Cfg> = cfgs.iter().collect();
    let mut tally = Tally::new(&cfgs);
    // One run ends at the call, the other begins behind it.
    tally.run(Run { first: Avma(0x1000), last: Avma(0x1007) }, 3);
    tally.run(Run { first: Avma(0x100c), last: Avma(0x1011) }, 3);
    let counts = &tally.functions[0].counts;
    assert!(counts.blocks.iter().map(|b| b.count).eq([3, 3, 3, 0]));
    assert_eq!((&counts.blocks[0].edges, &counts.blocks[1].edges), (&vec![0, 3], &vec![3]));
}

#[test]
fn impossible_branches_are_rejected() {
    let none = Rejected::default();
    let bad = Rejected { branches: 7, ..none };
    assert_eq!(of_taken(0x1001, 0x1010).rejected, none);
    assert_eq!(of_taken(0x1001, 0x1011).rejected, bad, "not where it leads");
    assert_eq!(of_taken(0x1000, 0x1010).rejected, bad, "no branch");
    assert_eq!(of_taken(0x1002, 0x1010).rejected, bad, "no instruction");
    assert_eq!(of_taken(0x100c, 0x1010).rejected, bad, "a system call does not lead to user code");
    assert_eq!(of_taken(0x2001, 0x9999).rejected, none);
    assert_eq!(of_taken(0x5000, 0x1010).rejected, none, "a thread may come to any block");
    let call = of_taken(0x1007, 0x2000);
    assert_eq!(call.rejected, none);
    assert_eq!(
        call.calls.into_iter().collect::<Vec<_>>(),
        [(Taken { from: Avma(0x1007), to: Avma(0x2000) }, 7)]
    );
    assert!(of_taken(0x1011, 0x1000).calls.is_empty(), "a loop is no call");
}

#[test]
fn any_numbers_are_safe() {
    let cfgs = small();
    let cfgs: Vec<&Cfg> = cfgs.iter().collect();
    arbtest::arbtest(|u| {
        let mut stacks = BranchStacks::default();
        let (mut runs, mut all) = (0u64, 0u64);
        for _ in 0..u.int_in_range(0..=40)? {
            let mut at = || -> arbtest::arbitrary::Result<Avma> {
                Ok(Avma(match u.int_in_range(0..=9)? {
                    0 => u.arbitrary()?,
                    1 | 2 => u.int_in_range(0x1fff..=0x2003)?,
                    _ => u.int_in_range(0xfff..=0x1019)?,
                }))
            };
            let (a, b) = (at()?, at()?);
            let n = if u.ratio(1, 9)? { u64::MAX } else { 1 };
            if u.arbitrary()? {
                stacks.add_run(Run { first: a, last: b }, n);
            } else {
                stacks.add_taken(Taken { from: a, to: b }, n);
            }
        }
        for (_, n) in stacks.runs() {
            runs = runs.saturating_add(n);
        }
        let got = stacks.counts(&cfgs);
        for (counts, cfg) in got.functions.iter().zip(&cfgs) {
            assert!(counts.is_consistent(cfg));
        }
        let r = got.rejected;
        for n in [r.backward, r.crossing, r.broken, r.elsewhere] {
            all = all.saturating_add(n);
        }
        assert!(all <= runs);
        Ok(())
    })
    .budget_ms(500);
}
