use super::*;
use crate::test_code::{arb_counts, callee, caller};
use profile::BlockCounts;
use proptest::prelude::*;
use rustc_hash::FxHashMap;

const NOTHING: Surroundings<'static> = Surroundings { stub: &|_| Vec::new(), word: &|_| None };

fn path(routines: &[Routine<'_>], around: &Surroundings<'_>, seed: u64, length: u64) -> Vec<Step> {
    let mut moves = Vec::new();
    if let Some(mut drawn) = DrawnPath::new(routines, around, seed) {
        drawn.go(length, &mut |s| moves.push(*s));
    }
    moves
}

/// Returns whether each step begins at the address that the step before it names as the next one.
fn is_connected(moves: &[Step]) -> bool {
    moves.windows(2).all(|w| w[0].next == w[1].at)
}

fn times(moves: &[Step]) -> FxHashMap<u64, u64> {
    let mut times = FxHashMap::default();
    moves.iter().for_each(|s| *times.entry(s.at.0).or_default() += 1);
    times
}

fn routine<'a>(cfg: &'a Cfg, counts: &'a Counts) -> Routine<'a> {
    Routine { cfg, counts, leads: &[] }
}

proptest! {
    #[test]
    fn a_path_is_connected_and_determined_by_its_seed((a, b) in arb_counts(), seed: u64) {
        let (caller, callee) = (caller(), callee());
        let routines = [routine(&caller, &a), routine(&callee, &b)];
        let moves = path(&routines, &NOTHING, seed, 500);
        prop_assert!(is_connected(&moves), "{moves:x?}");
        prop_assert_eq!(&moves, &path(&routines, &NOTHING, seed, 500));
        let ran = a.blocks[0].count + b.blocks[0].count > 0;
        prop_assert_eq!(moves.len() >= 500, ran);
        // Blocks that never ran are not on the path. The exception is a return at the callee's entry: it
        // stands for a callee that was called although its counts are 0.
        for (at, _) in times(&moves).into_iter().filter(|(at, _)| *at != callee.entry.0) {
            for (cfg, counts) in [(&caller, &a), (&callee, &b)] {
                let block = cfg.blocks.iter().position(|x| x.range.contains(Avma(at)));
                prop_assert!(block.is_none_or(|x| counts.blocks[x].count > 0), "{at:#x}");
            }
        }
    }
}

/// 10 entries, 4 of them past the first loop's body; 60 rounds of that loop, each with a call, a quarter of
/// which executes the `add`. The second loop is entered 7 times and runs three rounds each time.
fn counts() -> (Counts, Counts) {
    let caller: [(u64, &[u64]); _] =
        [(10, &[4, 6]), (60, &[60]), (64, &[54, 10]), (10, &[7, 3]), (3, &[3]), (21, &[14, 7]), (10, &[])];
    let callee: [(u64, &[u64]); _] = [(60, &[45, 15]), (15, &[15]), (60, &[])];
    (entered(&caller), entered(&callee))
}

/// Returns the counts of a function from those of its blocks and edges. It is entered at the first block and
/// left at the last one.
fn entered(blocks: &[(u64, &[u64])]) -> Counts {
    let block = |&(count, edges): &(u64, &[u64])| BlockCounts {
        count,
        edges: edges.to_vec(),
        ..BlockCounts::default()
    };
    let mut blocks: Vec<BlockCounts> = blocks.iter().map(block).collect();
    let entry = blocks[0].count;
    blocks[0].inflow = entry;
    if let Some(last) = blocks.last_mut() {
        last.outflow = last.count;
    }
    Counts { entry, blocks }
}

#[test]
fn every_block_runs_as_often_as_counted() {
    let (caller, callee) = (caller(), callee());
    let (a, b) = counts();
    assert!(a.is_consistent(&caller) && b.is_consistent(&callee));
    let moves = path(&[routine(&caller, &a), routine(&callee, &b)], &NOTHING, 3, 2_000_000);
    assert!(is_connected(&moves));
    let times = times(&moves);
    let entries = times[&0x1000] as f64;
    // Only the caller calls the callee.
    assert!(times[&OUTSIDE.0].abs_diff(times[&0x1000]) <= 1);
    for (cfg, counts) in [(&caller, &a), (&callee, &b)] {
        for (block, n) in cfg.blocks.iter().zip(counts.blocks.iter().map(|b| b.count)) {
            let got = times[&block.range.start.0] as f64 / entries * 10.0;
            assert!((got / n as f64 - 1.0).abs() < 0.03, "{:?}: {got} instead of {n}", block.range);
        }
    }
}

#[test]
fn unknown_code_only_returns_and_stubs_are_followed() {
    let caller = caller();
    let (a, _) = counts();
    let unknown = path(&[routine(&caller, &a)], &NOTHING, 1, 2000);
    assert!(is_connected(&unknown));
    let at = |moves: &[Step], at: u64| moves.iter().find(|s| s.at == Avma(at)).copied();
    let back = at(&unknown, 0x2000).unwrap();
    assert_eq!((back.flow, back.next, back.len), (Flow::Return, Avma(0x100a), 1));
    let slot = Flow::IndirectJump(Pointer::Slot(Avma(0x9000)));
    let stub = |at| match at {
        Avma(0x2000) => vec![Step { at, len: 6, flow: slot, next: Avma(0x3000) }],
        _ => Vec::new(),
    };
    let stubs = path(&[routine(&caller, &a)], &Surroundings { stub: &stub, word: &|_| None }, 1, 2000);
    assert!(is_connected(&stubs));
    assert_eq!(at(&stubs, 0x2000).map(|s| s.next), Some(Avma(0x3000)));
    assert_eq!(at(&stubs, 0x3000).map(|s| s.next), Some(Avma(0x100a)));
}

/// `call *%rax; ret`
const POINTER: &str = "\
function 0x5000
part 0x5000..0x5003
block b0 0x5000
  ff d0
  c3
  return
";

#[test]
fn pointers_lead_to_observed_destinations() {
    let (cfg, callee) = (code::parse(POINTER).unwrap(), callee());
    let counts = entered(&[(10, &[])]);
    let (_, mut b) = self::counts();
    b.entry = 6;
    let leads = [Leads { inst: InstId(0), to: vec![(callee.entry, 6), (Avma(0x7000), 3)], others: 1 }];
    let routines = [Routine { cfg: &cfg, counts: &counts, leads: &leads }, routine(&callee, &b)];
    let moves = path(&routines, &NOTHING, 5, 200_000);
    assert!(is_connected(&moves));
    let times = times(&moves);
    let share = |at: u64| times[&at] as f64 / times[&0x5000] as f64;
    assert!((share(0x2000) - 0.6).abs() < 0.02 && (share(0x7000) - 0.3).abs() < 0.02, "{times:?}");
}

#[test]
fn without_further_counts_a_path_returns_to_the_caller() {
    let (caller, callee) = (caller(), callee());
    let (a, mut b) = counts();
    // A third of the executions of the callee's first block leave it by no edge: an exception.
    b.blocks[0].edges = vec![30, 10];
    b.blocks[0].outflow = 20;
    let moves = path(&[routine(&caller, &a), routine(&callee, &b)], &NOTHING, 9, 300_000);
    assert!(is_connected(&moves));
    let gone = moves.iter().filter(|s| s.at == Avma(0x2007) && s.flow == Flow::Return).count();
    let share = gone as f64 / times(&moves)[&0x2007] as f64;
    assert!((share - 1.0 / 3.0).abs() < 0.01, "{share}");
}

#[test]
fn without_executions_there_is_no_path() {
    let caller = caller();
    let counts = Counts::zero(&caller);
    assert!(DrawnPath::new(&[routine(&caller, &counts)], &NOTHING, 1).is_none());
    assert!(DrawnPath::new(&[], &NOTHING, 1).is_none());
}
