use super::*;
use crate::plan::test_candidate::{
    cloned, cloned_again, cloned_guarded, cloned_inlined, cloned_through_redirects,
};
use emit::{Output, Unroll};
use profile::BlockCounts;

const TEXT: Avma = Avma(0x10_0000);

/// `test; je b2; b1: add; b2: ret`
const DIAMOND: &str = "\
function 0x1000
part 0x1000..0x1008
block b0 0x1000
  85 c0
  74 03
  cond e b2 else b1
block b1 0x1004
  48 01 d8
  fall b2
block b2 0x1007
  c3
  return
";

/// `test; je b2; b1: dec; jne b1; b2: ret`
const TURNING: &str = "\
function 0x1000
part 0x1000..0x1009
block b0 0x1000
  85 c0
  74 04
  cond e b2 else b1
block b1 0x1004
  ff c8
  75 fc
  cond ne b1 else b2
block b2 0x1008
  c3
  return
";

/// A call of the function itself.
const AGAIN: &str = "\
function 0x1000
part 0x1000..0x1006
block b0 0x1000
  e8 fb ff ff ff
  c3
  return
";

/// `jmp b2; b1: ret; b2: jmp b1`
const JUMPS: &str = "\
function 0x1000
part 0x1000..0x1005
block b0 0x1000
  eb 01
  jump b2
block b1 0x1002
  c3
  return
block b2 0x1003
  eb fd
  jump b1
";

/// `jrcxz b2; b1: inc; loop b1; b2: ret`
const SHORT: &str = "\
function 0x1000
part 0x1000..0x1007
block b0 0x1000
  e3 04
  short b2 else b1
block b1 0x1002
  ff c0
  e2 fc
  short b1 else b2
block b2 0x1006
  c3
  return
";

/// A call of a stub, a call by pointer, a call by a slot; then a tail call by pointer.
const CALLS: &str = "\
function 0x1000
part 0x1000..0x100f
block b0 0x1000
  e8 fb 0f 00 00
  ff d0
  ff 15 00 00 00 00
  ff e0
  indirect
";

fn counts(blocks: &[u64], edges: &[&[u64]]) -> Counts {
    let edges = edges.iter().map(|e| e.to_vec()).chain(std::iter::repeat(Vec::new()));
    let block = |(&count, edges)| BlockCounts { count, edges, ..BlockCounts::default() };
    Counts { entry: blocks[0], blocks: blocks.iter().zip(edges).map(block).collect() }
}

/// Returns the first clone of an output, inlined nowhere.
fn counted<'a>(cfg: &'a Cfg, counts: &'a Counts, out: &'a Output) -> Counted<'a> {
    Counted {
        cfg,
        counts,
        map: &out.clones[0].map,
        text: &out.text,
        text_at: TEXT,
        inlined: (0, &[]),
        pointers: FxHashMap::default(),
    }
}

fn run(text: &str, counts: &Counts, order: &[u32]) -> DynoReport {
    run_split(text, counts, order, order.len())
}

fn run_split(text: &str, counts: &Counts, order: &[u32], hot: usize) -> DynoReport {
    run_less(text, counts, order, hot, (0, &[]))
}

fn run_less(
    text: &str,
    counts: &Counts,
    order: &[u32],
    hot: usize,
    inlined: (u64, &[BlockId]),
) -> DynoReport {
    let cfg = code::parse(text).unwrap();
    let out = cloned(&cfg, order.iter().map(|&b| BlockId(b)).collect(), hot, TEXT);
    let clone = Counted { inlined, ..counted(&cfg, counts, &out) };
    dyno(&[clone], &Jumps::default(), &|at| at == Avma(0x2000))
}

#[test]
fn a_hot_taken_edge_becomes_a_fall_through() {
    let counts = counts(&[100, 10, 100], &[&[90, 10], &[10], &[]]);
    let DynoReport { before, after, functions } = run(DIAMOND, &counts, &[0, 2, 1]);
    let wanted = DynoStats {
        instructions: 310,
        bytes: 530,
        conditional_branches: 100,
        taken_conditional_branches: 90,
        non_taken_conditional_branches: 10,
        total_branches: 100,
        taken_branches: 90,
        fall_throughs: 20,
        returns: 100,
        lines: 1,
        pages: 1,
        hot_lines: 1,
        hot_pages: 1,
        ..DynoStats::default()
    };
    assert_eq!((before, functions), (wanted, 1));
    // test; jne b1; b2: ret; b1: add; jmp b2
    let wanted = DynoStats {
        instructions: 320,
        bytes: 550,
        taken_conditional_branches: 10,
        non_taken_conditional_branches: 90,
        unconditional_branches: 10,
        total_branches: 110,
        taken_branches: 20,
        fall_throughs: 90,
        inserted_jumps: 10,
        ..wanted
    };
    assert_eq!(after, wanted);
}

#[test]
fn a_call_through_a_redirect_adds_a_jump() {
    let counts = counts(&[10], &[&[]]);
    let cfg = code::parse(AGAIN).unwrap();
    let after = |through_redirects| {
        let out = cloned_through_redirects(&cfg, through_redirects, TEXT);
        let clone = counted(&cfg, &counts, &out);
        let jump = Decoder::with_ip(64, &[0xe9, 0, 0, 0, 0], cfg.entry.0, DecoderOptions::NONE).decode();
        dyno(&[clone], &[(cfg.entry, jump)].into_iter().collect(), &|_| false).after
    };
    let (to_clone, through_redirect) = (after(Vec::new()), after(vec![code::InstId(0)]));
    assert_eq!(
        (to_clone.calls, to_clone.taken_branches, to_clone.instructions, to_clone.lines),
        (10, 0, 20, 1)
    );
    assert_eq!(
        (
            through_redirect.calls,
            through_redirect.taken_branches,
            through_redirect.instructions,
            through_redirect.lines
        ),
        (10, 10, 30, 2)
    );
    assert_eq!((to_clone.inserted_jumps, through_redirect.inserted_jumps), (0, 10));
}

#[test]
fn a_guard_runs_as_often_as_its_call() {
    let (cfg, out) = cloned_guarded(TEXT);
    let counts = counts(&[10], &[&[]]);
    let DynoReport { before, after, .. } =
        dyno(&[counted(&cfg, &counts, &out)], &Jumps::default(), &|_| false);
    // `call; ret` and `cmp; jne; call; ret`
    assert_eq!((before.instructions, after.instructions), (20, 40));
    assert_eq!((after.indirect_calls, after.calls, after.non_taken_conditional_branches), (0, 10, 10));
}

#[test]
fn unrolling_takes_the_back_edge_less_often() {
    // Entered 8 times, 10 iterations each.
    let counts = counts(&[8, 80, 8], &[&[0, 8], &[72, 8], &[]]);
    let cfg = code::parse(TURNING).unwrap();
    let stats = |copies| {
        let order = cfg.block_ids().collect();
        let out = cloned_again(&cfg, order, 3, &[Unroll { first: 1, blocks: 1, copies }], TEXT);
        let clone = counted(&cfg, &counts, &out);
        dyno(&[clone], &Jumps::default(), &|_| false).after
    };
    let once = stats(1);
    assert_eq!((once.instructions, once.taken_branches, once.fall_throughs), (184, 72, 16));
    // The first of two copies: 42 iterations, 4 of them the last; the second: 38, of which 34 continue.
    let twice = stats(2);
    assert_eq!(
        (twice.instructions, twice.conditional_branches),
        (once.instructions, once.conditional_branches)
    );
    assert_eq!((twice.taken_branches, twice.fall_throughs), (4 + 34, 8 + 38 + 4));
    let four = stats(4);
    // 23, 21, 19 and 17 iterations; the last copy continues 15 times.
    assert_eq!((four.instructions, four.taken_branches), (once.instructions, 2 + 2 + 2 + 15));
}

#[test]
fn a_second_fragment_is_reached_by_a_jump() {
    let counts = counts(&[100, 10, 100], &[&[90, 10], &[10], &[]]);
    let whole = run(DIAMOND, &counts, &[0, 2, 1]).after;
    // test; jne b1; b2: ret, and b1: add; jmp b2 behind it: longer branches, but the same ones.
    let split = run_split(DIAMOND, &counts, &[0, 2, 1], 2).after;
    assert_eq!(split, DynoStats { bytes: 550 + 4 * 100 + 3 * 10, ..whole });
    // test; je b2 before the cut, b1: add; b2: ret behind it: the fall-through becomes a jump.
    let cut = run_split(DIAMOND, &counts, &[0, 1, 2], 1).after;
    assert_eq!((cut.inserted_jumps, cut.taken_branches, cut.fall_throughs), (10, 100, 10));
    assert_eq!((cut.exits_to_original, cut.instructions), (0, 320));
}

#[test]
fn exits_to_the_original_are_taken_branches() {
    let counts = counts(&[100, 10, 100], &[&[90, 10], &[10], &[]]);
    let after = run(DIAMOND, &counts, &[0, 2]).after;
    assert_eq!((after.taken_branches, after.exits_to_original, after.inserted_jumps), (10, 10, 0));
    // The block without a clone runs at its original address.
    assert_eq!((after.instructions, after.lines, after.pages), (310, 2, 2));
    let both = run(DIAMOND, &counts, &[0]).after;
    assert_eq!((both.taken_branches, both.exits_to_original, both.inserted_jumps), (100, 100, 10));
}

#[test]
fn dropped_jumps_become_fall_throughs() {
    let counts = counts(&[7, 7, 7], &[&[7], &[], &[7]]);
    let DynoReport { before, after, .. } = run(JUMPS, &counts, &[0, 2, 1]);
    assert_eq!((before.taken_branches, before.fall_throughs, before.returns), (14, 0, 7));
    assert_eq!((after.taken_branches, after.fall_throughs, after.dropped_jumps), (0, 14, 14));
    assert_eq!((after.instructions, after.bytes), (7, 7));
}

#[test]
fn short_branches_have_two_jumps() {
    let counts = counts(&[10, 40, 10], &[&[2, 8], &[32, 8], &[]]);
    let DynoReport { before, after, .. } = run(SHORT, &counts, &[0, 1, 2]);
    assert_eq!((before.conditional_branches, before.taken_branches, before.fall_throughs), (50, 34, 16));
    assert_eq!((after.conditional_branches, after.taken_conditional_branches), (50, 34));
    assert_eq!((after.inserted_jumps, after.unconditional_branches, after.fall_throughs), (50, 50, 0));
}

#[test]
fn calls_by_kind() {
    let before = run(CALLS, &counts(&[5], &[&[]]), &[0]).before;
    assert_eq!((before.calls, before.plt_calls, before.indirect_calls), (15, 5, 5));
    assert_eq!((before.indirect_jumps, before.taken_branches), (5, 0));
}

#[test]
fn inlined_executions_are_not_counted_in_the_clone() {
    let counts = counts(&[100, 10, 100], &[&[90, 10], &[10], &[]]);
    let by = (90, &[BlockId(0), BlockId(2)][..]);
    let DynoReport { before, after, .. } = run_less(DIAMOND, &counts, &[0, 1, 2], 3, by);
    assert_eq!((before.returns, before.taken_branches), (100, 90));
    assert_eq!((after.returns, after.taken_branches, after.fall_throughs), (10, 0, 20));
}

#[test]
fn inlined_code_counts_in_the_caller_and_other_paths_nowhere() {
    let (cfgs, out) = cloned_inlined(TEXT);
    let counts = counts(&[100], &[&[]]);
    let clone = counted(&cfgs[0], &counts, &out);
    let DynoReport { before, after, .. } = dyno(&[clone], &Jumps::default(), &|_| false);
    assert_eq!((before.instructions, before.calls, before.returns), (200, 100, 100));
    // test, je, add; and the caller's own return.
    assert_eq!((after.instructions, after.calls, after.returns), (400, 0, 100));
    assert_eq!((after.taken_branches, after.inserted_jumps), (0, 0));
}

#[test]
fn code_that_never_ran_is_not_counted() {
    let report = run(DIAMOND, &counts(&[0, 0, 0], &[&[0, 0], &[0], &[]]), &[0, 1, 2]);
    assert_eq!((report.before, report.after), (DynoStats::default(), DynoStats::default()));
}

#[test]
fn calls_through_pointers_pass_the_redirects_of_their_callees() {
    // call *%rax; ret
    let caller = "function 0x1000\npart 0x1000..0x1003\nblock b0 0x1000\n  ff d0\n  c3\n  return\n";
    let cfg = code::parse(caller).unwrap();
    let counts = counts(&[1000], &[&[]]);
    let out = cloned(&cfg, vec![BlockId(0)], 1, TEXT);
    let jump = Decoder::with_ip(64, &[0xe9, 0, 0, 0, 0], 0x2000, DecoderOptions::NONE).decode();
    let after = |callees: &[(u64, u64)]| {
        let callees = callees.iter().map(|&(at, n)| (Avma(at), n)).collect();
        let pointers = [(cfg.entry, callees)].into_iter().collect();
        let clone = Counted { pointers, ..counted(&cfg, &counts, &out) };
        let after = dyno(&[clone], &[(Avma(0x2000), jump)].into_iter().collect(), &|_| false).after;
        (after.indirect_calls, after.inserted_jumps, after.instructions)
    };
    assert_eq!(after(&[(0x2000, 950), (0x3000, 50)]), (1000, 950, 2950));
    assert_eq!(after(&[(0x3000, 1000)]), (1000, 0, 2000), "an original without a redirect");
}
