use super::*;
use crate::{Block, BlockId, Inst, InstBytes, InstId, TableId, parse};
use iced_x86::ConditionCode;

/// Every kind of block end, a table, a second part, a landing pad.
const SAMPLE: &str = include_str!("text/sample.txt");

fn sample() -> Cfg {
    parse(SAMPLE).unwrap()
}

/// Returns the original's bytes: those of the sample, and its table.
fn original(range: AvmaRange) -> Option<Vec<u8>> {
    if range == AvmaRange::with_len(Avma(0x3000), 12) {
        let entries = [0x1015i32 - 0x3000, 0x1025 - 0x3000, 0x2000 - 0x3000];
        return Some(entries.iter().flat_map(|e| e.to_le_bytes()).collect());
    }
    let good = sample();
    let mut out = Vec::new();
    for at in range.start.0..range.end.0 {
        let inst = good.insts.iter().find(|i| i.at.0 <= at && at < i.end().0)?;
        out.push(inst.bytes.as_slice()[usize::try_from(at - inst.at.0).unwrap()]);
    }
    Some(out)
}

#[test]
fn accepts_the_sample() {
    assert_eq!(verify(&sample(), &original), Ok(()));
}

/// Returns the rules that a change violates, in order, each with its place.
fn broken(change: impl FnOnce(&mut Cfg)) -> Vec<(Place, Rule)> {
    let mut cfg = sample();
    change(&mut cfg);
    let mut found: Vec<_> =
        verify(&cfg, &original).unwrap_err().into_iter().map(|v| (v.place, v.rule)).collect();
    found.dedup();
    found
}

fn reset(inst: &mut Inst, bytes: &[u8]) {
    inst.bytes = InstBytes::new(bytes).unwrap();
    inst.decoded = Decoder::with_ip(64, bytes, inst.at.0, 0).decode();
}

#[test]
fn parts() {
    assert_eq!(broken(|c| c.parts.swap(0, 1)), [(Place::Graph, Rule::Parts)]);
    let empty = AvmaRange::new(Avma(9), Avma(9));
    assert_eq!(broken(|c| c.parts.push(empty)), [(Place::Part(2), Rule::Parts)]);
    let over = AvmaRange::new(Avma(0x100f), Avma(0x1030));
    assert_eq!(broken(|c| c.parts.push(over)), [(Place::Part(2), Rule::Parts)]);
    assert!(broken(|c| c.parts.clear()).contains(&(Place::Graph, Rule::Parts)));
}

#[test]
fn entry() {
    assert_eq!(broken(|c| c.entry = Avma(0x1005)), [(Place::Block(0), Rule::Entry)]);
    let nothing = |c: &mut Cfg| {
        c.blocks.clear();
        c.insts.clear();
        c.tables.clear();
    };
    assert_eq!(broken(nothing), [(Place::Graph, Rule::Entry)]);
}

#[test]
fn partition() {
    let extra = |c: &mut Cfg| c.insts.push(c.insts[0].clone());
    assert_eq!(broken(extra), [(Place::Graph, Rule::Partition)]);
    assert!(broken(|c| c.blocks[1].insts.start = 3).contains(&(Place::Block(1), Rule::Partition)));
    assert!(broken(|c| c.blocks[1].insts.end = 2).contains(&(Place::Block(1), Rule::Partition)));
    assert!(broken(|c| c.blocks[8].insts.end = u32::MAX).contains(&(Place::Graph, Rule::Partition)));
}

#[test]
fn contiguous() {
    let moved = |c: &mut Cfg| {
        c.insts[3].at = Avma(0x100d);
        c.insts[3].decoded.set_ip(0x100d);
    };
    assert!(broken(moved).contains(&(Place::Inst(3), Rule::Contiguous)));
    let longer = |c: &mut Cfg| c.blocks[3].range.end = Avma(0x101e);
    assert!(broken(longer).contains(&(Place::Block(3), Rule::Contiguous)));
}

#[test]
fn in_part() {
    let cut = |c: &mut Cfg| c.parts[1].end = Avma(0x5005);
    assert_eq!(broken(cut), [(Place::Block(8), Rule::InPart)]);
}

#[test]
fn disjoint() {
    // A second copy of the trap block, reached as a landing pad.
    let twice = |c: &mut Cfg| {
        let block = c.blocks[4].clone();
        let first = u32::try_from(c.insts.len()).unwrap();
        c.insts.push(c.insts[usize::try_from(block.insts.start).unwrap()].clone());
        c.blocks.push(Block { insts: first..first + 1, landing_pad: true, ..block });
    };
    assert_eq!(broken(twice), [(Place::Block(9), Rule::Disjoint)]);
}

#[test]
fn decoded() {
    let wrong_place = |c: &mut Cfg| c.insts[0].decoded.set_ip(0x1001);
    assert_eq!(broken(wrong_place), [(Place::Inst(0), Rule::Decoded)]);
    let wrong_meaning =
        |c: &mut Cfg| c.insts[0].decoded = Decoder::with_ip(64, &[0x83, 0xff, 2], 0x1000, 0).decode();
    assert_eq!(broken(wrong_meaning), [(Place::Inst(0), Rule::Decoded)]);
    let too_long = |c: &mut Cfg| c.insts[0].bytes = InstBytes::new(&[0x83, 0xff, 1, 0x90]).unwrap();
    assert!(broken(too_long).contains(&(Place::Inst(0), Rule::Decoded)));
}

#[test]
fn original_bytes() {
    let other = |c: &mut Cfg| reset(&mut c.insts[0], &[0x83, 0xff, 2]);
    assert_eq!(broken(other), [(Place::Inst(0), Rule::Original)]);
    let unreadable = verify(&sample(), &|r| original(r).filter(|_| r.start != Avma(0x101c))).unwrap_err();
    assert_eq!(
        unreadable.iter().map(|v| (v.place, v.rule)).collect::<Vec<_>>(),
        [(Place::Block(4), Rule::Original)]
    );
    assert!(unreadable[0].to_string().starts_with("block b4: Original: "));
}

#[test]
fn transfer() {
    // A jmp short in place of the add's first two bytes would change sizes; `ret 0` has the same size.
    let early = |c: &mut Cfg| reset(&mut c.insts[4], &[0xc2, 0, 0]);
    assert!(broken(early).contains(&(Place::Inst(4), Rule::Transfer)));
}

#[test]
fn terminators_fit_their_instruction() {
    let end = |b: usize, term: Term| broken(move |c| c.blocks[b].term = term);
    let out = Dest::Outside;
    let (b, rule) = (Dest::Block, Rule::Terminator);
    let cond = |cc| Term::Cond { cc, taken: b(BlockId(5)), fall: b(BlockId(1)) };
    assert_eq!(end(0, cond(ConditionCode::be)), [(Place::Block(0), rule)]);
    let short = Term::CondShort { taken: b(BlockId(5)), fall: b(BlockId(1)) };
    assert_eq!(end(0, short), [(Place::Block(0), rule)]);
    assert!(end(1, Term::Return).contains(&(Place::Block(1), rule)));
    assert!(end(1, Term::Switch { table: TableId(1) }).contains(&(Place::Block(1), rule)));
    assert_eq!(end(2, Term::NoReturnCall { next: Avma(0x101b) })[0], (Place::Block(2), rule));
    assert_eq!(end(3, Term::Fall { next: out(Avma(0x101c)) })[0], (Place::Block(3), rule));
    assert_eq!(end(4, Term::Fall { next: out(Avma(0x101e)) })[0], (Place::Block(4), rule));
    assert_eq!(end(5, Term::Indirect)[0], (Place::Block(5), rule));
    assert_eq!(end(6, Term::Trap)[0], (Place::Block(6), rule));
    assert_eq!(end(6, Term::Jump { to: out(Avma(0)) })[0], (Place::Block(6), rule));
    assert_eq!(end(7, Term::Switch { table: TableId(0) })[0], (Place::Table(0), Rule::TableLoad));
    assert_eq!(end(8, Term::Return)[0], (Place::Block(8), rule));
}

#[test]
fn destinations() {
    let end = |b: usize, term: Term| broken(move |c| c.blocks[b].term = term);
    let (b, out, rule) = (|i| Dest::Block(BlockId(i)), |a| Dest::Outside(Avma(a)), Rule::Destination);
    let cond = |taken, fall| Term::Cond { cc: ConditionCode::a, taken, fall };
    assert_eq!(end(0, cond(b(6), b(1)))[0], (Place::Block(0), rule));
    assert_eq!(end(0, cond(b(5), b(0)))[0], (Place::Block(0), rule));
    assert_eq!(end(0, cond(out(0x1021), b(1)))[0], (Place::Block(0), rule));
    assert_eq!(end(2, Term::Fall { next: b(99) })[0], (Place::Block(2), rule));
    assert_eq!(end(2, Term::Fall { next: out(0x101b) })[0], (Place::Block(2), rule));
    assert_eq!(end(3, Term::CondShort { taken: b(5), fall: b(5) })[0], (Place::Block(3), rule));
    assert_eq!(end(5, Term::Jump { to: out(0x5001) })[0], (Place::Block(5), rule));
    // Going to the original is always right, and nothing else leads to b6 here.
    assert_eq!(end(5, Term::Jump { to: out(0x5000) }), [(Place::Block(6), Rule::Reachable)]);
    assert_eq!(broken(|c| c.tables[0].targets[0] = b(99))[0], (Place::Table(0), rule));
}

#[test]
fn tables() {
    let rule = Rule::Table;
    assert_eq!(broken(|c| c.tables[0].targets.swap(0, 1)), [(Place::Table(0), rule)]);
    assert!(broken(|c| c.tables[0].targets.clear()).contains(&(Place::Table(0), rule)));
    assert!(broken(|c| c.blocks[1].term = Term::Indirect).contains(&(Place::Table(0), rule)));
    assert_eq!(
        broken(|c| c.tables[0].form = TableForm::Relative4 { base: Avma(0x3001) }),
        [(Place::Table(0), rule)]
    );
    // A table whose bytes cannot be read is not a violation.
    let code_only = |r: AvmaRange| original(r).filter(|_| r.start != Avma(0x3000));
    let mut cfg = sample();
    cfg.tables[0].targets.swap(0, 1);
    assert_eq!(verify(&cfg, &code_only), Ok(()));
}

#[test]
fn table_loads() {
    let load =
        |change: fn(&mut crate::TableLoad)| broken(|c| change(c.tables[0].cloneable.as_mut().unwrap()));
    let rule = [(Place::Table(0), Rule::TableLoad)];
    assert_eq!(load(|l| l.inst = InstId(4)), rule);
    assert_eq!(load(|l| l.inst = InstId(0)), rule);
    assert_eq!(load(|l| l.inst = InstId(2)), rule);
    assert_eq!(load(|l| l.inst = InstId(u32::MAX)), rule);
    assert_eq!(load(|l| l.base_value = None), rule);
    assert_eq!(load(|l| l.base_value = Some(Avma(0x3004))), rule);
    assert_eq!(load(|l| l.differs.0 = InstId(5)), rule);
    assert_eq!(load(|l| l.differs.1 = InstId(5)), rule);
    // A second switch on the same table.
    assert_eq!(broken(|c| c.blocks[7].term = Term::Switch { table: TableId(0) }), rule);
}

#[test]
fn reachable() {
    assert_eq!(broken(|c| c.blocks[8].landing_pad = false), [(Place::Block(8), Rule::Reachable)]);
}

#[test]
fn any_graph_gives_violations_not_panics() {
    // Graphs with random numbers: violations, never a panic.
    arbtest::arbtest(|u| {
        let mut c = sample();
        for _ in 0..u.int_in_range(1..=4)? {
            let b = u.choose_index(c.blocks.len())?;
            let (n, a) = (u.arbitrary::<u32>()?, Avma(u.arbitrary()?));
            let d = if u.arbitrary()? { Dest::Block(BlockId(n)) } else { Dest::Outside(a) };
            match u.int_in_range(0..=9)? {
                0 => c.blocks[b].insts = n..u.arbitrary()?,
                1 => c.blocks[b].range.start = a,
                2 => c.blocks[b].range.end = a,
                3 => c.blocks[b].term = Term::Switch { table: TableId(n) },
                4 => c.blocks[b].term = Term::Fall { next: d },
                5 => c.tables[0].targets.push(d),
                6 => c.tables[0].at = a,
                7 => c.tables[0].cloneable.as_mut().unwrap().inst = InstId(n),
                8 => c.parts.push(AvmaRange::new(a, Avma(u.arbitrary()?))),
                _ => c.insts[usize::try_from(n).unwrap() % 13].at = a,
            }
        }
        let _ = verify(&c, &|r| (r.len() < 100).then(|| original(r)).flatten());
        let _ = c.to_string();
        Ok(())
    })
    .budget_ms(1000);
}
