use super::*;
use crate::drawn_path::{DrawnPath, Routine, Surroundings};
use crate::test_code::{TEXT, arb_counts, arb_order, callee, caller, cloned, cloned_inlined};
use emit::Output;
use profile::Counts;
use proptest::prelude::*;

fn path(a: &Counts, b: &Counts, seed: u64, length: u64) -> Vec<Step> {
    let (caller, callee) = (caller(), callee());
    let routines =
        [Routine { cfg: &caller, counts: a, leads: &[] }, Routine { cfg: &callee, counts: b, leads: &[] }];
    let mut moves = Vec::new();
    let around = Surroundings { stub: &|_| Vec::new(), word: &|_| None };
    if let Some(mut drawn) = DrawnPath::new(&routines, &around, seed) {
        drawn.go(length, &mut |s| moves.push(*s));
    }
    moves
}

/// Returns the steps on the clones' side, and how often the follower was lost.
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

/// Returns the addresses of the originals' instructions that a side executes. Leaves out the `endbr64`
/// that direct branches bypass, jumps, and returns, which may stand for any code.
fn deeds(steps: &[Step], out: &Output) -> Vec<Avma> {
    let original = |s: &Step| match out.clones.iter().find(|c| c.map.fragments().contains(s.at)) {
        Some(c) => c
            .map
            .entries_at(s.at)
            .last()
            .filter(|e| matches!(e.link, Link::Copy | Link::Again))
            .map(|e| e.original),
        None => Some(s.at),
    };
    let silent = |s: &&Step| !matches!(s.flow, Flow::Jump | Flow::Return);
    let mark = callee().entry;
    steps.iter().filter(silent).filter_map(original).filter(|&at| at != mark).collect()
}

proptest! {
    /// For any order of blocks, both sides execute the same instructions, and each step begins where the step
    /// before it leads.
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

    /// The caller executes the same instructions, except for its calls, whichever path through its callee is
    /// inlined.
    #[test]
    fn inlined_callees_are_followed(
        (a, b) in arb_counts(), seed: u64, caller in arb_order(7), callee in arb_order(3),
        way in prop_oneof![Just(&[0, 2][..]), Just(&[0, 1, 2][..])],
    ) {
        let out = cloned_inlined((&caller.0, caller.1), (&callee.0, callee.1), way);
        prop_assert_eq!(out.stats.inlined, u64::from(caller.0.contains(&1)));
        let moves = path(&a, &b, seed, 400);
        let (theirs, lost) = followed(&moves, &out, &entries(&out));
        prop_assert_eq!(lost, 0);
        let of_caller = |steps: &[Step]| -> Vec<Avma> {
            let called = crate::test_code::callee().parts[0];
            let is_own = |at: &Avma| !called.contains(*at) && *at != Avma(0x1005);
            deeds(steps, &out).into_iter().filter(is_own).collect()
        };
        let (ours, theirs_do) = (of_caller(&moves), of_caller(&theirs));
        // The last instructions of an inlined callee are executed when the path reaches the callee's return.
        prop_assert!(ours.starts_with(&theirs_do) && ours.len() <= theirs_do.len() + 1, "{ours:x?} {theirs_do:x?}");
        prop_assert!(theirs.windows(2).all(|w| w[0].next == w[1].at), "{theirs:x?}");
    }

    #[test]
    fn without_clones_both_sides_are_equal((a, b) in arb_counts(), seed: u64) {
        let out = Output { text: Vec::new(), clones: Vec::new(), ..cloned((&[0], 1), (&[0], 1)) };
        let moves = path(&a, &b, seed, 300);
        prop_assert_eq!(followed(&moves, &out, &Redirects::default()), (moves.clone(), 0));
    }
}

const fn step(at: u64, len: u8, flow: Flow, next: u64) -> Step {
    Step { at: Avma(at), len, flow, next: Avma(next) }
}

/// The caller's steps up to its call.
const CALLED: [Step; 3] = [
    step(0x1000, 3, Flow::On, 0x1003),
    step(0x1003, 2, Flow::Conditional, 0x1005),
    step(0x1005, 5, Flow::Call, 0x2000),
];

/// The inlined path does not contain the `add`. Where control leaves that path, the rest of the callee with
/// the `add` is called.
#[test]
fn an_inlined_path_is_left() {
    let out = cloned_inlined((&[0, 1, 2, 3, 4, 5, 6], 7), (&[0, 1, 2], 3), &[0, 2]);
    assert_eq!(out.stats.inlined, 1);
    let before = [step(0x2000, 4, Flow::On, 0x2004), step(0x2004, 3, Flow::On, 0x2007)];
    let stays = [step(0x2007, 2, Flow::Conditional, 0x200c), step(0x200c, 1, Flow::Return, 0x100a)];
    let leaves = [
        step(0x2007, 2, Flow::Conditional, 0x2009),
        step(0x2009, 3, Flow::On, 0x200c),
        step(0x200c, 1, Flow::Return, 0x100a),
    ];
    let behind = step(0x100a, 3, Flow::On, 0x100d);
    let (caller, callee) = (&out.clones[0].map, &out.clones[1].map);
    for (rest, calls) in [(&stays[..], 0), (&leaves, 1)] {
        let moves = [&CALLED[..], &before, rest, &[behind]].concat();
        let (theirs, lost) = followed(&moves, &out, &entries(&out));
        assert_eq!((lost, theirs.iter().filter(|s| s.flow.is_call()).count()), (0, calls), "{theirs:x?}");
        let adds = theirs.iter().filter(|s| Some(s.at) == callee.to_clone(Avma(0x2009))).count();
        assert_eq!(adds, calls);
        assert_eq!(theirs.last().map(|s| s.at), caller.to_clone(Avma(0x100a)));
        assert!(theirs.windows(2).all(|w| w[0].next == w[1].at), "{theirs:x?}");
    }
    // Of the callee, only its return is known.
    let moves = [&CALLED[..], &[step(0x2000, 4, Flow::Return, 0x100a), behind]].concat();
    let (theirs, lost) = followed(&moves, &out, &entries(&out));
    assert_eq!((lost, theirs.last().map(|s| s.at)), (0, caller.to_clone(Avma(0x100a))), "{theirs:x?}");
}

/// A path contains only the return of a callee that was called but never ran. The return is at the original's
/// `endbr64`, which the clones' side has bypassed.
#[test]
fn a_callee_that_only_returns_is_followed_behind_its_endbr64() {
    let out = cloned((&[0, 1], 0), (&[0], 0));
    let returned = [step(0x2000, 4, Flow::Return, 0x100a), step(0x100a, 3, Flow::On, 0x100d)];
    let moves = [&CALLED[..], &returned].concat();
    let (theirs, lost) = followed(&moves, &out, &entries(&out));
    let caller = &out.clones[0].map;
    assert_eq!((lost, theirs.last().map(|s| s.at)), (0, caller.to_clone(Avma(0x100a))), "{theirs:x?}");
}

#[test]
fn a_path_that_clones_cannot_follow_continues_in_the_original() {
    let out = cloned((&[0, 1, 2, 3, 4, 5, 6], 7), (&[0, 1, 2], 3));
    // The path jumps into the middle of the function, which the clone cannot follow.
    let moves = [
        step(0x1000, 3, Flow::On, 0x1003),
        step(0x1012, 2, Flow::Conditional, 0x1014),
        step(0x1014, 2, Flow::Jump, 0x101a),
    ];
    let (theirs, lost) = followed(&moves, &out, &entries(&out));
    assert_eq!(lost, 1);
    assert_eq!(theirs.last().map(|s| s.next), Some(Avma(0x101a)));
}

#[test]
fn redirected_calls_lead_to_clones() {
    let out = cloned((&[0], 1), (&[0, 1, 2], 3));
    let clone = out.clones.iter().find(|c| c.original == Avma(0x2000)).unwrap().map.fragments().start();
    let redirects =
        Redirects { branches: [(Avma(0x100a), clone)].into_iter().collect(), ..Redirects::default() };
    let moves = [
        step(0x1005, 5, Flow::Call, 0x2000),
        step(0x2000, 4, Flow::On, 0x2004),
        step(0x2004, 3, Flow::On, 0x2007),
        step(0x2007, 2, Flow::Conditional, 0x200c),
        step(0x200c, 1, Flow::Return, 0x100a),
        step(0x100a, 3, Flow::On, 0x100d),
    ];
    let (theirs, lost) = followed(&moves, &out, &redirects);
    assert_eq!((theirs.len(), lost), (6, 0));
    assert_eq!((theirs[0].next, theirs[4].next, theirs[5].at), (clone, Avma(0x100a), Avma(0x100a)));
}
