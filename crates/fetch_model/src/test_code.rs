//! A caller and its callee, and clones of both.

use addr::{Addr, Avma};
use code::{BlockId, Cfg};
use emit::{Body, Function, InlineSite, Output, Request, Unroll};
use profile::Counts;
use proptest::prelude::*;
use unwind::{CfaRule, Reg, Row};

/// `test; je b2; b1: call 0x2000; dec; nop; b2: dec; jne b1; b3: jrcxz b5; b4: jmp b6; b5: dec; jne b5; b6: ret`
const CALLER: &str = "\
function 0x1000
part 0x1000..0x101b
block b0 0x1000
  48 85 ff
  74 09
  cond e b2 else b1
block b1 0x1005
  e8 f6 0f 00 00
  48 ff c8
  90
  fall b2
block b2 0x100e
  ff c9
  75 f3
  cond ne b1 else b3
block b3 0x1012
  e3 02
  short b5 else b4
block b4 0x1014
  eb 04
  jump b6
block b5 0x1016
  ff c8
  75 fc
  cond ne b5 else b6
block b6 0x101a
  c3
  return
";

/// `endbr64; test; je b2; b1: add; b2: ret`
const CALLEE: &str = "\
function 0x2000
part 0x2000..0x200d
block b0 0x2000
  f3 0f 1e fa
  48 85 c0
  74 03
  cond e b2 else b1
block b1 0x2009
  48 01 d8
  fall b2
block b2 0x200c
  c3
  return
";

pub(crate) fn caller() -> Cfg {
    code::parse(CALLER).unwrap()
}

pub(crate) fn callee() -> Cfg {
    code::parse(CALLEE).unwrap()
}

/// Generates counts of both functions. They are consistent, except that some blocks are also left by no edge.
pub(crate) fn arb_counts() -> impl Strategy<Value = (Counts, Counts)> {
    let some = |n| prop::collection::vec(0u64..100, n);
    let unseen = prop_oneof![Just(vec![0; 7]), prop::collection::vec(0u64..9, 7)];
    (some(7), some(3), unseen).prop_map(|(a, b, unseen)| {
        let mut both = (profile::infer(&caller(), &a), profile::infer(&callee(), &b));
        for counts in [&mut both.0, &mut both.1] {
            counts.blocks.iter_mut().zip(&unseen).for_each(|(b, more)| b.outflow += more);
        }
        both
    })
}

/// Address of the clones' text.
pub(crate) const TEXT: Avma = Avma(0x10_0000);

/// Emits clones of these blocks of both functions; the second number of each pair says how many of them are
/// hot. The caller's loops are unrolled three times.
pub(crate) fn cloned(caller: (&[u32], usize), callee: (&[u32], usize)) -> Output {
    cloned_inlined(caller, callee, &[])
}

/// Does the same as [`cloned`], and inlines these blocks of the callee if they are a path through it.
pub(crate) fn cloned_inlined(caller: (&[u32], usize), callee: (&[u32], usize), way: &[u32]) -> Output {
    let (a, b) = (self::caller(), self::callee());
    let way: Vec<BlockId> = way.iter().map(|&b| BlockId(b)).collect();
    let body = Body { cfg: &b, path: &way, lsda: None };
    let calls = a.numbered_insts().filter(|(_, i)| i.decoded.is_call_near());
    let inline_sites = calls.filter(|_| emit::can_inline(body)).map(|(call, _)| InlineSite {
        call,
        callee: b.entry,
        body: Some(body),
        guard: None,
    });
    let inline_sites: Vec<InlineSite<'_>> = inline_sites.collect();
    let row = |cfg: &Cfg| Row {
        range: cfg.parts[0],
        cfa: CfaRule::RegOffset(Reg::RSP, 8),
        regs: Vec::new(),
        args_size: 0,
    };
    let (rows_a, rows_b) = ([row(&a)], [row(&b)]);
    let order: Vec<BlockId> = caller.0.iter().map(|&b| BlockId(b)).collect();
    let loops = emit::loops(&a, &order).into_iter().map(|r| Unroll { copies: 3, ..r }).collect();
    let function = |cfg, rows, (order, hot): (&[u32], usize), inline_sites, unrolls| Function {
        hot,
        inline_sites,
        unrolls,
        ..Function::new(cfg, order.iter().map(|&b| BlockId(b)).collect(), rows)
    };
    let request = Request {
        text_at: TEXT,
        data_at: TEXT.add(0x10_0000),
        functions: vec![
            function(&a, &rows_a[..], caller, inline_sites.clone(), loops),
            function(&b, &rows_b[..], callee, Vec::new(), Vec::new()),
        ],
        stubs: &Default::default(),
        constant: &|_| None,
    };
    emit::emit(&request).unwrap()
}

/// Generates an order of blocks, the entry first and then some of the others, and how many of them are hot.
pub(crate) fn arb_order(blocks: u32) -> impl Strategy<Value = (Vec<u32>, usize)> {
    (Just((1..blocks).collect::<Vec<u32>>()).prop_shuffle(), 0..blocks as usize, 0..=blocks as usize)
        .prop_map(|(mut rest, kept, hot)| {
            rest.truncate(kept);
            rest.insert(0, 0);
            let hot = hot.min(rest.len());
            (rest, hot)
        })
}
