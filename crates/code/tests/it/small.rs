//! Small functions, byte by byte: which code is followed, where the graph ends, and what is refused.

use addr::{Avma, AvmaRange};
use code::{BlockId, CalleeKind, Cfg, Dest, Input, InstId, Liveness, Part, Refusal, Term, analyse};
use unwind::{CfaRule, Reg, Row};

const AT: u64 = 0x1000;

/// Analyses bytes under rows given as (offset of their start, rsp offset of the frame).
fn run(bytes: &[u8], rows: &[(u64, i64)], callee: CalleeKind) -> Result<Cfg, Refusal> {
    let end = |i: usize| rows.get(i + 1).map_or(bytes.len() as u64, |r| r.0);
    let rows: Vec<Row> = rows
        .iter()
        .enumerate()
        .map(|(i, &(from, cfa))| Row {
            range: AvmaRange::new(Avma(AT + from), Avma(AT + end(i))),
            cfa: CfaRule::RegOffset(Reg::RSP, cfa),
            regs: Vec::new(),
            args_size: 0,
        })
        .collect();
    analyse(&Input {
        entry: Avma(AT),
        parts: &[Part { range: AvmaRange::with_len(Avma(AT), bytes.len() as u64), bytes }],
        rows: &rows,
        landing_pads: &[],
        constant: &|_| None,
        callee: &|_| callee,
        is_function: &|_| false,
    })
}

fn plain(bytes: &[u8]) -> Result<Cfg, Refusal> {
    run(bytes, &[(0, 8)], CalleeKind::Ordinary)
}

#[test]
fn branches_and_blocks() {
    // 0: test edi,edi; 2: je 7; 4: dec edi; 6: nop; 7: jmp 2; (a loop with an entry of its own)
    let cfg = plain(&[0x85, 0xff, 0x74, 0x03, 0xff, 0xcf, 0x90, 0xeb, 0xf9]).unwrap();
    let starts: Vec<u64> = cfg.blocks.iter().map(|b| b.range.start.0 - AT).collect();
    assert_eq!(starts, [0, 2, 4, 7]);
    assert_eq!(cfg.blocks[3].term, Term::Jump { to: Dest::Block(BlockId(1)) });
    assert_eq!(cfg.blocks[2].term, Term::Fall { next: Dest::Block(BlockId(3)) });
}

#[test]
fn the_graph_ends_where_the_function_does() {
    // Falls off its end; jumps away; jumps to its entry.
    assert_eq!(plain(&[0x90]).unwrap().blocks[0].term, Term::Fall { next: Dest::Outside(Avma(AT + 1)) });
    let away = plain(&[0xe9, 0, 1, 0, 0]).unwrap();
    assert_eq!(away.blocks[0].term, Term::Jump { to: Dest::Outside(Avma(AT + 0x105)) });
    assert_eq!(plain(&[0xeb, 0xfe]).unwrap().blocks[0].term, Term::Jump { to: Dest::Block(BlockId(0)) });
}

#[test]
fn calls_that_do_not_return() {
    let call = [0xe8, 0, 0, 1, 0];
    let next = Avma(AT + 5);
    let ends = |r: Result<Cfg, Refusal>| {
        let cfg = r.unwrap();
        assert_eq!(cfg.blocks.len(), 1);
        assert_eq!(cfg.blocks[0].term, Term::NoReturnCall { next });
    };
    ends(plain(&call));
    // Junk after it; another frame after it, at once or after padding; a callee known not to return.
    ends(plain(&[&call[..], &[0x06]].concat()));
    ends(run(&[&call[..], &[0xc3]].concat(), &[(0, 8), (5, 16)], CalleeKind::Ordinary));
    ends(run(&[&call[..], &[0x90, 0xc3]].concat(), &[(0, 8), (6, 16)], CalleeKind::Ordinary));
    ends(run(&[&call[..], &[0xc3]].concat(), &[(0, 8)], CalleeKind::NoReturn));
    assert_eq!(plain(&[&call[..], &[0xc3]].concat()).unwrap().blocks[0].term, Term::Return);
}

#[test]
fn refusals() {
    let call = [0xe8, 0, 0, 1, 0, 0xc3];
    assert_eq!(run(&call, &[(0, 8)], CalleeKind::ReturnsTwice).unwrap_err(), Refusal::ReturnsTwice);
    assert_eq!(run(&call, &[(0, 8)], CalleeKind::CallerSensitive).unwrap_err(), Refusal::CallerSensitive);
    assert_eq!(plain(&[0x06]).unwrap_err(), Refusal::BadInstruction);
    // A jump into the middle of `mov eax, imm32`.
    assert_eq!(plain(&[0xb8, 0x90, 0x90, 0x90, 0xc3, 0xeb, 0xfa]).unwrap_err(), Refusal::OverlappingCode);
    // `call` of the next instruction.
    assert_eq!(plain(&[0xe8, 0, 0, 0, 0, 0x58, 0xc3]).unwrap_err(), Refusal::ReadsOwnAddress);
    assert_eq!(run(&[0x90, 0xc3], &[(1, 8)], CalleeKind::Ordinary).unwrap_err(), Refusal::NoUnwindInfo);
    assert_eq!(plain(&[]).unwrap_err(), Refusal::Unreadable);
}

#[test]
fn a_jump_past_a_lock_prefix_leaves() {
    // je +1; lock cmpxchg [rsi], edi; ret
    let cfg = plain(&[0x74, 0x01, 0xf0, 0x0f, 0xb1, 0x3e, 0xc3]).unwrap();
    let Term::Cond { taken, fall, .. } = cfg.blocks[0].term else { panic!() };
    assert_eq!((taken, fall), (Dest::Outside(Avma(AT + 3)), Dest::Block(BlockId(1))));
}

#[test]
fn transactions_stay_in_the_original() {
    // nop; xbegin; ret
    let cfg = plain(&[0x90, 0xc7, 0xf8, 0, 0, 0, 0, 0xc3]).unwrap();
    assert_eq!(cfg.blocks[0].term, Term::Fall { next: Dest::Outside(Avma(AT + 1)) });
    assert_eq!(cfg.insts.len(), 1);
}

#[test]
fn rows_must_agree_with_the_stack() {
    // push rbx; sub rsp,16; add rsp,16; pop rbx; ret
    let code = [0x53, 0x48, 0x83, 0xec, 0x10, 0x48, 0x83, 0xc4, 0x10, 0x5b, 0xc3];
    let right = [(0, 8), (1, 16), (5, 32), (9, 16), (10, 8)];
    assert!(run(&code, &right, CalleeKind::Ordinary).is_ok());
    for wrong in 0..right.len() {
        let mut rows = right;
        rows[wrong].1 += 8;
        let r = run(&code, &rows, CalleeKind::Ordinary);
        assert_eq!(r.unwrap_err(), Refusal::UnwindDisagrees, "{wrong}");
    }
    // Over an edge: je 4 (to the ret); push rax; pop rax, where the ret has the row of the push.
    let code = [0x74, 0x02, 0x50, 0x58, 0xc3];
    assert!(run(&code, &[(0, 8), (3, 16), (4, 8)], CalleeKind::Ordinary).is_ok());
    assert!(run(&code, &[(0, 8), (3, 16)], CalleeKind::Ordinary).is_err());
}

#[test]
fn live_registers_and_flags() {
    // 0: cmp edi,1; 3: mov eax,esi; 5: je 9; 7: shl edx,cl; 9: jmp *rcx
    let cfg = plain(&[0x83, 0xff, 0x01, 0x89, 0xf0, 0x74, 0x02, 0xd3, 0xe2, 0xff, 0xe1]).unwrap();
    let live = Liveness::compute(&cfg);
    const ZF: u16 = 4;
    const CF: u16 = 16;
    assert_eq!(live.flags_live_before(InstId(0)) & (ZF | CF), 0);
    assert_eq!(live.flags_live_before(InstId(1)) & ZF, ZF);
    // A shift by a register may shift by nothing and leave the flags.
    assert_eq!(live.flags_live_before(InstId(3)) & CF, CF);
    // rax is written before it is read; everything else is live to the end.
    assert_eq!(live.live_in(BlockId(0)).regs(), !1);
}
