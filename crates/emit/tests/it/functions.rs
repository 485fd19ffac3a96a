//! Functions made by hand and at random: clones are checked by the walking oracle, and their unwind and
//! exception tables are read back.

use crate::common::graph::{graph, random_function};
use crate::common::walk::{Seen, Walker, clones};
use crate::common::{Layouts, Rng, unwinding};
use addr::{Addr, Avma, AvmaRange};
use code::{
    BlockId, Cfg, CountBy, Dest, Gpr, InstId, Point, Refusal, Spot, TableForm, TableId, TableLoad, Term,
};
use emit::{Body, Counter, Error, Function, Guard, InlineSite, Output, Request, Stats, Stubs};
use unwind::{CallSite, CfaRule, Lsda, Reg, RegRule, Row};

const TEXT: Avma = Avma(0x5000_0000);
const DATA: Avma = Avma(0x5800_0000);

/// Returns rows that change at every instruction boundary, depending on the address.
fn rows(cfg: &Cfg) -> Vec<Row> {
    let row = |i: &code::Inst| Row {
        range: AvmaRange::new(i.at, i.end()),
        cfa: CfaRule::RegOffset(Reg::RSP, 8 + 8 * i64::try_from(i.at.0 % 3).unwrap()),
        regs: vec![(Reg::RA, RegRule::Offset(-8))],
        args_size: 0,
    };
    cfg.insts.iter().map(row).collect()
}

fn function<'a>(cfg: &'a Cfg, order: &[u32], rows: &'a [Row]) -> Function<'a> {
    Function::new(cfg, order.iter().map(|&b| BlockId(b)).collect(), rows)
}

fn request(functions: Vec<Function<'_>>) -> Request<'_> {
    crate::common::request(TEXT, DATA, functions)
}

/// Emits the functions, and walks each clone.
fn check(functions: Vec<Function<'_>>, seed: u64) -> Output {
    let cfgs: Vec<Cfg> = functions.iter().map(|f| f.cfg.clone()).collect();
    let lsdas: Vec<Option<Lsda>> = functions.iter().map(|f| f.lsda.cloned()).collect();
    let out = emit::emit(&request(functions)).unwrap();
    let mut seen = Seen::default();
    let clones = clones(&out);
    let mut rng = Rng(seed);
    let cfg_of = |at: Avma| cfgs.iter().position(|c| c.entry == at).unwrap();
    for info in &out.clones {
        let walker = Walker::new(&out, &clones, TEXT, DATA, &cfgs[cfg_of(info.original)]);
        for _ in 0..30 {
            walker.walk(info, &mut rng, 200, &mut seen);
        }
        let map = emit::AddressMap::from_bytes(&info.map.to_bytes()).unwrap();
        assert_eq!(map, info.map);
    }
    unwinding::check_rows(&out, DATA, &|at| rows(&cfgs[cfg_of(at)]), &|at| lsdas[cfg_of(at)].clone());
    out
}

/// Returns `test; je L; add; L: ret`, as a graph of three blocks.
fn diamond() -> Cfg {
    graph(0x40_0000, &[0x85, 0xc0, 0x74, 0x03, 0x48, 0x01, 0xd8, 0xc3])
}

#[test]
fn the_original_order_gives_the_original_bytes() {
    let cfg = diamond();
    let rows = rows(&cfg);
    let out = check(vec![function(&cfg, &[0, 1, 2], &rows)], 1);
    assert_eq!(out.text, [0x85, 0xc0, 0x74, 0x03, 0x48, 0x01, 0xd8, 0xc3]);
    assert_eq!(out.stats.inserted_jumps + out.stats.dropped_jumps + out.stats.inverted, 0);
}

#[test]
fn a_condition_is_inverted_if_its_target_is_next() {
    let cfg = diamond();
    let rows = rows(&cfg);
    let out = check(vec![function(&cfg, &[0, 2, 1], &rows)], 2);
    // test; jne 1; 2: ret; 1: add; jmp 2
    assert_eq!(out.text, [0x85, 0xc0, 0x75, 0x01, 0xc3, 0x48, 0x01, 0xd8, 0xeb, 0xfa]);
    assert_eq!((out.stats.inverted, out.stats.inserted_jumps), (1, 1));
    let map = &out.clones[0].map;
    assert_eq!(map.to_original(TEXT.add(8)), Some(Avma(0x40_0007)), "the jump stands for where it leads");
}

#[test]
fn a_clone_may_begin_at_any_address() {
    let cfg = diamond();
    let rows = rows(&cfg);
    for by in 0..16 {
        let text_at = TEXT.add(by);
        let out =
            emit::emit(&Request { text_at, ..request(vec![function(&cfg, &[0, 2, 1], &rows)]) }).unwrap();
        assert_eq!((out.clones[0].entry, out.text.len()), (text_at, 10));
    }
}

#[test]
fn cold_edges_go_to_the_original() {
    let cfg = diamond();
    let rows = rows(&cfg);
    let out = check(vec![function(&cfg, &[0, 1], &rows)], 3);
    // test; je original 2; add; jmp original 2
    let je = emit::branch_displacement(TEXT.add(8), Avma(0x40_0007)).unwrap();
    let jmp = emit::jump(TEXT.add(11), Avma(0x40_0007)).unwrap();
    assert_eq!(out.text[..4], [0x85, 0xc0, 0x0f, 0x84]);
    assert_eq!(out.text[4..8], je);
    assert_eq!(out.text[11..], jmp);
    assert_eq!(out.clones[0].map.to_clone(Avma(0x40_0007)), None);
}

#[test]
fn warm_blocks_lie_behind_the_hot_ones_of_all_functions() {
    let (first, second) = (diamond(), graph(0x40_1000, &[0x85, 0xc0, 0x74, 0x03, 0x48, 0x01, 0xd8, 0xc3]));
    let third = graph(0x40_2000, &[0x31, 0xc0, 0xc3]);
    let all = [rows(&first), rows(&second), rows(&third)];
    let functions = vec![
        Function { hot: 2, ..function(&first, &[0, 2, 1], &all[0]) },
        Function { hot: 0, ..function(&third, &[0], &all[2]) },
        Function { hot: 1, ..function(&second, &[0, 1, 2], &all[1]) },
    ];
    let out = check(functions, 17);
    let range = |from, to| AvmaRange::new(TEXT.add(from), TEXT.add(to));
    let fragments = |i: usize| out.clones[i].fragments().ranges().collect::<Vec<_>>();
    // First: test; jne 1; 2: ret, and far from it 1: add; jmp 2.
    assert_eq!(fragments(0), [range(0, 9), range(22, 30)]);
    let jne = emit::branch_displacement(TEXT.add(8), TEXT.add(22)).unwrap();
    assert_eq!(out.text[..9], [&[0x85, 0xc0, 0x0f, 0x85][..], &jne, &[0xc3]].concat());
    let back = emit::jump(TEXT.add(25), TEXT.add(8)).unwrap();
    assert_eq!(out.text[22..30], [&[0x48, 0x01, 0xd8][..], &back].concat());
    // Second: test; je 2; jmp 1, though 1 is next in the order.
    assert_eq!(fragments(2), [range(9, 22), range(33, 37)]);
    assert_eq!(out.text[17..22], emit::jump(TEXT.add(17), TEXT.add(33)).unwrap());
    assert_eq!(out.text[33..], [0x48, 0x01, 0xd8, 0xc3]);
    // Third: the whole function.
    assert_eq!((fragments(1), out.clones[1].entry), (vec![range(30, 33)], TEXT.add(30)));
    assert_eq!((out.stats.clone_bytes, out.stats.warm_bytes), (22 + 15, 15));
}

#[test]
fn two_distant_arms_need_an_extra_jump() {
    let cfg = diamond();
    let rows = rows(&cfg);
    let out = check(vec![function(&cfg, &[0], &rows)], 4);
    assert_eq!(out.text.len(), 2 + 6 + 5);
}

#[test]
fn a_dropped_jump_stays_in_the_map() {
    // jmp 2; 1: ret; 2: jmp 1
    let cfg = graph(0x40_0000, &[0xeb, 0x01, 0xc3, 0xeb, 0xfd]);
    let rows = rows(&cfg);
    let out = check(vec![function(&cfg, &[0, 2, 1], &rows)], 5);
    assert_eq!(out.text, [0xc3]);
    let map = &out.clones[0].map;
    for original in [0x40_0000, 0x40_0002, 0x40_0003] {
        assert_eq!(map.to_clone(Avma(original)), Some(TEXT));
    }
    assert_eq!(map.to_original(TEXT), Some(Avma(0x40_0002)));
    assert_eq!(out.stats.dropped_jumps, 2);
}

#[test]
fn short_loops_get_two_jumps() {
    // 0: jrcxz 2; 1: inc eax; loop 1; 2: ret
    let cfg = graph(0x40_0000, &[0xe3, 0x04, 0xff, 0xc0, 0xe2, 0xfc, 0xc3]);
    let rows = rows(&cfg);
    for order in [&[0, 1, 2][..], &[0, 2, 1], &[0, 1], &[0, 2], &[0]] {
        check(vec![function(&cfg, order, &rows)], 6);
    }
    let out = check(vec![function(&cfg, &[0, 2, 1], &rows)], 6);
    // jrcxz .+2 over jmp 1; 2: ret; 1: inc; loop .+2 over jmp 2; jmp 1
    assert_eq!(out.text, [0xe3, 2, 0xeb, 1, 0xc3, 0xff, 0xc0, 0xe2, 2, 0xeb, 0xf9, 0xeb, 0xf8]);
    // The address-size prefix stays: it makes the difference between jecxz and jrcxz.
    let cfg = graph(0x40_0000, &[0x67, 0xe3, 0x00, 0xc3]);
    let rows = self::rows(&cfg);
    let out = check(vec![function(&cfg, &[0, 1], &rows)], 6);
    assert_eq!(out.text[..3], [0x67, 0xe3, 2]);
}

#[test]
fn branch_prefixes_are_dropped() {
    // bnd jmp 1 (over a byte); hinted jcc
    let cfg = graph(0x40_0000, &[0x2e, 0x74, 0x01, 0x90, 0xf2, 0xeb, 0x00, 0xc3]);
    let rows = rows(&cfg);
    let out = check(vec![function(&cfg, &[0, 1, 2, 3], &rows)], 7);
    assert_eq!(out.text, [0x74, 0x01, 0x90, 0xc3]);
}

#[test]
fn traps_and_calls_that_do_not_return_go_on_in_the_original() {
    let mut cfg = graph(0x40_0000, &[0xe8, 0xfb, 0x0f, 0, 0]);
    let rows = rows(&cfg);
    assert!(matches!(cfg.blocks[0].term, Term::NoReturnCall { .. }));
    let out = check(vec![function(&cfg, &[0], &rows)], 8);
    assert_eq!(out.text[5..], emit::jump(TEXT.add(5), Avma(0x40_0005)).unwrap());
    cfg = graph(0x40_0000, &[0xcc, 0x90, 0xc3]);
    let rows = self::rows(&cfg);
    let out = check(vec![function(&cfg, &[0], &rows)], 8);
    assert_eq!(out.text[1..], emit::jump(TEXT.add(1), Avma(0x40_0001)).unwrap());
}

#[test]
fn clones_call_clones() {
    // f: call g; call h; jmp g. g: ret.
    let (f_at, g_at, h_at) = (0x40_0000u64, 0x40_0100u64, 0x40_0200u64);
    let mut bytes = Vec::new();
    for (op, to) in [(0xe8, g_at), (0xe8, h_at), (0xe9, g_at)] {
        bytes.extend(op_rel32(op, f_at + bytes.len() as u64, to));
    }
    let (f, g) = (graph(f_at, &bytes), graph(g_at, &[0xc3]));
    let (rf, rg) = (rows(&f), rows(&g));
    let out = emit::emit(&request(vec![function(&f, &[0], &rf), function(&g, &[0], &rg)])).unwrap();
    let g_clone = TEXT.add(15);
    assert_eq!(out.clones[1].entry, g_clone);
    assert_eq!(out.text[1..5], emit::branch_displacement(TEXT.add(5), g_clone).unwrap());
    assert_eq!(out.text[6..10], emit::branch_displacement(TEXT.add(10), Avma(h_at)).unwrap(), "no clone");
    assert_eq!(out.text[10..15], emit::jump(TEXT.add(10), g_clone).unwrap(), "a tail call");
}

/// `endbr64` is needed by indirect branches only.
#[test]
fn direct_branches_skip_endbr64() {
    const MARK: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    // f: endbr64; call f; call h; jmp g. g: endbr64; ret. h, without a mark: nop of as many bytes; ret.
    let (f_at, g_at, h_at) = (0x40_0000u64, 0x40_0100u64, 0x40_0200u64);
    let mut bytes = MARK.to_vec();
    for (op, to) in [(0xe8, f_at), (0xe8, h_at), (0xe9, g_at)] {
        bytes.extend(op_rel32(op, f_at + bytes.len() as u64, to));
    }
    let (f, g) = (graph(f_at, &bytes), graph(g_at, &[&MARK[..], &[0xc3]].concat()));
    let h = graph(h_at, &[0x0f, 0x1f, 0x40, 0, 0xc3]);
    let all = [rows(&f), rows(&g), rows(&h)];
    let functions =
        vec![function(&f, &[0], &all[0]), function(&g, &[0], &all[1]), function(&h, &[0], &all[2])];
    let out = emit::emit(&request(functions)).unwrap();
    let [f_clone, g_clone, h_clone] = [0, 1, 2].map(|i| out.clones[i].entry);
    assert_eq!(out.text[..4], MARK, "indirect branches find it");
    assert_eq!(out.text[5..9], emit::branch_displacement(TEXT.add(9), f_clone.add(4)).unwrap());
    assert_eq!(out.text[10..14], emit::branch_displacement(TEXT.add(14), h_clone).unwrap());
    assert_eq!(out.text[14..19], emit::jump(TEXT.add(14), g_clone.add(4)).unwrap());
}

fn op_rel32(op: u8, at: u64, to: u64) -> Vec<u8> {
    let rel = i32::try_from(to.cast_signed() - (at + 5).cast_signed()).unwrap();
    [&[op][..], &rel.to_le_bytes()].concat()
}

#[test]
fn a_function_out_of_reach_is_refused_and_its_clone_is_not_called() {
    // g reads data 2 GiB below it, out of the clone's reach; f calls g.
    let (f_at, g_at) = (0x40_0000u64, 0x40_0100u64);
    let f = graph(f_at, &[&op_rel32(0xe8, f_at, g_at)[..], &[0xc3]].concat());
    let g = graph(g_at, &[0x8b, 0x05, 0, 0, 0, 0x88, 0xc3]);
    let (rf, rg) = (rows(&f), rows(&g));
    let out = emit::emit(&request(vec![function(&g, &[0], &rg), function(&f, &[0], &rf)])).unwrap();
    assert_eq!(out.refused, [(Avma(g_at), Refusal::OutOfReach)]);
    assert_eq!(out.clones.len(), 1);
    assert_eq!(out.clones[0].entry, TEXT, "laid out as if it had never been there");
    assert_eq!(out.text[1..5], emit::branch_displacement(TEXT.add(5), Avma(g_at)).unwrap());
}

#[test]
fn functions_without_rows_or_with_odd_branches_are_refused() {
    let cfg = diamond();
    let rows = rows(&cfg);
    let out = emit::emit(&request(vec![function(&cfg, &[0, 1, 2], &rows[..2])])).unwrap();
    assert_eq!(out.refused, [(cfg.entry, Refusal::NoUnwindInfo)]);
    assert!(out.text.is_empty() && out.clones.is_empty());
    assert_eq!(out.stats, Stats::default());
    // xbegin
    let cfg = graph(0x40_0000, &[0xc7, 0xf8, 0, 0, 0, 0, 0xc3]);
    let rows = self::rows(&cfg);
    let out = emit::emit(&request(vec![function(&cfg, &[0], &rows)])).unwrap();
    assert_eq!(out.refused, [(cfg.entry, Refusal::ReadsOwnAddress)]);
}

#[test]
fn a_graph_that_contradicts_the_bytes_is_refused() {
    let whole = diamond();
    let rows = rows(&whole);
    let refused = |cfg: &Cfg| emit::emit(&request(vec![function(cfg, &[0, 1, 2], &rows)])).unwrap().refused;
    assert!(refused(&whole).is_empty());
    let Term::Cond { cc, taken, fall } = whole.blocks[0].term else { panic!() };
    // The condition, an arm, a fall-through and a fragment's entry that contradict the bytes.
    let mut cfg = whole.clone();
    cfg.blocks[0].term = Term::Cond { cc: iced_x86::ConditionCode::s, taken, fall };
    assert_eq!(refused(&cfg), [(cfg.entry, Refusal::RoundTrip)]);
    cfg.blocks[0].term = Term::Cond { cc, taken: fall, fall: taken };
    assert_eq!(refused(&cfg), [(cfg.entry, Refusal::RoundTrip)]);
    cfg = whole.clone();
    cfg.blocks[1].term = Term::Fall { next: Dest::Block(BlockId(0)) };
    assert_eq!(refused(&cfg), [(cfg.entry, Refusal::RoundTrip)]);
    cfg = whole.clone();
    cfg.entry = Avma(0x40_0004);
    assert_eq!(refused(&cfg), [(cfg.entry, Refusal::RoundTrip)]);
}

#[test]
fn contradictions_of_the_caller_are_errors() {
    let cfg = diamond();
    let rows = rows(&cfg);
    for order in [&[][..], &[1, 0], &[0, 1, 1], &[0, 7]] {
        let r = emit::emit(&request(vec![function(&cfg, order, &rows)]));
        assert!(matches!(r, Err(Error::BadOrder { .. })), "{order:?}");
    }
    let twice = vec![function(&cfg, &[0], &rows), function(&cfg, &[0], &rows)];
    assert!(matches!(emit::emit(&request(twice)), Err(Error::BadOrder { .. })));
    let r = Request { data_at: DATA.add(4), ..request(vec![function(&cfg, &[0], &rows)]) };
    assert!(matches!(emit::emit(&r), Err(Error::Misaligned { .. })));
    let r = Request { data_at: Avma(0x7000_0000_0000), ..request(vec![function(&cfg, &[0], &rows)]) };
    assert!(matches!(emit::emit(&r), Err(Error::TooFarApart { .. })));
}

/// Returns `lea rdx, [rip+table]; movsxd rax, [rdx+rdi*4]; add rax, rdx; jmp rax`, then three cases of one
/// instruction each.
fn switch(form: TableForm) -> Cfg {
    let at = 0x40_0000u64;
    let table = Avma(0x41_0000);
    let mut bytes = vec![0x48, 0x8d, 0x15, 0xf9, 0xff, 0x00, 0x00];
    let load_then_jump: &[u8] = match form {
        TableForm::Relative4 { .. } => &[0x48, 0x63, 0x04, 0xba, 0x48, 0x01, 0xd0, 0xff, 0xe0],
        TableForm::Absolute8 => &[0x3e, 0xff, 0x24, 0xfa],
    };
    bytes.extend(load_then_jump);
    let cases = at + bytes.len() as u64;
    bytes.extend([0xc3, 0x90, 0xc3, 0x31, 0xc0, 0xc3]);
    let mut cfg = graph(at, &bytes);
    // The cases are blocks already, as `ret` ends a block.
    assert_eq!(cfg.blocks.len(), 4);
    assert_eq!(cfg.blocks[1].range.start.0, cases);
    cfg.blocks[0].term = Term::Switch { table: TableId(0) };
    let b = |n| Dest::Block(BlockId(n));
    let jump = cfg.blocks[0].last_inst().unwrap();
    cfg.tables.push(code::JumpTable {
        at: table,
        form,
        targets: vec![b(1), b(3), b(2), b(1), Dest::Outside(Avma(0x42_0000))],
        cloneable: Some(TableLoad {
            inst: InstId(1),
            base_value: Some(table),
            differs: (InstId(2).min(jump.next()), jump.next()),
        }),
    });
    cfg
}

#[test]
fn switches_jump_through_a_table_of_their_own() {
    for form in [TableForm::Relative4 { base: Avma(0x41_0000) }, TableForm::Absolute8] {
        let cfg = switch(form);
        let rows = rows(&cfg);
        for order in [&[0, 1, 2, 3][..], &[0, 3, 2, 1], &[0, 2]] {
            let out = check(vec![function(&cfg, order, &rows)], 10);
            assert_eq!((out.stats.tables, out.stats.tables_out_of_reach), (1, 0));
            let len = out.clones[0].fragments().size();
            assert!(len > 7 + 8, "the reading instruction is longer");
        }
        // No case is cloned: the original table serves as well.
        let out = check(vec![function(&cfg, &[0], &rows)], 10);
        assert_eq!(out.stats.tables, 0);
    }
}

#[test]
fn a_table_out_of_reach_stays_the_original() {
    // The table's base is near the original. The text reaches both, but the data is more than 2 GiB from the
    // base.
    let cfg = switch(TableForm::Relative4 { base: Avma(0x41_0000) });
    let rows = rows(&cfg);
    let r = Request {
        text_at: Avma(0x7000_0000),
        data_at: Avma(0x9000_0000),
        ..request(vec![function(&cfg, &[0, 1, 2, 3], &rows)])
    };
    let out = emit::emit(&r).unwrap();
    assert_eq!((out.stats.tables, out.stats.tables_out_of_reach, out.refused.len()), (0, 1, 0));
    assert_eq!(out.text[7..16], [0x48, 0x63, 0x04, 0xba, 0x48, 0x01, 0xd0, 0xff, 0xe0], "as it was");
}

#[test]
fn call_sites_follow_their_instructions() {
    // Five one-byte nops, with a branch in the middle so that there are blocks to move.
    let cfg = graph(0x40_0000, &[0x90, 0x50, 0x74, 0x02, 0x58, 0xc3, 0x51, 0x52, 0xc3]);
    let rows = rows(&cfg);
    let site = |a: u64, b: u64, pad: Option<u64>, action| CallSite {
        range: AvmaRange::new(Avma(0x40_0000 + a), Avma(0x40_0000 + b)),
        landing_pad: pad.map(|p| Avma(0x40_0000 + p)),
        action,
    };
    let lsda = Lsda {
        call_sites: vec![
            site(0, 1, None, 0),
            site(1, 2, Some(8), 1),
            site(4, 5, None, 0),
            site(6, 8, Some(8), 1),
        ],
        actions: vec![1, 0],
        types: vec![None],
        filters: Vec::new(),
    };
    for order in [&[0, 1, 2][..], &[0, 2, 1], &[0, 2], &[0]] {
        for hot in 0..=order.len() {
            let mut f = Function { hot, ..function(&cfg, order, &rows) };
            f.lsda = Some(&lsda);
            f.personality = Some(Avma(0x43_0000));
            check(vec![f], 11);
        }
    }
    // No call site is left: the table must be empty, not missing, since without a table exceptions would pass
    // through.
    let empty = Lsda { call_sites: vec![site(6, 8, Some(8), 1)], ..lsda };
    let mut f = function(&cfg, &[0, 1], &rows);
    f.lsda = Some(&empty);
    check(vec![f], 12);
}

/// Returns `inc qword gs:[offset]`.
fn inc(offset: u8) -> [u8; 9] {
    [0x65, 0x48, 0xff, 0x04, 0x25, offset, 0, 0, 0]
}

fn counter(at: Point, offset: u32) -> Counter {
    Counter { at, spot: Spot { skip: 0, by: CountBy::Inc }, offset }
}

#[test]
fn an_edge_counter_runs_on_its_edge_only() {
    // 0: test; je 2. 1: add; 2: ret. Only the caller could read the flags behind the branch.
    let mut bytes = vec![0x85, 0xc0, 0x74, 0x03, 0x48, 0x01, 0xd8];
    bytes.extend([0x85, 0xc0, 0xc3]);
    let cfg = graph(0x40_0000, &bytes);
    let rows = rows(&cfg);
    let edge = |index| Point::Edge { from: BlockId(0), index };
    let emit = |order: &[u32], counters| {
        let out = check(vec![Function { counters, ..function(&cfg, order, &rows) }], 14);
        assert_eq!(out.refused, []);
        out.text
    };
    let (head, add, end) = (&bytes[..2], &bytes[4..7], &bytes[7..]);
    // The taken edge: the branch is inverted to skip the counter and the jump.
    let text = emit(&[0, 1, 2], vec![counter(edge(0), 8)]);
    assert_eq!(text, [head, &[0x75, 11], &inc(8), &[0xeb, 3], add, end].concat());
    // The fall-through edge: behind the branch.
    let text = emit(&[0, 1, 2], vec![counter(edge(1), 8)]);
    assert_eq!(text, [head, &[0x74, 12], &inc(8), add, end].concat());
    // Both edges, and a block.
    let all = vec![counter(edge(0), 8), counter(edge(1), 16), counter(Point::Block(BlockId(2)), 24)];
    let text = emit(&[0, 2, 1], all);
    let rest = [&inc(16)[..], &[0xeb, 12], &inc(24), end, add, &[0xeb, 0xef]].concat();
    assert_eq!(text, [head, &[0x75, 11], &inc(8), &[0xeb, 11], &rest[..]].concat());
    // The entry: the redirect leads to the counter, and the first instruction follows it.
    let f = Function {
        counters: vec![counter(Point::Block(BlockId(0)), 0)],
        ..function(&cfg, &[0, 1, 2], &rows)
    };
    let out = check(vec![f], 15);
    assert_eq!((out.clones[0].entry, &out.text[..9]), (TEXT, &inc(0)[..]));
    assert_eq!(out.clones[0].map.to_clone(cfg.entry), Some(TEXT.add(9)));
    assert_eq!(out.clones[0].map.to_original(TEXT), Some(cfg.entry));
    // Direct calls enter behind an `endbr64` at the start, and must not miss the counter either.
    let cfg = graph(0x40_0000, &[&[0xf3, 0x0f, 0x1e, 0xfa][..], head, &[0xc3]].concat());
    let rows = self::rows(&cfg);
    let counters = vec![counter(Point::Block(BlockId(0)), 0)];
    let out = check(vec![Function { counters, ..function(&cfg, &[0], &rows) }], 16);
    assert_eq!(out.text, [&[0xf3, 0x0f, 0x1e, 0xfa][..], &inc(0), head, &[0xc3]].concat());
    assert_eq!(out.clones[0].map.to_clone(cfg.entry.add(4)), Some(TEXT.add(13)));
}

#[test]
fn block_counters_stand_at_their_spots() {
    // sete; test; ret.
    let cfg = graph(0x40_0000, &[0x0f, 0x94, 0xc0, 0x85, 0xc0, 0xc3]);
    let rows = rows(&cfg);
    let at = Point::Block(BlockId(0));
    let f = |skip| {
        let counter = Counter { at, spot: Spot { skip, by: CountBy::Inc }, offset: 8 };
        Function { counters: vec![counter], ..function(&cfg, &[0], &rows) }
    };
    for (skip, before) in [(1, 3), (2, 5)] {
        let out = check(vec![f(skip)], 17);
        let (start, rest) = ([0x0f, 0x94, 0xc0, 0x85, 0xc0, 0xc3]).split_at(before);
        assert_eq!((out.refused, out.text), (vec![], [start, &inc(8), rest].concat()));
    }
    // Before the reader of flags; past the end.
    for skip in [0, 3, u32::MAX] {
        let refused = emit::emit(&request(vec![f(skip)])).unwrap().refused;
        assert_eq!(refused, [(cfg.entry, Refusal::RoundTrip)], "{skip}");
    }
}

#[test]
fn edges_to_other_functions_are_counted() {
    // test; je 0x41_0000; jmp 0x41_0000
    let (function_at, je) = (Avma(0x41_0000), [0x0f, 0x84, 0xf8, 0xff, 0, 0]);
    let jmp = emit::jump(Avma(0x40_0008), function_at).unwrap();
    let mut cfg = graph(0x40_0000, &[&[0x85, 0xc0][..], &je, &jmp].concat());
    assert_eq!(cfg.blocks[0].term, {
        let taken = Dest::Outside(function_at);
        Term::Cond { cc: iced_x86::ConditionCode::e, taken, fall: Dest::Block(BlockId(1)) }
    });
    let rows = rows(&cfg);
    let edges = [0, 1].map(|from| Point::Edge { from: BlockId(from), index: 0 });
    for known in [false, true] {
        cfg.functions = if known { vec![function_at] } else { Vec::new() };
        for at in edges {
            let f = Function { counters: vec![counter(at, 8)], ..function(&cfg, &[0, 1], &rows) };
            let refused = emit::emit(&request(vec![f.clone()])).unwrap().refused;
            assert_eq!(refused.is_empty(), known, "{at:?}");
            if known {
                check(vec![f], 18);
            }
        }
    }
}

#[test]
fn calls_bypass_stubs() {
    // call stub; jmp stub.
    let (stub, slot) = (Avma(0x41_0000), Avma(0x42_0008));
    let call = [&[0xe8][..], &emit::branch_displacement(Avma(0x40_0005), stub).unwrap()].concat();
    let jump = emit::jump(Avma(0x40_0005), stub).unwrap();
    let cfg = graph(0x40_0000, &[call, jump.to_vec()].concat());
    let rows = rows(&cfg);
    let stubs = Stubs::from_iter([(stub, slot)]);
    let out = emit::emit(&Request { stubs: &stubs, ..request(vec![function(&cfg, &[0], &rows)]) }).unwrap();
    assert_eq!(out.refused, []);
    let through = |at: u64, opcode| {
        [&[0xff, opcode][..], &emit::branch_displacement(TEXT.add(at + 6), slot).unwrap()].concat()
    };
    assert_eq!(out.text[..12], [through(0, 0x15), through(6, 0x25)].concat());
}

#[test]
fn counters_that_change_live_state_are_refused() {
    // 0: test; je 2. 1: sete; 2: ret: 1 reads the flags of 0.
    let cfg = graph(0x40_0000, &[0x85, 0xc0, 0x74, 0x03, 0x0f, 0x94, 0xc0, 0xc3]);
    let rows = rows(&cfg);
    let f = |c| vec![Function { counters: vec![c], ..function(&cfg, &[0, 1, 2], &rows) }];
    let at = Point::Block(BlockId(1));
    let refused = |c| emit::emit(&request(f(c))).unwrap().refused;
    assert_eq!(refused(counter(at, 0)), [(cfg.entry, Refusal::RoundTrip)]);
    // rax is live at the return.
    let spot = Spot { skip: 0, by: CountBy::Register(Gpr::new(0).unwrap()) };
    assert_eq!(refused(Counter { at, spot, offset: 0 }), [(cfg.entry, Refusal::RoundTrip)]);
    assert_eq!(refused(counter(Point::Block(BlockId(0)), 0)), []);
}

#[test]
fn random_functions_in_random_orders() {
    for seed in 0..400 {
        let mut rng = Rng(seed);
        let entries: Vec<u64> = (0..4).map(|i| 0x40_0000 + i * 0x1_0000).collect();
        // The last function is never cloned.
        let cfgs: Vec<Cfg> =
            entries[..3].iter().map(|&at| graph(at, &random_function(&mut rng, at, &entries))).collect();
        let rows: Vec<Vec<Row>> = cfgs.iter().map(rows).collect();
        let mut functions = Vec::new();
        let mut offset = 0;
        for (cfg, rows) in cfgs.iter().zip(&rows) {
            let keep = 1 + rng.below(8);
            let order = rng.order(cfg.blocks.len(), keep);
            let mut f = function(cfg, &[], rows);
            if seed % 2 == 1 {
                f.counters = crate::common::counters(cfg, &mut rng, &mut offset);
            }
            let hot = rng.hot(order.len());
            functions.push(Function { order, hot, ..f });
        }
        let out = check(functions, seed);
        assert_eq!(out.refused, [], "seed {seed}");
    }
}

/// A redirect enters a clone before the counter of its instruction's block, and behind an edge's counter.
#[test]
fn redirects_enter_before_the_block_counter() {
    // 0: test; je 2. 1: add; 2: ret.
    let cfg = diamond();
    let rows = rows(&cfg);
    let counter = |at, offset| Counter { at, spot: Spot { skip: 0, by: CountBy::Inc }, offset };
    let edge = Point::Edge { from: BlockId(0), index: 1 };
    let counters = vec![counter(edge, 8), counter(Point::Block(BlockId(1)), 16)];
    let add = InstId(cfg.blocks[1].insts.start);
    let f = Function { entrances: vec![InstId(0), add], counters, ..function(&cfg, &[0, 1, 2], &rows) };
    let out = check(vec![f], 13);
    let (at, counts) = (cfg.insts[add.index()].at, inc(8).len() as u64);
    let behind = TEXT.add(4 + counts);
    assert_eq!(out.clones[0].entrances, [(cfg.entry, TEXT), (at, behind)]);
    assert_eq!(out.clones[0].map.to_clone(at), Some(behind.add(counts)));
    // A block that is not cloned has no entrance.
    let f = Function { entrances: vec![InstId(0), add], ..function(&cfg, &[0, 2], &rows) };
    assert_eq!(check(vec![f], 14).clones[0].entrances, [(cfg.entry, TEXT)]);
}

/// Emission stops at the next stage once the caller returns false.
#[test]
fn emission_stops_at_the_next_stage() {
    let (a, b) = (graph(0x40_0000, &[0xc3]), graph(0x40_1000, &[0xc3]));
    let (of_a, of_b) = (rows(&a), rows(&b));
    let two = request(vec![function(&a, &[0], &of_a), function(&b, &[0], &of_b)]);
    use emit::Stage::{Encode, Join, Plan, Verify};
    let stages = [Plan, Plan, Encode, Encode, Verify, Verify, Join];
    for most in 0..=stages.len() {
        let begun = std::cell::RefCell::new(Vec::new());
        let goes_on = |stage| {
            begun.borrow_mut().push(stage);
            begun.borrow().len() <= most
        };
        let stopped = matches!(emit::emit_while(&two, &goes_on), Err(Error::BrokenOff));
        assert_eq!(stopped, most < stages.len(), "{most}");
        assert_eq!(*begun.borrow(), stages[..stages.len().min(most + 1)]);
    }
}

/// `call *8(%rax); call G; ret`, where the table's second word leads to F. F is the leaf
/// `mov 4(%rdi), %eax; ret` and G is the leaf `lea 0x10(%rip), %rax; ret`. Each is inlined or not.
#[test]
fn calls_are_inlined_and_devirtualized() {
    let (f_at, g_at, table) = (Avma(0x40_1000), Avma(0x40_2000), Avma(0x45_0000));
    let call_g = [&[0xe8][..], &emit::branch_displacement(Avma(0x40_0008), g_at).unwrap()].concat();
    let cfg = graph(0x40_0000, &[&[0xff, 0x50, 0x08][..], &call_g, &[0xc3]].concat());
    let f = graph(f_at.0, &[0x8b, 0x47, 0x04, 0xc3]);
    let g = graph(g_at.0, &[0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0xc3]);
    assert!(emit::can_inline(straight(&f)) && emit::can_inline(straight(&g)));
    let (of_cfg, of_f, of_g) = (rows(&cfg), rows(&f), rows(&g));
    let constant = |at: Avma| (at == table.add(8)).then_some(f_at);
    let site = |from, to, pad: Option<u64>| CallSite {
        range: AvmaRange::new(cfg.entry.add(from), cfg.entry.add(to)),
        landing_pad: pad.map(|p| cfg.entry.add(p)),
        action: 0,
    };
    let call_sites = vec![site(0, 3, Some(8)), site(3, 8, None)];
    let lsda = Lsda { call_sites, actions: Vec::new(), types: Vec::new(), filters: Vec::new() };
    let guard = Some(Guard { register: Gpr::new(0).unwrap(), table });
    let emit = |inline_sites: Vec<InlineSite<'_>>| {
        let (lsda, personality) = (Some(&lsda), Some(Avma(0x43_0000)));
        let caller = Function { inline_sites, lsda, personality, ..function(&cfg, &[0], &of_cfg) };
        let functions = vec![caller, function(&f, &[0], &of_f), function(&g, &[0], &of_g)];
        emit::emit(&Request { constant: &constant, ..request(functions) }).unwrap()
    };
    let virtual_call = |body| InlineSite { call: InstId(0), callee: f_at, body, guard };
    let direct_call = InlineSite { call: InstId(1), callee: g_at, body: Some(straight(&g)), guard: None };
    let rel = |at: u64, to: Avma| emit::branch_displacement(TEXT.add(at), to).unwrap();

    let out = emit(vec![virtual_call(Some(straight(&f))), direct_call]);
    assert_eq!((out.refused.as_slice(), out.stats.inlined), (&[][..], 1));
    let warm = out.clones[0].fragments().ranges().nth(1).unwrap().start;
    let want = [
        &[0x48, 0x3b, 0x05][..],
        &rel(7, DATA),
        &[0x0f, 0x85],
        &rel(13, warm),
        &[0x8b, 0x47, 0x04],
        &[0x48, 0x8d, 0x05],
        &rel(23, g_at.add(0x17)),
        &[0xc3],
    ];
    assert_eq!(out.text[..24], want.concat());
    assert_eq!(out.data[..8], table.0.to_le_bytes());
    let from = usize::try_from(warm.since(TEXT).unwrap()).unwrap();
    let back = emit::branch_displacement(warm.add(8), TEXT.add(16)).unwrap();
    assert_eq!(out.text[from..from + 8], [&[0xff, 0x50, 0x08, 0xe9][..], &back].concat());

    // The call has two clone addresses: the guard and the original call. The addresses in between stand for
    // no original instruction.
    let map = &out.clones[0].map;
    assert_eq!(map.to_original(TEXT), Some(cfg.entry));
    assert_eq!(map.to_clone(cfg.entry), Some(warm));
    for at in [7, 13] {
        assert_eq!((map.to_original(TEXT.add(at)), map.move_to_original(TEXT.add(at))), (None, None));
        assert_eq!(map.original_of_interior(TEXT.add(at)), Some(cfg.entry));
    }
    assert_eq!(map.to_clone(cfg.entry.add(3)), Some(TEXT.add(16)));
    assert_eq!(emit::AddressMap::from_bytes(&map.to_bytes()).unwrap(), *map);

    // All of it unwinds as the call does, with the same rule and the same landing pad.
    let rows_at = |at| {
        if at == cfg.entry {
            of_cfg.clone()
        } else if at == f_at {
            of_f.clone()
        } else {
            of_g.clone()
        }
    };
    unwinding::check_rows(&out, DATA, &rows_at, &|at| (at == cfg.entry).then(|| lsda.clone()));

    // Not inlined: a direct call of the clone.
    let out = emit(vec![virtual_call(None)]);
    let to_clone = rel(18, out.clones[1].entry);
    assert_eq!(out.text[13..18], [&[0xe8][..], &to_clone].concat());
    // A table that does not lead to the callee, or may change: the proof fails, and the clone is refused.
    let out = emit(vec![InlineSite { callee: g_at, body: Some(straight(&g)), ..virtual_call(None) }]);
    assert_eq!(out.refused, [(cfg.entry, Refusal::RoundTrip)]);
    // A call of the wrong kind stays unchanged.
    let out = emit(vec![
        InlineSite { guard: None, ..virtual_call(Some(straight(&f))) },
        InlineSite { guard, ..direct_call },
    ]);
    assert_eq!((out.refused.as_slice(), &out.text[..3]), (&[][..], &[0xff, 0x50, 0x08][..]));
}

/// A call that must go through a redirect goes to its callee's original if the callee has a redirect, also if that begins
/// with an `endbr64`. A callee that is reached only by calls has none.
#[test]
fn calls_through_redirects_go_to_redirected_originals() {
    let (f_at, g_at) = (Avma(0x40_1000), Avma(0x40_2000));
    let call =
        |end: u64, to| [&[0xe8][..], &emit::branch_displacement(Avma(0x40_0000 + end), to).unwrap()].concat();
    let cfg = graph(0x40_0000, &[&call(5, f_at)[..], &call(10, g_at), &[0xc3]].concat());
    let g = graph(g_at.0, &[0x8b, 0x47, 0x04, 0x90, 0x90, 0xc3]);
    for mark in [&[][..], &[0xf3, 0x0f, 0x1e, 0xfa]] {
        let f = graph(f_at.0, &[mark, &[0x8b, 0x47, 0x04, 0x90, 0x90, 0xc3]].concat());
        let (of_cfg, of_f, of_g) = (rows(&cfg), rows(&f), rows(&g));
        let behind = |at: Avma| at.add(mark.len() as u64);
        let calls = |through_redirects: Vec<InstId>| {
            let caller = Function { through_redirects, ..function(&cfg, &[0], &of_cfg) };
            let f = Function { is_redirected: true, ..function(&f, &[0], &of_f) };
            let functions = vec![caller, f, function(&g, &[0], &of_g)];
            let out = emit::emit(&request(functions)).unwrap();
            assert_eq!(out.refused, []);
            let to = |n: usize| {
                let bytes = out.text[5 * n + 1..5 * n + 5].try_into().unwrap();
                TEXT.add(5 * n as u64 + 5).offset(i64::from(i32::from_le_bytes(bytes)))
            };
            ([to(0), to(1)], [behind(out.clones[1].entry), out.clones[2].entry])
        };
        let (to, [f, g]) = calls(Vec::new());
        assert_eq!(to, [f, g]);
        let (to, [_, g]) = calls(vec![InstId(0), InstId(1)]);
        assert_eq!(to, [f_at, g]);
    }
}

/// Returns a body of the only block of a function.
fn straight(cfg: &Cfg) -> Body<'_> {
    Body { cfg, path: &[BlockId(0)], lsda: None }
}

/// `call G; ret`, where G is `test; je L; mov 4(%rdi), %eax; ret; L: xor; ret` and its first path is inlined.
#[test]
fn an_exit_of_an_inlined_path_calls_the_rest() {
    let g_at = Avma(0x40_2000);
    let rest = g_at.add(8);
    let call = [&[0xe8][..], &emit::branch_displacement(Avma(0x40_0005), g_at).unwrap()].concat();
    let cfg = graph(0x40_0000, &[&call[..], &[0xc3]].concat());
    let g = graph(g_at.0, &[0x85, 0xff, 0x74, 0x04, 0x8b, 0x47, 0x04, 0xc3, 0x31, 0xc0, 0xc3]);
    let (of_cfg, of_g) = (rows(&cfg), rows(&g));
    let call_sites = vec![CallSite {
        range: AvmaRange::with_len(cfg.entry, 5),
        landing_pad: Some(cfg.entry.add(5)),
        action: 0,
    }];
    let lsda = Lsda { call_sites, actions: Vec::new(), types: Vec::new(), filters: Vec::new() };
    let emit = |order: &[u32], through_redirects: Vec<InstId>| {
        let path = [BlockId(0), BlockId(1)];
        let body = Some(Body { cfg: &g, path: &path, lsda: None });
        let inline_sites = vec![InlineSite { call: InstId(0), callee: g_at, body, guard: None }];
        let (lsda, personality) = (Some(&lsda), Some(Avma(0x43_0000)));
        let caller =
            Function { inline_sites, through_redirects, lsda, personality, ..function(&cfg, &[0], &of_cfg) };
        let callee = Function { is_redirected: true, ..function(&g, order, &of_g) };
        emit::emit(&request(vec![caller, callee])).unwrap()
    };
    let through = vec![InstId(0)];
    for (order, through_redirects, in_clone) in
        [(&[0, 1, 2][..], vec![], true), (&[0, 1], vec![], false), (&[0, 1, 2], through, false)]
    {
        let out = emit(order, through_redirects);
        assert_eq!((out.refused.as_slice(), out.stats.inlined), (&[][..], 1));
        let aside = out.clones[0].fragments().ranges().nth(1).unwrap().start;
        let to_aside = emit::branch_displacement(TEXT.add(8), aside).unwrap();
        let want = [&[0x85, 0xff, 0x0f, 0x84][..], &to_aside, &[0x8b, 0x47, 0x04, 0xc3]].concat();
        assert_eq!(out.text[..12], want);
        let to = if in_clone { out.clones[1].map.to_clone(rest).unwrap() } else { rest };
        let call = [&[0xe8][..], &emit::branch_displacement(aside.add(5), to).unwrap()].concat();
        let from = usize::try_from(aside.since(TEXT).unwrap()).unwrap();
        let back = emit::jump(aside.add(5), TEXT.add(11)).unwrap();
        assert_eq!(out.text[from..from + 10], [&call[..], &back].concat());

        // Only control that leaves the inlined path reaches the call of the rest. That call returns to the
        // address behind the original call.
        let map = &out.clones[0].map;
        assert_eq!((map.to_original(aside), map.move_to_original(aside)), (None, None));
        assert_eq!(map.original_of_interior(aside.add(4)), Some(cfg.entry));
        assert_eq!(map.to_original(aside.add(5)), Some(cfg.entry.add(5)));
        let rows_at = |at| if at == cfg.entry { of_cfg.clone() } else { of_g.clone() };
        unwinding::check_rows(&out, DATA, &rows_at, &|at| (at == cfg.entry).then(|| lsda.clone()));
    }
}

#[test]
fn what_cannot_be_inlined() {
    let fits = |bytes: &[u8]| emit::can_inline(straight(&graph(0x40_0000, bytes)));
    assert!(fits(&[0xc3]), "nothing at all");
    assert!(fits(&[0xf3, 0x0f, 0x1e, 0xfa, 0xb8, 3, 0, 0, 0, 0xc3]), "a constant behind endbr64");
    assert!(!fits(&[0x8b, 0x44, 0x24, 0x08, 0xc3]), "an argument on the stack");
    assert!(!fits(&[0x53, 0x5b, 0xc3]), "push and pop");
    assert!(!fits(&[0x89, 0x44, 0x24, 0xf8, 0xc3]), "the red zone");
    assert!(!fits(&[0x48, 0x89, 0xe0, 0xc3]), "the stack pointer's value");
    assert!(!fits(&[0xc2, 0x08, 0x00]), "a return that pops");
    assert!(!fits(&[0xeb, 0x0e]), "a jump out");
    assert!(!fits(&[0x0f, 0x05, 0xc3]), "a system call");
    assert!(!fits(&[0xf3, 0x48, 0x0f, 0x1e, 0xc8, 0xc3]), "the shadow stack's pointer");
    assert!(!fits(&[&[0x90; 49][..], &[0xc3]].concat()), "too much");

    let loads = graph(0x40_0000, &[0x8b, 0x07, 0xc3]);
    let caught = |len| {
        let range = AvmaRange::with_len(loads.entry, len);
        let call_sites = vec![CallSite { range, landing_pad: Some(Avma(0x40_0010)), action: 0 }];
        let lsda = Lsda { call_sites, actions: Vec::new(), types: Vec::new(), filters: Vec::new() };
        emit::can_inline(Body { lsda: Some(&lsda), ..straight(&loads) })
    };
    assert!(caught(0) && !caught(2), "a fault that the function itself would catch");

    // test; je 2; 1: add; 2: ret. The jump at the entry ends the first block.
    let cfg = graph(0x40_0000, &[0x48, 0x85, 0xc0, 0x74, 0x03, 0x48, 0x01, 0xd8, 0xc3]);
    let by = |path: &[u32]| {
        let path: Vec<BlockId> = path.iter().map(|&b| BlockId(b)).collect();
        emit::can_inline(Body { cfg: &cfg, path: &path, lsda: None })
    };
    assert!(by(&[0, 1, 2]) && by(&[0, 2]), "either way");
    assert!(!by(&[]) && !by(&[0]) && !by(&[0, 1]) && !by(&[1, 2]) && !by(&[0, 2, 1]), "no way through");
}
