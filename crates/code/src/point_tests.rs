use super::*;
use crate::parse;

const INC: Option<Spot> = Some(Spot { skip: 0, by: CountBy::Inc });

fn at(cfg: &Cfg, point: Point) -> Option<Spot> {
    point.countable(cfg, &Liveness::compute(cfg))
}

fn inc_behind(skip: u32) -> Option<Spot> {
    Some(Spot { skip, by: CountBy::Inc })
}

fn register(r: u8) -> Option<Spot> {
    Some(Spot { skip: 0, by: CountBy::Register(Gpr::new(r)?) })
}

fn edge(from: u32, index: u32) -> Point {
    Point::Edge { from: BlockId(from), index }
}

/// Returns a graph of an entry that jumps to a block, which ends as `end` says.
fn ends(code: &str, end: &str) -> Cfg {
    let text = format!(
        "function 0x1000\npart 0x1000..0x1080\nfunctions 0x2000\n\
         block b0 0x1000\n eb 00\n jump b1\n\
         block b1 0x1002\n {code}\n {end}\n"
    );
    parse(&text).unwrap()
}

/// Returns the counter in a block behind which everything is live.
fn in_block(code: &str) -> Option<Spot> {
    at(&ends(code, "fall 0x1070"), Point::Block(BlockId(1)))
}

/// Returns the counter on the only edge to such a block.
fn before(code: &str) -> Option<Spot> {
    at(&ends(code, "fall 0x1070"), edge(0, 0))
}

#[test]
fn dead_flags_take_an_inc() {
    // test %eax,%eax sets all flags; no register is free. A call passes no flags to its callee. With a free
    // register, the shorter form is still used.
    for code in ["85 c0", "e8 00 10 00 00", "31 c0"] {
        assert_eq!((in_block(code), before(code)), (INC, INC), "{code}");
    }
}

#[test]
fn inc_keeps_the_carry() {
    // adc $0,%eax reads the carry alone.
    assert_eq!((in_block("15 00 00 00 00"), before("15 00 00 00 00")), (INC, INC));
    // seta reads zero, too.
    assert_eq!(before("0f 97 c0\n 85 c0"), None);
}

#[test]
fn live_flags_take_a_register() {
    // sete %cl, then a register is overwritten: rax, r8.
    for (code, r) in [("0f 94 c1\n b8 01 00 00 00", 0), ("0f 94 c1\n 41 b8 01 00 00 00", 8)] {
        assert_eq!((in_block(code), before(code)), (register(r), register(r)), "{code}");
    }
    // rbp, r12 and r13 are callee-saved and so not free, nor is a part of rax.
    for code in
        ["0f 94 c1\n bd 01 00 00 00", "0f 94 c1\n 41 bc 01 00 00 00\n 41 bd 01 00 00 00", "0f 94 c1\n b0 01"]
    {
        assert_eq!((in_block(code), before(code)), (None, None), "{code}");
    }
    // rax is not free either, as it is read before it is written; but rdx is free.
    assert_eq!(before("0f 94 c1\n 89 c2\n b8 01 00 00 00"), register(2));
}

#[test]
fn a_block_is_counted_behind_readers_of_flags() {
    // sete %cl; test %eax,%eax: between the two.
    assert_eq!((in_block("0f 94 c1\n 85 c0"), before("0f 94 c1\n 85 c0")), (inc_behind(1), None));
    // One instruction there is better than three at the start, where mov $1,%eax frees rax.
    assert_eq!(in_block("0f 94 c1\n b8 01 00 00 00\n 85 c0"), inc_behind(1));
    // Not behind the last reader: the code that follows may read all flags.
    assert_eq!(in_block("0f 94 c1\n 90"), None);
    // Before the branch that ends the block: jmp *%rcx; ret.
    assert_eq!(at(&ends("0f 94 c1\n ff e1", "indirect"), Point::Block(BlockId(1))), None);
    assert_eq!(at(&ends("0f 94 c1\n c3", "return"), Point::Block(BlockId(1))), inc_behind(1));
    // A redirect may lead to an endbr64.
    assert_eq!(in_block("f3 0f 1e fa\n 85 c0"), inc_behind(1));
}

#[test]
fn no_counter_behind_a_call_that_may_not_return() {
    // pushf; sete %cl; then test %eax,%eax; or a call, a system call or an int before that.
    assert_eq!(in_block("9c\n 0f 94 c1\n 85 c0"), inc_behind(2));
    assert_eq!(in_block("9c\n 0f 94 c1\n e8 00 10 00 00\n 85 c0"), inc_behind(2));
    // A system call leaves an address in rcx.
    assert_eq!(in_block("9c\n 0f 05\n 0f 94 c1\n 85 c0"), register(1));
    assert_eq!(in_block("9c\n cd 80\n 0f 94 c1\n 85 c0"), None);
}

#[test]
fn no_counter_if_everything_is_live() {
    for code in ["90", "d3 c0"] {
        // A rotation by %cl may be by 0, and change no flag.
        assert_eq!((in_block(code), before(code)), (None, None), "{code}");
    }
    // The destination of an indirect jump is unknown.
    let cfg = ends("ff e1", "indirect");
    assert_eq!((at(&cfg, Point::Block(BlockId(1))), at(&cfg, edge(0, 0))), (None, None));
}

#[test]
fn no_flags_pass_between_functions() {
    // ret; jmp to a function; jmp to unknown code.
    let code = |code, end| {
        let cfg = ends(code, end);
        (at(&cfg, edge(0, 0)), at(&cfg, edge(1, 0)))
    };
    assert_eq!(code("c3", "return").0, INC);
    assert_eq!(code("e9 f9 0f 00 00", "jump 0x2000"), (INC, INC));
    assert_eq!(code("e9 fa 0f 00 00", "jump 0x2001"), (None, None));
    // The carry is like the other flags: none passes to a function.
    let cfg = parse(
        "function 0x1000\npart 0x1000..0x1020\nfunctions 0x2000
         block b0 0x1000
           0f 84 fa 0f 00 00   ; je 0x2000
           cond e 0x2000 else b1
         block b1 0x1006
           0f 82 f5 0f 00 00   ; jb 0x2001
           cond b 0x2001 else b2
         block b2 0x100c
           c3
           return
        ",
    )
    .unwrap();
    let points = [edge(0, 0), edge(0, 1), edge(1, 0), edge(1, 1)];
    assert_eq!(points.map(|p| at(&cfg, p)), [INC, None, None, INC]);
}

#[test]
fn an_edge_counter_depends_on_its_destination() {
    let cfg = parse(
        "function 0x1000\npart 0x1000..0x1020
         block b0 0x1000
           74 08           ; je 0x100a
           cond e b2 else b1
         block b1 0x1002
           0f 94 c1        ; sete %cl
           b8 01 00 00 00  ; mov $1,%eax
           fall b2
         block b2 0x100a
           85 c0           ; test %eax,%eax
           75 f2           ; jne 0x1000
           cond ne b0 else 0x100e
        ",
    )
    .unwrap();
    assert_eq!(at(&cfg, edge(0, 0)), INC);
    // rax is read only after b1, which overwrites it first.
    assert_eq!(at(&cfg, edge(0, 1)), register(0));
    // But within b1 one instruction suffices.
    assert_eq!(at(&cfg, Point::Block(BlockId(1))), inc_behind(1));
    assert_eq!(at(&cfg, edge(1, 0)), INC);
    // The branch there reads flags, and one of its ways reads rax.
    assert_eq!(at(&cfg, edge(2, 0)), None);
    // Outside code is unknown.
    assert_eq!(at(&cfg, edge(2, 1)), None);
    // No such edges or blocks exist.
    for point in [edge(0, 2), edge(1, 1), edge(7, 0), Point::Block(BlockId(7))] {
        assert_eq!(at(&cfg, point), None);
    }
}

#[test]
fn edges_of_a_table_have_no_code() {
    let cfg = parse(include_str!("../tests/golden/switch.txt")).unwrap();
    let Term::Switch { .. } = cfg.blocks[1].term else { panic!("not the switch") };
    for index in 0..7 {
        assert_eq!(at(&cfg, edge(1, index)), None);
    }
    // The blocks to which the edges lead can have counters: `xor %eax,%eax` begins the block.
    assert_eq!(at(&cfg, Point::Block(BlockId(6))), INC);
    // `lea (%rdx,%rsi),%eax; ret`: no flag is read behind a return.
    assert_eq!(at(&cfg, Point::Block(BlockId(3))), INC);
}
