//! Candidates and clones for tests.

use crate::candidates::Candidate;
use crate::program::{Analysed, FuncId};
use addr::{Addr, Avma};
use code::{BlockId, Cfg};
use emit::{Function, Output, Request};
use profile::Counts;
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

/// One with these of its blocks, which ran so often; entered at its index times 0x1000.
pub(crate) fn candidate(index: u32, order: &[u32], counts: &[u64], counted: bool, samples: u64) -> Candidate {
    let mut cfg = code::parse(FUNCTION).unwrap();
    cfg.entry = Avma(u64::from(index) * 0x1000);
    let analysed = Analysed { cfg, rows: Vec::new(), lsda: None, personality: None, signal_frame: false };
    let mut c = Candidate::new(FuncId { module: 0, index }, analysed, samples);
    c.order = order.iter().map(|&b| BlockId(b)).collect();
    c.counts = Counts { blocks: counts.to_vec(), ..Counts::default() };
    c.counted = counted;
    c
}

/// A clone of these blocks of a function in one part, the first `hot` of them apart from the others.
pub(crate) fn cloned(cfg: &Cfg, order: Vec<BlockId>, hot: usize, text_at: Avma) -> Output {
    let range = cfg.parts[0];
    let rows = [Row { range, cfa: CfaRule::RegOffset(Reg::RSP, 8), regs: Vec::new(), args_size: 0 }];
    let function = Function { hot, align: 16, ..Function::new(cfg, order, &rows) };
    let request = Request {
        text_at,
        data_at: text_at.add(0x10_0000),
        functions: vec![function],
        known: &|_| None,
        stubs: &Default::default(),
        constant: &|_| None,
    };
    emit::emit(&request).unwrap()
}
