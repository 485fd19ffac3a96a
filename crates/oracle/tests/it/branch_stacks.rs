//! Turns a single-step run into the records of a CPU that records its last 32 branches. Compares the counts
//! that follow from them with the exact counts of the same run.

use crate::support::paths::{Paths, own};
use crate::support::{shuffled, stress};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use code::Cfg;
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use profile::{BranchStacks, Counts, Rejected, Taken};
use rustc_hash::FxHashMap;
use tracee::Process;

const DEPTH: usize = 32;
/// The mean number of branches from one stack to the next; how often the work is done; and the allowed sum of
/// differences between measured and true shares of all edges (2 is the maximum).
const SPARSE: [(usize, usize, f64); 3] = [(101, 1, 0.35), (331, 20, 0.15), (1009, 100, 0.13)];

/// Taken branches, made from steps.
struct Branches<'a> {
    process: &'a Process,
    known: FxHashMap<Avma, (Avma, FlowControl)>,
    taken: Vec<Taken>,
}

impl Branches<'_> {
    fn step(&mut self, at: Avma, next: Avma) {
        let &mut (end, flow) = self.known.entry(at).or_insert_with(|| {
            let bytes = (1..=15).rev().find_map(|n| self.process.bytes(AvmaRange::with_len(at, n)).ok());
            let inst = Decoder::with_ip(64, &bytes.unwrap(), at.0, DecoderOptions::NONE).decode();
            (Avma(inst.next_ip()), inst.flow_control())
        });
        let taken = match flow {
            FlowControl::ConditionalBranch => next != end,
            FlowControl::Call
            | FlowControl::IndirectCall
            | FlowControl::Return
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch => true,
            // Repeated string instructions stay where they are.
            _ => {
                assert!(next == end || next == at, "{at:?} {next:?}");
                false
            }
        };
        if taken {
            self.taken.push(Taken { from: at, to: next });
        }
    }
}

/// Returns stacks that together cover every branch once.
fn dense(taken: &[Taken]) -> BranchStacks {
    let mut stacks = BranchStacks::default();
    for begin in (0..taken.len()).step_by(DEPTH - 1) {
        let end = (begin + DEPTH).min(taken.len());
        stacks.add(taken[begin..end].iter().rev().map(|&t| Some(t)));
    }
    stacks
}

/// Returns stacks taken at random distances. At even distances, work that repeats itself would be sampled at
/// the same places.
fn sparse(taken: &[Taken], every: usize) -> BranchStacks {
    let mut stacks = BranchStacks::default();
    let (mut end, mut random) = (DEPTH, 0x9e37_79b9_7f4a_7c15u64);
    while end <= taken.len() {
        stacks.add(taken[end - DEPTH..end].iter().rev().map(|&t| Some(t)));
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        end += every / 2 + usize::try_from(random >> 32).unwrap() % every;
    }
    stacks
}

fn shares(counts: &[Counts]) -> Vec<f64> {
    let edges: Vec<f64> =
        counts.iter().flat_map(|c| &c.blocks).flat_map(|b| &b.edges).map(|&n| n as f64).collect();
    let sum: f64 = edges.iter().sum();
    edges.into_iter().map(|n| n / sum.max(1.0)).collect()
}

fn build(compiler: &str, flags: &[&str]) {
    let what = format!("{compiler} {flags:?}");
    let mut paths = Paths::start(compiler, flags);
    let shuffled = shuffled(1);
    let functions = paths.counted(&shuffled, b's');
    let functions = own(&functions);
    let process = Process::open(paths.pid()).unwrap();
    let mut branches = Branches { process: &process, known: FxHashMap::default(), taken: Vec::new() };
    let exact = paths.stepped(&functions, &mut |at, next| branches.step(at, next));
    let all = functions.iter().find(|f| f.name == "p_all").unwrap().cfg.entry;
    // How control came there, from unknown code.
    let caller = Avma(0x10_0000);
    let before = [Taken { from: caller, to: caller.add(0x40) }, Taken { from: caller.add(0x50), to: all }];
    let taken = [&before[..], &branches.taken].concat();

    let cfgs: Vec<&Cfg> = functions.iter().map(|f| &f.cfg).collect();
    let dense = dense(&taken).counts(&cfgs);
    let elsewhere = dense.rejected.elsewhere;
    assert_eq!(dense.rejected, Rejected { elsewhere, ..Rejected::default() }, "{what}");
    let mut executions = 0;
    for ((f, got), wanted) in functions.iter().zip(&dense.functions).zip(&exact) {
        assert_eq!(got, wanted, "{what}: {}", f.name);
        executions += wanted.blocks.iter().map(|b| b.count).sum::<u64>();
    }
    assert!(functions.len() >= 12 && executions > 5000, "{what}");

    for (every, times, most) in SPARSE {
        let sparse = sparse(&taken.repeat(times), every);
        let got = sparse.counts(&cfgs);
        assert_eq!(got.rejected, Rejected { elsewhere: got.rejected.elsewhere, ..Rejected::default() });
        for (counts, cfg) in got.functions.iter().zip(&cfgs) {
            assert!(counts.is_consistent(cfg));
        }
        let off: f64 =
            shares(&got.functions).iter().zip(shares(&exact)).map(|(got, wanted)| (got - wanted).abs()).sum();
        eprintln!(
            "{what}: {executions} executions of blocks, {} branches, {times} times; {} stacks, one each {every}: off by \
             {off:.3}",
            taken.len(),
            sparse.stacks()
        );
        assert!(off < most, "{what}: {off}");
    }
    paths.end();
}

#[test]
fn branch_stacks_of_a_single_step_run_give_its_counts() {
    let builds: &[(&str, &[&str])] = if stress() {
        &[
            ("gcc", &["-O0"]),
            ("gcc", &["-O2"]),
            ("gcc", &["-O3"]),
            ("gcc", &["-Os"]),
            ("gcc", &["-O2", "-fcf-protection=full"]),
            ("clang", &["-O0"]),
            ("clang", &["-O2"]),
            ("clang", &["-Os"]),
        ]
    } else {
        &[("gcc", &["-O2"]), ("clang", &["-O2"])]
    };
    for (compiler, flags) in builds {
        build(compiler, flags);
    }
}
