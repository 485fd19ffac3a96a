//! The proof must fail for bytes, maps and tables that are wrong: each is damaged on purpose.

use super::*;
use crate::encode::encode;
use crate::plan::plan;
use crate::relax::relax;
use addr::AvmaRange;
use rng::Rng;
use rustc_hash::FxHashMap;

#[path = "../tests/common/graph.rs"]
mod graph;
#[path = "../tests/common/rng.rs"]
mod rng;

const AT: Avma = Avma(0x50_0000);

fn no_clone(_: Avma) -> Option<Avma> {
    None
}

fn clones() -> Clones<'static> {
    Clones { here: FxHashMap::default(), known: &no_clone, stubs: Box::leak(Box::default()) }
}

fn function<'a>(cfg: &'a code::Cfg, rng: &mut Rng) -> Function<'a> {
    Function {
        cfg,
        order: rng.order(cfg.blocks.len(), 7),
        align_blocks: Vec::new(),
        counters: Vec::new(),
        watches: Vec::new(),
        window: None,
        rows: &[],
        lsda: None,
        personality: None,
        signal_frame: false,
        align: 16,
    }
}

fn check(f: &Function<'_>, plan: &Plan, clone: &Encoded, tables_at: &[Avma]) -> Result<(), Refusal> {
    let map = AddressMap::new(clone.range, clone.entries.clone()).ok_or(Refusal::RoundTrip)?;
    verify(f, plan, clone, &map, tables_at, &clones())
}

#[test]
fn every_flipped_bit_is_found() {
    let (mut found, mut same) = (0, 0);
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let cfg = graph::graph(0x40_0000, &graph::random_function(&mut rng, 0x40_0000, &[0x41_0000]));
        let f = function(&cfg, &mut rng);
        let mut plan = plan(&f, &[], &FxHashMap::default()).unwrap();
        let offsets = relax(&mut plan).unwrap();
        let good = encode(&f, &plan, &offsets, AT, &[], &clones()).unwrap();
        assert_eq!(check(&f, &plan, &good, &[]), Ok(()));
        for _ in 0..200 {
            let mut bad = good.clone();
            let at = rng.below(bad.bytes.len());
            bad.bytes[at] ^= 1 << rng.below(8);
            if check(&f, &plan, &bad, &[]).is_err() {
                found += 1;
                continue;
            }
            // Some bits mean nothing, like REX.X without an index register; and a branch may go to an extra jump
            // that goes where the branch went.
            let all = |e: &Encoded| Decoder::with_ip(64, &e.bytes, AT.0, 0).into_iter().collect::<Vec<_>>();
            let map = AddressMap::new(good.range, good.entries.clone()).unwrap();
            let means = |i: &Instruction| map.to_original(Avma(i.near_branch_target()));
            for (a, b) in all(&bad).iter().zip(&all(&good)) {
                let same_branch = a.code() == b.code() && means(a).is_some() && means(a) == means(b);
                assert!(a == b || same_branch, "seed {seed}: {a:?} for {b:?}");
            }
            same += 1;
        }
    }
    assert!(found > 20 * same, "{found} found, {same} without meaning");
}

#[test]
fn every_wrong_entry_is_found() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let cfg = graph::graph(0x40_0000, &graph::random_function(&mut rng, 0x40_0000, &[0x41_0000]));
        let f = function(&cfg, &mut rng);
        let mut plan = plan(&f, &[], &FxHashMap::default()).unwrap();
        let offsets = relax(&mut plan).unwrap();
        let good = encode(&f, &plan, &offsets, AT, &[], &clones()).unwrap();
        for i in 0..good.entries.len() {
            let mut bad = good.clone();
            // To the instruction behind the right one.
            bad.entries[i].original = bad.entries[i].original.add(1);
            assert!(check(&f, &plan, &bad, &[]).is_err(), "seed {seed}: entry {i}");
            let mut bad = good.clone();
            bad.entries[i].at += 1;
            assert!(check(&f, &plan, &bad, &[]).is_err(), "seed {seed}: entry {i}");
            let mut bad = good.clone();
            bad.entries.remove(i);
            bad.insts.remove(i);
            assert!(check(&f, &plan, &bad, &[]).is_err(), "seed {seed}: without entry {i}");
        }
    }
}

#[test]
fn every_wrong_table_is_found() {
    // jmp [rdi*8 + table]; ret; nop, ret
    let mut cfg = graph::graph(0x40_0000, &[0xff, 0x24, 0xfd, 0, 0, 0x41, 0, 0xc3, 0x90, 0xc3]);
    cfg.blocks[0].term = code::Term::Switch { table: 0 };
    let block = |n| Dest::Block(code::BlockId(n));
    cfg.tables.push(code::JumpTable {
        at: Avma(0x41_0000),
        form: code::TableForm::Absolute8,
        targets: vec![block(1), block(2)],
        cloneable: Some(code::TableLoad { inst: 0, base_value: None, differs: (1, 1) }),
    });
    let f = Function { order: (0..3).map(code::BlockId).collect(), ..function(&cfg, &mut Rng(0)) };
    let mut plan = plan(&f, &[], &FxHashMap::default()).unwrap();
    let offsets = relax(&mut plan).unwrap();
    let at = [Avma(0x60_0000)];
    let good = encode(&f, &plan, &offsets, AT, &at, &clones()).unwrap();
    assert_eq!(check(&f, &plan, &good, &at), Ok(()));
    assert!(check(&f, &plan, &good, &[Avma(0x60_0008)]).is_err(), "reads another table");
    let mut bad = good.clone();
    bad.tables[0].swap(0, 8);
    assert!(check(&f, &plan, &bad, &at).is_err(), "two targets exchanged");
    bad = good.clone();
    bad.tables[0].truncate(8);
    assert!(check(&f, &plan, &bad, &at).is_err(), "too short");
    bad = good;
    bad.range = AvmaRange::with_len(AT, bad.range.len() + 1);
    assert!(check(&f, &plan, &bad, &at).is_err(), "a byte without instruction");
}
