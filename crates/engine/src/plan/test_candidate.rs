//! Candidates and clones for tests.

use crate::analyse::program::{Analysed, FuncId};
use crate::plan::candidate::{Candidate, Certainty, Counted, Measured};
use crate::plan::laid_out::{BlockOrder, Inlined, Instrumented, Layout, Linked, Ordered};
use addr::{Addr, Avma};
use code::{BlockId, Cfg, Gpr, InstId, RedirectSites};
use emit::{Body, Function, Guard, InlineSite, Output, Request, Unroll};
use image::ModuleId;
use profile::{BlockCounts, Counts};
use unwind::{CfaRule, Reg, Row};

/// Four blocks, of 1, 2, 1 and 1 instructions.
const FUNCTION: &str = "\
function 0x1000
part 0x1000..0x1009
block b0 0x1000
  75 01
  cond ne b2 else b1
block b1 0x1002
  90
  c3
  return
block b2 0x1004
  74 02
  cond e 0x1008 else b3
block b3 0x1006
  c3
  return
";

/// Returns a function with these counts of its blocks. Its entry is its index times 0x1000.
pub(crate) fn counted(index: u32, counts: &[u64], samples: u64) -> Counted {
    let mut cfg = code::parse(FUNCTION).unwrap();
    cfg.entry = Avma(u64::from(index) * 0x1000);
    let analysed = Analysed {
        cfg,
        text: Vec::new(),
        rows: Vec::new(),
        lsda: None,
        personality: None,
        signal_frame: false,
    };
    let candidate = Candidate { id: FuncId { module: ModuleId(0), index }, analysed, samples };
    let block = |&count: &u64| BlockCounts { count, ..BlockCounts::default() };
    let counts = Counts { entry: 0, blocks: counts.iter().map(block).collect() };
    let measured = Measured { counts, certainty: Certainty::Counted, ..Measured::unknown(candidate) };
    Counted { measured, hits: Vec::new() }
}

/// Sets the counts of edges, block by block.
pub(crate) fn set_edges(counts: &mut Counts, edges: &[&[u64]]) {
    for (block, edges) in counts.blocks.iter_mut().zip(edges) {
        block.edges = edges.to_vec();
    }
}

/// Returns the same with an order of its blocks. None is hot.
pub(crate) fn ordered(index: u32, order: &[u32], counts: &[u64], samples: u64) -> Ordered {
    Ordered { counted: counted(index, counts, samples), order: block_order(order, 0) }
}

/// Returns a function with this order and nothing inlined.
pub(crate) fn inlined(counted: Counted, order: &[u32], hot: usize) -> Inlined {
    let linked = Linked { counted, layout: layout(order, hot) };
    Inlined { linked, way: None, inline_sites: Vec::new() }
}

/// Returns a clone of a function that counts nothing.
pub(crate) fn instrumented<'a>(measured: &'a Measured, order: &[u32], hot: usize) -> Instrumented<'a> {
    Instrumented { measured, layout: layout(order, hot), counters: Vec::new(), watches: Vec::new() }
}

fn layout(order: &[u32], hot: usize) -> Layout {
    let order = block_order(order, hot);
    Layout { order, sites: RedirectSites::default(), through_redirects: Vec::new() }
}

fn block_order(order: &[u32], hot: usize) -> BlockOrder {
    BlockOrder::new(order.iter().map(|&b| BlockId(b)).collect(), hot)
}

/// `dec; jne b0; b1: ret`
pub(crate) const LOOP: &str = "\
function 0x1000
part 0x1000..0x1006
block b0 0x1000
  48 ff c8
  75 fb
  cond ne b0 else b1
block b1 0x1005
  c3
  return
";

/// Returns a clone with these blocks of a function without cold fragments; the first `hot` blocks lie apart
/// from the others.
pub(crate) fn cloned(cfg: &Cfg, order: Vec<BlockId>, hot: usize, text_at: Avma) -> Output {
    cloned_again(cfg, order, hot, &[], text_at)
}

/// Returns the same with these loops unrolled.
pub(crate) fn cloned_again(
    cfg: &Cfg,
    order: Vec<BlockId>,
    hot: usize,
    unrolls: &[Unroll],
    text_at: Avma,
) -> Output {
    let rows = rows(cfg);
    let unrolls = unrolls.to_vec();
    emitted(vec![Function { hot, unrolls, ..Function::new(cfg, order, &rows) }], text_at)
}

/// Returns a clone of a whole function whose entry is redirected, with these calls through redirects.
pub(crate) fn cloned_through_redirects(cfg: &Cfg, through_redirects: Vec<InstId>, text_at: Avma) -> Output {
    let rows = rows(cfg);
    let order = cfg.block_ids().collect();
    emitted(
        vec![Function { through_redirects, is_redirected: true, ..Function::new(cfg, order, &rows) }],
        text_at,
    )
}

fn rows(cfg: &Cfg) -> [Row; 1] {
    [Row { range: cfg.parts[0], cfa: CfaRule::RegOffset(Reg::RSP, 8), regs: Vec::new(), args_size: 0 }]
}

fn emitted(functions: Vec<Function<'_>>, text_at: Avma) -> Output {
    emitted_with(functions, text_at, &|_| None)
}

fn emitted_with(
    functions: Vec<Function<'_>>,
    text_at: Avma,
    constant: &dyn Fn(Avma) -> Option<Avma>,
) -> Output {
    let data_at = text_at.add(0x10_0000);
    emit::emit(&Request { text_at, data_at, functions, stubs: &Default::default(), constant }).unwrap()
}

/// `call 0x2000; ret`
const CALLER: &str = "\
function 0x1000
part 0x1000..0x1006
block b0 0x1000
  e8 fb 0f 00 00
  c3
  return
";
/// `test; je b2; b1: add; b2: ret`
const CALLEE: &str = "\
function 0x2000
part 0x2000..0x2009
block b0 0x2000
  48 85 c0
  74 03
  cond e b2 else b1
block b1 0x2005
  48 01 d8
  fall b2
block b2 0x2008
  c3
  return
";

/// Returns a caller, its callee, and clones of both. The callee is inlined, except behind its taken branch.
pub(crate) fn cloned_inlined(text_at: Avma) -> ([Cfg; 2], Output) {
    let cfgs = [CALLER, CALLEE].map(|text| code::parse(text).unwrap());
    let rows = cfgs.each_ref().map(rows);
    let path = [0, 1, 2].map(BlockId);
    let body = Body { cfg: &cfgs[1], path: &path, lsda: None };
    let inline_site = InlineSite { call: InstId(0), callee: cfgs[1].entry, body: Some(body), guard: None };
    let function = |i: usize, inline_sites| Function {
        inline_sites,
        ..Function::new(&cfgs[i], cfgs[i].block_ids().collect(), &rows[i])
    };
    let out = emitted(vec![function(0, vec![inline_site]), function(1, Vec::new())], text_at);
    assert_eq!(out.stats.inlined, 1);
    (cfgs, out)
}

/// `call *8(%rax); ret`
const VIRTUAL: &str = "\
function 0x1000
part 0x1000..0x1004
block b0 0x1000
  ff 50 08
  c3
  return
";

/// Returns a function that begins with a call through a virtual table, and its clone, in which the call is guarded.
pub(crate) fn cloned_guarded(text_at: Avma) -> (Cfg, Output) {
    let cfg = code::parse(VIRTUAL).unwrap();
    let (table, callee) = (Avma(0x45_0000), Avma(0x2000));
    let guard = Some(Guard { register: Gpr::new(0).unwrap(), table });
    let inline_sites = vec![InlineSite { call: InstId(0), callee, body: None, guard }];
    let rows = rows(&cfg);
    let function = Function { inline_sites, ..Function::new(&cfg, cfg.block_ids().collect(), &rows) };
    let out = emitted_with(vec![function], text_at, &|at| (at == table.add(8)).then_some(callee));
    (cfg, out)
}
