//! A function's code with the jump tables behind it: its graph, which must satisfy `code::verify`.
#![no_main]
use addr::{Avma, AvmaRange, ReadMemory};
use code::{CalleeKind, Input, Part, analyse, verify};
use unwind::{CfaRule, Reg, Row};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let range = AvmaRange::with_len(Avma(0x1000), bytes.len() as u64 / 2);
    let row = Row { range, cfa: CfaRule::RegOffset(Reg::RBP, 16), regs: Vec::new(), args_size: 0 };
    let constant = |r| (range.start, bytes).bytes(r).ok();
    let part = Part { range, bytes: &bytes[..bytes.len() / 2] };
    let (parts, rows, callee) = (&[part], &[row], &|_| CalleeKind::Ordinary);
    let is_function = &|_| true;
    let input =
        Input { entry: range.start, parts, rows, landing_pads: &[], constant: &constant, callee, is_function };
    analyse(&input).iter().for_each(|cfg| verify(cfg, &|r| constant(r).filter(|_| range.covers(&r))).unwrap());
});
