use super::*;
use crate::parse;

fn by(cfg: &Cfg, point: Point) -> Option<CountBy> {
    point.countable(cfg, &Liveness::compute(cfg))
}

fn edge(from: u32, index: u32) -> Point {
    Point::Edge { from: BlockId(from), index }
}

/// How a counter can be put where a block begins, and on the only edge that leads there; they are always the same.
fn at_start_of(code: &str) -> Option<CountBy> {
    let text = format!(
        "function 0x1000\npart 0x1000..0x1080\n\
         block b0 0x1000\n eb 00\n jump b1\n\
         block b1 0x1002\n {code}\n c3\n return\n"
    );
    let cfg = parse(&text).unwrap();
    let start = by(&cfg, Point::Block(BlockId(1)));
    assert_eq!(by(&cfg, edge(0, 0)), start);
    start
}

#[test]
fn dead_flags_take_an_inc() {
    // test %eax,%eax sets all flags; no register is free.
    assert_eq!(at_start_of("85 c0"), Some(CountBy::Inc));
    // A call tells its callee nothing in flags.
    assert_eq!(at_start_of("e8 00 10 00 00"), Some(CountBy::Inc));
    // A free register as well: still the shorter way.
    assert_eq!(at_start_of("31 c0"), Some(CountBy::Inc));
}

#[test]
fn inc_keeps_the_carry() {
    // adc $0,%eax reads the carry alone.
    assert_eq!(at_start_of("15 00 00 00 00"), Some(CountBy::Inc));
    // seta reads zero, too.
    assert_eq!(at_start_of("0f 97 c0\n 85 c0"), None);
}

#[test]
fn live_flags_take_a_register() {
    // sete %cl, then a register is overwritten: rax, r8.
    assert_eq!(at_start_of("0f 94 c1\n b8 01 00 00 00"), Some(CountBy::Register(0)));
    assert_eq!(at_start_of("0f 94 c1\n 41 b8 01 00 00 00"), Some(CountBy::Register(8)));
    // rbp, r12 and r13 are no help, nor what else a callee keeps, nor is a part of rax, nor rax that is read before.
    assert_eq!(at_start_of("0f 94 c1\n bd 01 00 00 00"), None);
    assert_eq!(at_start_of("0f 94 c1\n 41 bc 01 00 00 00\n 41 bd 01 00 00 00"), None);
    assert_eq!(at_start_of("0f 94 c1\n b0 01"), None);
    assert_eq!(at_start_of("0f 94 c1\n 89 c2\n b8 01 00 00 00"), Some(CountBy::Register(2)));
}

#[test]
fn all_live_takes_nothing() {
    // Whoever is returned to may read everything.
    assert_eq!(at_start_of("90"), None);
    // A rotation by %cl may be by 0, and change no flag.
    assert_eq!(at_start_of("d3 c0"), None);
}

#[test]
fn each_edge_is_judged_by_where_it_leads() {
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
    assert_eq!(by(&cfg, edge(0, 0)), Some(CountBy::Inc));
    // rax is read after b1 alone, where it was overwritten.
    assert_eq!(by(&cfg, edge(0, 1)), Some(CountBy::Register(0)));
    assert_eq!(by(&cfg, Point::Block(BlockId(1))), Some(CountBy::Register(0)));
    assert_eq!(by(&cfg, edge(1, 0)), Some(CountBy::Inc));
    // The branch there is on flags, and one way from it reads rax.
    assert_eq!(by(&cfg, edge(2, 0)), None);
    // Nothing is known of what lies outside.
    assert_eq!(by(&cfg, edge(2, 1)), None);
    // No such edges, no such blocks.
    for point in [edge(0, 2), edge(1, 1), edge(7, 0), Point::Block(BlockId(7))] {
        assert_eq!(by(&cfg, point), None);
    }
}

#[test]
fn edges_of_a_table_lie_in_no_code() {
    let cfg = parse(include_str!("../tests/golden/switch.txt")).unwrap();
    let Term::Switch { .. } = cfg.blocks[1].term else { panic!("not the switch") };
    for index in 0..7 {
        assert_eq!(by(&cfg, edge(1, index)), None);
    }
    // Where they lead counters can be, if flags are dead there: `xor %eax,%eax` begins the block.
    assert_eq!(by(&cfg, Point::Block(BlockId(6))), Some(CountBy::Inc));
    // Nothing is dead before `lea (%rdx,%rsi),%eax; ret` but rax.
    assert_eq!(by(&cfg, Point::Block(BlockId(3))), Some(CountBy::Register(0)));
}
