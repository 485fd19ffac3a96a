use super::*;
use crate::test_code::{TEXT, arb_counts, arb_order, callee, caller, cloned};
use crate::walk::{Routine, Surroundings, Walk};
use emit::Output;
use profile::Counts;
use proptest::prelude::*;

fn path(a: &Counts, b: &Counts, seed: u64, length: u64) -> Vec<Step> {
    let (caller, callee) = (caller(), callee());
    let routines =
        [Routine { cfg: &caller, counts: a, leads: &[] }, Routine { cfg: &callee, counts: b, leads: &[] }];
    let mut moves = Vec::new();
    let around = Surroundings { stub: &|_| Vec::new(), word: &|_| None };
    if let Some(mut walk) = Walk::new(&routines, &around, seed) {
        walk.go(length, &mut |s| moves.push(*s));
    }
    moves
}

/// What the other side executes, and how often it was lost.
fn followed(moves: &[Step], out: &Output, redirects: &Redirects) -> (Vec<Step>, u64) {
    let range = AvmaRange::with_len(TEXT, out.text.len() as u64);
    let codes: Vec<CloneCode<'_>> = out
        .clones
        .iter()
        .map(|c| CloneCode { map: &c.map, bytes: vec![(range, out.text.clone())] })
        .collect();
    let (switches, mostly) = (FxHashSet::default(), FxHashMap::default());
    let mut follower = Follower::new(Setting {
        switches: &switches,
        clones: &codes,
        redirects,
        word: &|_| None,
        in_stub: &|_| false,
        mostly: &mostly,
    });
    let mut steps = Vec::new();
    moves.iter().for_each(|s| follower.follow(s, &mut |s| steps.push(s)));
    (steps, follower.lost())
}

fn entries(out: &Output) -> Redirects {
    let entries = out.clones.iter().map(|c| (c.original, c.map.fragments().start())).collect();
    Redirects { entries, ..Redirects::default() }
}

/// What a side does but for jumps, nops and the `endbr64` that is passed by, and returns that may stand for anything, by originals.
fn deeds(steps: &[Step], out: &Output) -> Vec<Avma> {
    let original = |s: &Step| match out.clones.iter().find(|c| c.map.fragments().contains(s.at)) {
        Some(c) => c.map.entries_at(s.at).last().filter(|e| e.link == Link::Copy).map(|e| e.original),
        None => Some(s.at),
    };
    let silent = |s: &&Step| !matches!(s.flow, Flow::Jump | Flow::Return);
    let mark = callee().entry;
    steps.iter().filter(silent).filter_map(original).filter(|&at| at != mark).collect()
}

proptest! {
    /// Whatever the order of blocks: the other side does the same, and each instruction is the one that the one before it
    /// said.
    #[test]
    fn both_sides_do_the_same(
        (a, b) in arb_counts(), seed: u64, caller in arb_order(7), callee in arb_order(3),
    ) {
        let out = cloned((&caller.0, caller.1), (&callee.0, callee.1));
        let moves = path(&a, &b, seed, 400);
        let (theirs, lost) = followed(&moves, &out, &entries(&out));
        prop_assert_eq!(lost, 0);
        prop_assert_eq!(deeds(&moves, &out), deeds(&theirs, &out));
        prop_assert!(theirs.windows(2).all(|w| w[0].next == w[1].at), "{theirs:x?}");
    }

    #[test]
    fn without_clones_both_sides_are_one((a, b) in arb_counts(), seed: u64) {
        let out = Output { text: Vec::new(), clones: Vec::new(), ..cloned((&[0], 1), (&[0], 1)) };
        let moves = path(&a, &b, seed, 300);
        prop_assert_eq!(followed(&moves, &out, &Redirects::default()), (moves.clone(), 0));
    }
}

#[test]
fn a_path_that_is_not_the_clones_is_lost_and_found() {
    let out = cloned((&[0, 1, 2, 3, 4, 5, 6], 7), (&[0, 1, 2], 3));
    let step = |at, len, flow, next| Step { at: Avma(at), len, flow, next: Avma(next) };
    // From nowhere into the midst of it, which a clone knows nothing of.
    let moves = [
        step(0x1000, 3, Flow::On, 0x1003),
        step(0x1012, 2, Flow::Conditional, 0x1014),
        step(0x1014, 2, Flow::Jump, 0x1017),
    ];
    let (theirs, lost) = followed(&moves, &out, &entries(&out));
    assert_eq!(lost, 1);
    assert_eq!(theirs.last().map(|s| s.next), Some(Avma(0x1017)));
}

#[test]
fn calls_that_are_redirected_go_straight() {
    let out = cloned((&[0], 1), (&[0, 1, 2], 3));
    let clone = out.clones.iter().find(|c| c.original == Avma(0x2000)).unwrap().map.fragments().start();
    let redirects =
        Redirects { calls: [(Avma(0x100a), clone)].into_iter().collect(), ..Redirects::default() };
    let step = |at, len, flow, next| Step { at: Avma(at), len, flow, next: Avma(next) };
    let moves = [
        step(0x1005, 5, Flow::Call, 0x2000),
        step(0x2000, 4, Flow::On, 0x2004),
        step(0x2004, 2, Flow::On, 0x2006),
        step(0x2006, 2, Flow::Conditional, 0x200b),
        step(0x200b, 1, Flow::Return, 0x100a),
        step(0x100a, 3, Flow::On, 0x100d),
    ];
    let (theirs, lost) = followed(&moves, &out, &redirects);
    assert_eq!((theirs.len(), lost), (6, 0));
    assert_eq!((theirs[0].next, theirs[4].next, theirs[5].at), (clone, Avma(0x100a), Avma(0x100a)));
}
