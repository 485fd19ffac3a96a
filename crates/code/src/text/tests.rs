use super::*;
use crate::Cfg;
use addr::AvmaRange;
use proptest::prelude::*;

const SAMPLE: &str = include_str!("sample.txt");

/// Graphs have no equality: decoded instructions compare without their address. Debug output shows
/// everything.
fn same(a: &Cfg, b: &Cfg) -> bool {
    format!("{a:?}") == format!("{b:?}")
}

#[test]
fn sample_prints_as_it_is_written() {
    let cfg = parse(SAMPLE).unwrap();
    assert_eq!(cfg.to_string(), SAMPLE);
    assert_eq!((cfg.blocks.len(), cfg.insts.len(), cfg.tables.len()), (9, 13, 1));
    assert!(cfg.blocks[8].landing_pad);
}

/// Functions compiled by gcc 12: a switch, a loop, landing pads and a cold part.
#[test]
fn real_functions_print_as_they_are_written() {
    let real = [
        include_str!("../../tests/golden/switch.txt"),
        include_str!("../../tests/golden/loop.txt"),
        include_str!("../../tests/golden/landing_pads.txt"),
    ];
    for text in real {
        let cfg = parse(text).unwrap();
        assert_eq!(cfg.to_string(), text);
        let code = |range: AvmaRange| {
            let insts = cfg.insts.iter().filter(|i| range.contains(i.at));
            let bytes: Vec<u8> = insts.flat_map(|i| i.bytes.as_slice().iter().copied()).collect();
            (!bytes.is_empty()).then_some(bytes)
        };
        assert_eq!(crate::verify(&cfg, &code), Ok(()));
    }
}

#[test]
fn errors_name_their_line() {
    let error = |text: &str| {
        let e = parse(text).unwrap_err();
        (e.line, e.message)
    };
    let message = |line: usize, m: &str| (line, m.to_string());
    let head = "function 0x0\npart 0x0..0x9\n";
    let in_head = |rest: &str| error(&format!("{head}{rest}"));
    assert_eq!(error(""), message(1, "no function"));
    assert_eq!(error("\n\nfunction 12"), message(3, "\"12\" is no address"));
    assert_eq!(error("function 0x+1"), message(1, "\"0x+1\" is no address"));
    assert_eq!(error("function 0x1\nfunction 0x1"), message(2, "a second function"));
    assert_eq!(in_head("part 0x1"), message(3, "expected: A..A"));
    assert_eq!(in_head("block b1 0x0"), message(3, "expected block b0"));
    assert_eq!(in_head("90"), message(3, "outside of a block"));
    assert_eq!(in_head("block b0 0x0\n90"), message(5, "the block before has no end"));
    assert_eq!(in_head("block b0 0x0\n90\nblock b1 0x1"), message(5, "the block before has no end"));
    assert_eq!(in_head("block b0 0x0\nreturn"), message(4, "a block without instructions"));
    assert_eq!(in_head("block b0 0x0\nc3\nreturn\nreturn"), message(6, "outside of a block"));
    assert_eq!(in_head("block b0 0x0\n90 90"), message(4, "not exactly one instruction"));
    assert_eq!(in_head("block b0 0x0\n06"), message(4, "not exactly one instruction"));
    assert_eq!(in_head("block b0 0x0\n0f"), message(4, "not exactly one instruction"));
    assert_eq!(in_head(&format!("block b0 0x0\n{}", "90 ".repeat(16))).0, 4);
    assert_eq!(in_head("block b0 0xffffffffffffffff\n90").0, 4);
    assert_eq!(in_head("block b0 0x0\n90\nfall b7"), message(5, "there is no block 7"));
    assert_eq!(in_head("block b0 0x0\nff e0\nswitch t0"), message(5, "there is no table 0"));
    assert_eq!(in_head("block b0 0x0\n74 00\ncond z 0x2 else 0x2"), message(5, "\"z\" is no condition"));
    assert_eq!(in_head("to 0x1"), message(3, "outside of a table"));
    assert_eq!(in_head("load 0 differs 1..1"), message(3, "outside of a table"));
    let table = "table t0 0x0 absolute8\n";
    assert_eq!(in_head(&format!("{table}load 0 differs 1..1")), message(4, "there is no instruction 1"));
    assert_eq!(in_head(&format!("{table}load 4294967295 differs 1..1")), message(4, "too large"));
    assert_eq!(in_head(&format!("{table}load 0 1..1")).0, 4);
    assert!(error("é").1.contains('é'));
}

/// Returns lines that mostly make sense, in any order.
fn line() -> impl Strategy<Value = String> {
    let n = 0u32..4;
    let at = prop_oneof![0u64..0x40, any::<u64>()];
    let dest =
        prop_oneof![n.clone().prop_map(|n| format!("b{n}")), at.clone().prop_map(|a| format!("{a:#x}"))];
    let inst =
        prop::sample::select(vec!["90", "c3", "0f 0b", "74 02", "ff e0", "e8 00 00 00 00", "48 89 e5"]);
    prop_oneof![
        at.clone().prop_map(|a| format!("function {a:#x}")),
        (at.clone(), at.clone()).prop_map(|(a, b)| format!("part {a:#x}..{b:#x}")),
        (n.clone(), at.clone()).prop_map(|(n, a)| format!("block b{n} {a:#x}")),
        (n.clone(), at.clone()).prop_map(|(n, a)| format!("block b{n} {a:#x} pad")),
        inst.clone().prop_map(str::to_string),
        inst.clone().prop_map(str::to_string),
        inst.prop_map(str::to_string),
        dest.clone().prop_map(|d| format!("fall {d}")),
        dest.clone().prop_map(|d| format!("jump {d}")),
        (dest.clone(), dest.clone()).prop_map(|(a, b)| format!("cond e {a} else {b}")),
        n.clone().prop_map(|n| format!("switch t{n}")),
        Just("return".to_string()),
        (n.clone(), at.clone()).prop_map(|(n, a)| format!("table t{n} {a:#x} relative4 {a:#x}")),
        (n.clone(), n.clone()).prop_map(|(n, m)| format!("load {n} base 0x5 differs {m}..{m}")),
        dest.prop_map(|d| format!("to {d}")),
    ]
}

/// Returns a text that is a graph: consecutive blocks, each with some instructions and an end.
fn graph() -> impl Strategy<Value = String> {
    let inst =
        prop::sample::select(vec!["90", "48 89 e5", "74 02", "ff e0", "0f 1f 44 00 00", "e8 01 02 03 04"]);
    let dest = |blocks: usize| {
        prop_oneof![(0..blocks).prop_map(|n| format!("b{n}")), any::<u64>().prop_map(|a| format!("{a:#x}"))]
    };
    (1usize..6, 0usize..3).prop_flat_map(move |(blocks, tables)| {
        let d = dest(blocks);
        let switch = if tables > 0 {
            (0..tables).prop_map(|t| format!("switch t{t}")).boxed()
        } else {
            Just("indirect".to_string()).boxed()
        };
        let term = prop_oneof![
            d.clone().prop_map(|d| format!("fall {d}")),
            d.clone().prop_map(|d| format!("jump {d}")),
            (prop::sample::select(CONDITIONS.map(|c| c.0).to_vec()), d.clone(), d.clone())
                .prop_map(|(cc, a, b)| format!("cond {cc} {a} else {b}")),
            (d.clone(), d.clone()).prop_map(|(a, b)| format!("short {a} else {b}")),
            switch,
            prop::sample::select(vec!["indirect", "return", "trap", "noreturn 0x5"]).prop_map(str::to_string),
        ];
        let block = (0u64..1 << 48, any::<bool>(), prop::collection::vec(inst.clone(), 1..4), term);
        let form =
            prop_oneof![Just("absolute8".into()), any::<u64>().prop_map(|a| format!("relative4 {a:#x}"))];
        let load = prop_oneof![
            Just(String::new()),
            Just("load 0 differs 1..1\n".into()),
            any::<u64>().prop_map(|a| format!("load 0 base {a:#x} differs 1..1\n"))
        ];
        let table = (any::<u64>(), form, load, prop::collection::vec(d, 0..20));
        (
            prop::collection::vec((any::<u64>(), any::<u64>()), 0..3),
            prop::collection::vec(block, blocks),
            prop::collection::vec(table, tables),
        )
            .prop_map(|(parts, blocks, tables)| {
                let mut out = String::from("function 0x7\n");
                for (a, b) in parts {
                    out += &format!("part {a:#x}..{b:#x}\n");
                }
                for (i, (at, pad, insts, term)) in blocks.into_iter().enumerate() {
                    let pad = if pad { "pad" } else { "" };
                    out += &format!("block b{i} {at:#x} {pad}\n{}\n{term}\n", insts.join("\n"));
                }
                for (i, (at, form, load, targets)) in tables.into_iter().enumerate() {
                    out += &format!("table t{i} {at:#x} {form}\n{load}to {}\n", targets.join(" "));
                }
                out
            })
    })
}

proptest! {
    #[test]
    fn round_trip(text in graph()) {
        let cfg = parse(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        let printed = cfg.to_string();
        let again = parse(&printed).unwrap();
        prop_assert!(same(&cfg, &again), "{cfg:?}\n{again:?}");
        prop_assert_eq!(again.to_string(), printed);
    }

    #[test]
    fn lines_in_any_order(lines in prop::collection::vec(line(), 0..20)) {
        let text = lines.join("\n");
        match parse(&text) {
            Ok(cfg) => prop_assert!(same(&cfg, &parse(&cfg.to_string()).unwrap())),
            Err(e) => prop_assert!(e.line >= 1 && e.line <= lines.len() + 1),
        }
    }
}

#[test]
fn any_text_gives_an_error_not_a_panic() {
    // Half of the texts are noise; the others are a sound text with a few bytes changed.
    arbtest::arbtest(|u| {
        let mut text = SAMPLE.as_bytes().to_vec();
        if u.arbitrary()? {
            for _ in 0..u.int_in_range(1..=4)? {
                let i = u.choose_index(text.len())?;
                match u.int_in_range(0..=2)? {
                    0 => text[i] = u.arbitrary()?,
                    1 => drop(text.drain(i..(i + 9).min(text.len()))),
                    _ => text.insert(i, *u.choose(b"b0x. ;\nt19f")?),
                }
            }
        } else {
            text = u.arbitrary()?;
        }
        if let Ok(cfg) = parse(&String::from_utf8_lossy(&text)) {
            let printed = cfg.to_string();
            assert!(same(&cfg, &parse(&printed).unwrap()), "{printed}");
            let _ = crate::verify(&cfg, &|_| None);
        }
        Ok(())
    })
    .budget_ms(1000);
}
