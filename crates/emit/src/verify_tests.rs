//! The proof must fail for wrong bytes, maps and tables: each is damaged on purpose.

use super::*;
use crate::Body;
use crate::encode::encode;
use crate::items::Plan;
use crate::plan::plan;
use crate::relax::relax;
use crate::request::{Guard, InlineSite};
use crate::verify_inline::wrong_rests;
use crate::{Fragments, Unroll};
use addr::{Addr, AvmaRange};
use code::{BlockId, Gpr, InstId, TableId};
use iced_x86::Decoder;
use rng::{Layouts, Rng};
use rustc_hash::FxHashMap;

#[path = "../tests/it/common/graph.rs"]
mod graph;
#[path = "../tests/it/common/rng.rs"]
mod rng;

/// No two addresses in originals, clones and second fragments differ in exactly one bit.
const AT: Avma = Avma(0x5a_0000);
const WARM_AT: Avma = Avma(0x57_0000);

const DATA_AT: Avma = Avma(0x61_0000);
/// A virtual table, and the function to which its second word leads.
const TABLE: Avma = Avma(0x71_0000);
const LEAF: Avma = Avma(0x41_0000);

/// Returns the destination of a constant word.
fn word(at: Avma) -> Option<Avma> {
    (at == TABLE.add(8)).then_some(LEAF)
}

fn clones() -> Clones<'static> {
    let stubs = Box::leak(Box::default());
    Clones { here: FxHashMap::default(), rests: FxHashMap::default(), stubs, constant: &word }
}

fn function<'a>(cfg: &'a Cfg, rng: &mut Rng) -> Function<'a> {
    let order = rng.order(cfg.blocks.len(), 7);
    function_in(cfg, order, rng)
}

fn function_in<'a>(cfg: &'a Cfg, order: Vec<BlockId>, rng: &mut Rng) -> Function<'a> {
    let loops = crate::loops(cfg, &order).into_iter();
    let unrolls = loops.map(|r| Unroll { copies: 1 + u32::try_from(rng.below(3)).unwrap(), ..r }).collect();
    Function { hot: rng.hot(order.len()), unrolls, ..Function::new(cfg, order, &[]) }
}

/// Returns a function's plan and bytes.
fn make(f: &Function<'_>) -> (Plan, Encoded) {
    let mut plan = plan(f, &[], &FxHashMap::default()).unwrap();
    relax(&mut plan).unwrap();
    let first = |i: usize| plan.fragments.get(i).map_or(plan.text_len(), |f| plan.position(f.first));
    let ranges: Vec<AvmaRange> = (0..plan.fragments.len())
        .zip([AT, WARM_AT])
        .map(|(i, at)| AvmaRange::with_len(at, u64::from(first(i + 1) - first(i))))
        .collect();
    let fragments = Fragments::new(&ranges).unwrap();
    let encoded = encode(f, &plan, fragments, DATA_AT, &clones()).unwrap();
    (plan, encoded)
}

/// Returns the ranges with the last one `by` bytes longer.
fn longer(e: &Encoded, by: u64) -> Fragments {
    let mut ranges: Vec<AvmaRange> = e.fragments.ranges().collect();
    let last = ranges.last_mut().unwrap();
    last.end = last.end.add(by);
    Fragments::new(&ranges).unwrap()
}

fn check(f: &Function<'_>, plan: &Plan, clone: &Encoded) -> Result<(), Refusal> {
    let map = AddressMap::new(clone.fragments.clone(), clone.entries()).ok_or(Refusal::RoundTrip)?;
    verify(f, plan, clone, &map, &clones())
}

#[test]
fn every_flipped_bit_is_found() {
    let (mut found, mut same, mut loops) = (0, 0, 0);
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let cfg = graph::graph(0x40_0000, &graph::random_function(&mut rng, 0x40_0000, &[0x41_0000]));
        // The original order of blocks has more loops.
        let own = cfg.block_ids().collect();
        let f = if seed % 2 == 0 { function(&cfg, &mut rng) } else { function_in(&cfg, own, &mut rng) };
        let (plan, good) = make(&f);
        assert_eq!(check(&f, &plan, &good), Ok(()));
        loops += plan.again.len();
        for _ in 0..200 {
            let mut bad = good.clone();
            let at = rng.below(bad.bytes.len());
            bad.bytes[at] ^= 1 << rng.below(8);
            if check(&f, &plan, &bad).is_err() {
                found += 1;
                continue;
            }
            // Some bits mean nothing, such as REX.X without an index register. A branch may also go to an
            // extra jump with the same destination.
            let all = |e: &Encoded| {
                let fragments = e.fragments().unwrap();
                let decode = |f: &Fragment<'_>| {
                    Decoder::with_ip(64, f.bytes, f.range.start.0, 0).into_iter().collect::<Vec<_>>()
                };
                fragments.iter().flat_map(decode).collect::<Vec<_>>()
            };
            let map = AddressMap::new(good.fragments.clone(), good.entries()).unwrap();
            let stands_for = |at: u64| map.to_original(Avma(at)).unwrap_or(Avma(at));
            let means = |i: &Instruction| stands_for(i.near_branch_target());
            // Both ways of a conditional branch may lead to one place.
            let one_way = |i: &Instruction| means(i) == stands_for(i.next_ip());
            for (a, b) in all(&bad).iter().zip(&all(&good)) {
                let alike = a.code() == b.code() || one_way(a) && one_way(b);
                let same_branch = b.near_branch_target() != 0 && alike && means(a) == means(b);
                assert!(a == b || same_branch, "seed {seed}: {a:?} for {b:?}");
            }
            same += 1;
        }
    }
    assert!(found > 20 * same && loops > 5, "{found} found, {same} without meaning; {loops} loops");
}

#[test]
fn every_wrong_entry_is_found() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let cfg = graph::graph(0x40_0000, &graph::random_function(&mut rng, 0x40_0000, &[0x41_0000]));
        let f = function(&cfg, &mut rng);
        let (plan, good) = make(&f);
        for i in 0..good.insts.len() {
            let mut bad = good.clone();
            // Moves the entry to the instruction behind the right one.
            bad.insts[i].entry.original = bad.insts[i].entry.original.add(1);
            assert!(check(&f, &plan, &bad).is_err(), "seed {seed}: entry {i}");
            let mut bad = good.clone();
            bad.insts[i].entry.at += 1;
            assert!(check(&f, &plan, &bad).is_err(), "seed {seed}: entry {i}");
            let mut bad = good.clone();
            bad.insts.remove(i);
            assert!(check(&f, &plan, &bad).is_err(), "seed {seed}: without entry {i}");
        }
    }
}

#[test]
fn every_wrong_fragment_address_is_found() {
    let mut split = 0;
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let cfg = graph::graph(0x40_0000, &graph::random_function(&mut rng, 0x40_0000, &[0x41_0000]));
        let f = function(&cfg, &mut rng);
        let (plan, good) = make(&f);
        let ranges: Vec<AvmaRange> = good.fragments.ranges().collect();
        let [first, second] = ranges[..] else { continue };
        split += 1;
        let moved = |r: AvmaRange, by: i64| AvmaRange::new(r.start.offset(by), r.end.offset(by));
        let cut = |by: i64| [AvmaRange::new(first.start, first.end.offset(by)), second];
        let wrong = [
            [first, moved(second, 1)],
            [first, moved(second, -1)],
            [moved(first, 1), second],
            [second, first],
            // Moves one byte from one fragment to the other: the sizes are right only together.
            [cut(-1)[0], AvmaRange::new(second.start, second.end.offset(1))],
            [cut(1)[0], AvmaRange::new(second.start.offset(1), second.end)],
        ];
        for ranges in wrong {
            let Some(fragments) = Fragments::new(&ranges) else { continue };
            let bad = Encoded { fragments, ..good.clone() };
            // A clone without jumps between fragments and without anything relative to its address may lie
            // anywhere.
            let leads = good.insts.iter().any(|i| i.entry.link == Link::Extra);
            assert!(
                check(&f, &plan, &bad).is_err() || !leads,
                "seed {seed}: {ranges:?} for {first:?}, {second:?}"
            );
        }
        let together = [AvmaRange::with_len(first.start, good.fragments.size())];
        let bad = Encoded { fragments: Fragments::new(&together).unwrap(), ..good.clone() };
        assert!(check(&f, &plan, &bad).is_err(), "seed {seed}: one for two");
    }
    assert!(split > 20, "{split}");
}

#[test]
fn every_wrong_table_is_found() {
    // jmp [rdi*8 + table]; ret; nop, ret
    let mut cfg = graph::graph(0x40_0000, &[0xff, 0x24, 0xfd, 0, 0, 0x41, 0, 0xc3, 0x90, 0xc3]);
    cfg.blocks[0].term = code::Term::Switch { table: TableId(0) };
    let block = |n| Dest::Block(BlockId(n));
    cfg.tables.push(code::JumpTable {
        at: Avma(0x41_0000),
        form: code::TableForm::Absolute8,
        targets: vec![block(1), block(2)],
        cloneable: Some(code::TableLoad {
            inst: InstId(0),
            base_value: None,
            differs: (InstId(1), InstId(1)),
        }),
    });
    let order = (0..3).map(BlockId).collect();
    let f = Function { order, hot: 2, ..function(&cfg, &mut Rng(0)) };
    let (plan, good) = make(&f);
    assert_eq!(check(&f, &plan, &good), Ok(()));
    let mut bad = good.clone();
    bad.data_at = DATA_AT.add(8);
    assert!(check(&f, &plan, &bad).is_err(), "reads another table");
    bad = good.clone();
    bad.data.swap(0, 8);
    assert!(check(&f, &plan, &bad).is_err(), "two targets exchanged");
    bad = good.clone();
    bad.data.truncate(8);
    assert!(check(&f, &plan, &bad).is_err(), "too short");
    bad = good;
    bad.fragments = longer(&bad, 1);
    assert!(check(&f, &plan, &bad).is_err(), "a byte without instruction");
}

/// `call *8(%rax); call LEAF; xor %eax, %eax; ret`, both calls inlined; the path through LEAF has two exits.
#[test]
fn a_wrong_inline_site_is_found() {
    // 0: mov 4(%rdi), %eax; test; je 3. 1: lea 0x10(%rip), %rcx; jne 4. 2: ret. 3: neg; ret. 4: ret.
    let bytes = [
        &[0x8b, 0x47, 0x04, 0x85, 0xc0, 0x74, 0x0a][..],
        &[0x48, 0x8d, 0x0d, 0x10, 0, 0, 0, 0x75, 0x04],
        &[0xc3, 0xf7, 0xd8, 0xc3, 0xc3],
    ]
    .concat();
    let leaf = graph::graph(LEAF.0, &bytes);
    let path = [0, 1, 2].map(BlockId);
    let leaf = Body { cfg: &leaf, path: &path, lsda: None };
    let call = [&[0xe8][..], &(0x41_0000i32 - 0x40_0008).to_le_bytes()].concat();
    let cfg = graph::graph(0x40_0000, &[&[0xff, 0x50, 0x08][..], &call, &[0x31, 0xc0, 0xc3]].concat());
    let guard = Some(Guard { register: Gpr::new(0).unwrap(), table: TABLE });
    let guarded = InlineSite { call: InstId(0), callee: LEAF, body: Some(leaf), guard };
    let direct = InlineSite { call: InstId(1), callee: LEAF, body: Some(leaf), guard: None };
    let f = Function {
        order: vec![BlockId(0)],
        hot: 1,
        inline_sites: vec![guarded, direct],
        ..function(&cfg, &mut Rng(1))
    };
    let (plan, good) = make(&f);
    assert_eq!(check(&f, &plan, &good), Ok(()));
    for at in 0..good.bytes.len() * 8 {
        let mut bad = good.clone();
        bad.bytes[at / 8] ^= 1 << (at % 8);
        let decode = |e: &Encoded| {
            let of =
                |f: &Fragment<'_>| Decoder::with_ip(64, f.bytes, f.range.start.0, 0).into_iter().collect();
            e.fragments().unwrap().iter().map(of).collect::<Vec<Vec<Instruction>>>()
        };
        // REX.B and REX.X mean nothing without a register that they extend.
        let found = check(&f, &plan, &bad).is_err();
        assert!(found || decode(&bad) == decode(&good), "bit {} of byte {}", at % 8, at / 8);
    }
    // Another table, or a table that does not lead to the callee, or not always.
    let mut other = good.clone();
    other.data[0] += 8;
    assert!(check(&f, &plan, &other).is_err());
    for table in [TABLE.add(8), Avma(0)] {
        let mut f = f.clone();
        f.inline_sites[0].guard = Some(Guard { register: Gpr::new(0).unwrap(), table });
        let (plan, made) = make(&f);
        assert!(check(&f, &plan, &made).is_err());
    }
    // Another function, with another exit destination.
    let mut bytes = bytes;
    bytes[6] = 0x0c;
    let other_leaf = graph::graph(LEAF.0, &bytes);
    let mut other = f.clone();
    other.inline_sites[1].body = Some(Body { cfg: &other_leaf, ..leaf });
    assert!(check(&other, &plan, &good).is_err());
    // The same function, covered by a landing pad of its own; a function that ends in a far return; a
    // function that reads the stack pointer, as the clone does.
    let call_sites = vec![unwind::CallSite {
        range: AvmaRange::with_len(LEAF, 3),
        landing_pad: Some(LEAF.add(19)),
        action: 0,
    }];
    let pads = unwind::Lsda { call_sites, actions: Vec::new(), types: Vec::new(), filters: Vec::new() };
    other.inline_sites[1].body = Some(Body { lsda: Some(&pads), ..leaf });
    assert!(check(&other, &plan, &good).is_err());
    bytes[6] = 0x0a;
    let with = |clone: &Encoded, at: usize, by: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + by.len()].copy_from_slice(by);
        let changed = graph::graph(LEAF.0, &bytes);
        let mut other = f.clone();
        other.inline_sites[1].body = Some(Body { cfg: &changed, ..leaf });
        check(&other, &plan, clone)
    };
    assert_eq!(with(&good, 3, &[0x85, 0xc0]), Ok(()));
    assert!(with(&good, 16, &[0xcb]).is_err());
    let mut reads = good.clone();
    let at = reads.bytes.windows(3).rposition(|w| w == [0x85, 0xc0, 0x0f]).unwrap();
    reads.bytes[at..at + 2].copy_from_slice(&[0x89, 0xe0]);
    assert!(with(&good, 3, &[0x89, 0xe0]).is_err() && with(&reads, 3, &[0x89, 0xe0]).is_err());
    // A body of another function.
    let mut f = f.clone();
    f.inline_sites[1].callee = LEAF.add(16);
    assert!(check(&f, &plan, &good).is_err());
}

#[test]
fn a_wrong_call_target_in_another_clone_is_found() {
    let cfg = graph::graph(0x40_0000, &graph::random_function(&mut Rng(5), 0x40_0000, &[0x41_0000]));
    let order = cfg.block_ids().collect();
    let f = Function { hot: cfg.blocks.len(), ..Function::new(&cfg, order, &[]) };
    let (_, clone) = make(&f);
    let map = AddressMap::new(clone.fragments.clone(), clone.entries()).unwrap();
    let starts: Vec<Avma> = cfg.blocks.iter().map(|b| b.range.start).collect();
    let wrong = |rests: &[(Avma, Avma)]| {
        let mut wrong: Vec<Avma> =
            wrong_rests(&rests.iter().copied().collect(), std::iter::once(&map)).into_iter().collect();
        wrong.sort_unstable();
        wrong
    };
    let right: Vec<(Avma, Avma)> = starts.iter().map(|&at| (at, map.to_clone(at).unwrap())).collect();
    assert!(right.len() > 3);
    assert_eq!(wrong(&right), []);
    // One byte further, in no clone, and each at the address of the other.
    assert_eq!(wrong(&[(right[0].0, right[0].1.add(1)), right[1]]), [right[0].0]);
    assert_eq!(wrong(&[(right[0].0, AT.sub(1)), right[1]]), [right[0].0]);
    assert_eq!(wrong(&[(right[0].0, right[1].1), (right[1].0, right[0].1)]), [right[0].0, right[1].0]);
}
