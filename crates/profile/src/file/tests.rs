use super::*;
use crate::test_cfg::{arb_cfg, cfg_at, cond, fall, ret};
use proptest::prelude::*;
use testkit::Rng;

const GOLDEN: &str = "\
whet-profile 3
# How often code ran, by module (build-id) and function (stated address, hash of its graph). Read by whet.
# A block: +START +LAST-INSTRUCTION COUNT, then +TO COUNT for each edge; distances from the entry in hexadecimal.
# An indirect call (leads; table: by its virtual table): +WHERE of LOOKS, then ADDRESS[@BUILD-ID] LOOKS that saw it.
exe /usr/bin/some program
runs 2
when 1760000000
sampled 8000
counted 3000
samples 100
left-out 3
module 0123456789abcdef some program
function 0x1000 00000000000000ff counted entered 10 samples 60 size 0x40 global main
shape 00000000000000aa
hits +0 3 +10 57
+0 +8 10 +10 10
+10 +1c 1000 +10 990 +20 10
+20 +24 10
call +14 0x1100 1000
call +20 0x5000@aa 10
leads +18 of 101 0x1100 75 0x5000@aa 25
table +18 of 101 0x9000 75 0x9040@aa 26
function 0x1100 0123456789abcdef inferred entered 1002 samples 30 size 0x20 local helper
-20 -20 1000
+0 +4 1002 -20 1000 +1000 1
module aa
end
";

fn golden() -> Profile {
    GOLDEN.parse().unwrap()
}

#[test]
fn what_is_read_is_written() {
    let p = golden();
    assert_eq!(p.to_string(), GOLDEN);
    assert_eq!((p.functions(), p.modules.len(), p.left_out), (2, 2, 3));
    let main = p.modules.values().next().unwrap().functions.values().next().unwrap();
    assert_eq!((main.name.as_str(), main.binding, main.origin), ("main", Binding::Global, Origin::Counted));
    assert_eq!(main.sites[&0x18].called(1010).map(|(_, n)| n).collect::<Vec<_>>(), [750, 250]);
    assert_eq!(main.blocks[&0x10].edges, [(0x10, 990), (0x20, 10)].into());
    assert_eq!(main.weight(), 1020);
}

#[test]
fn errors_name_line_and_column() {
    let fault = |from: &str, to: &str| {
        let e = GOLDEN.replacen(from, to, 1).parse::<Profile>().unwrap_err();
        (e.line, e.column, e.message)
    };
    let at = |line, column, message: &str| (line, column, message.to_owned());
    assert_eq!(
        fault("whet-profile 3", "whet-profile 4"),
        at(1, 14, "version 4 is not known, only those up to 3")
    );
    assert_eq!(
        fault("hits +0 3 +10 57", "hits"),
        at(15, 1, "expected some blocks, once for each function, not \"hits\"")
    );
    assert_eq!(fault("of 101 0x1100", "101 0x1100"), at(21, 11, "expected `of`, not \"101\""));
    assert_eq!(fault("+10 990", "+10 x990"), at(17, 18, "expected a number below 2^64, not \"x990\""));
    assert_eq!(fault("+10 990 +20 10", "+10 990 +20"), at(17, 25, "expected a number"));
    assert_eq!(fault("+10 990 +20 10", "+10 990 +10 1"), at(17, 22, "an edge is listed once, not \"+10\""));
    assert_eq!(fault("runs 2", "runs 2 3"), at(6, 8, "expected the end of the line"));
    assert_eq!(
        fault("runs 2", "runs 2\nruns 2"),
        at(7, 1, "expected once, before the modules, not \"runs\"")
    );
    assert_eq!(fault("0x5000@aa", "0x5000@a"), {
        at(20, 17, "expected a build-id: an even number of hexadecimal digits, not \"a\"")
    });
    assert_eq!(fault("end\n", ""), at(27, 1, "the text is cut off: it ends with the line `end`"));
    assert_eq!(fault("end\n", "end\nend\n"), at(28, 1, "expected nothing after `end`, not \"end\""));
    assert_eq!(fault("module aa", "module 0123456789abcdef"), {
        at(26, 8, "a module is listed once, not \"0123456789abcdef\"")
    });
    let e = Profile::read(b"whet-profile 1\nexe \xc3\xa4\xff").unwrap_err();
    assert_eq!((e.line, e.column), (2, 6));
    let empty = "".parse::<Profile>().unwrap_err();
    assert_eq!((empty.line, empty.column), (1, 1));
}

/// A file of version 1 is read as it was meant; keywords of version 2 are errors in it.
#[test]
fn the_first_version_is_read() {
    let first = |line: &&str| !["shape ", "hits ", "leads ", "table "].iter().any(|w| line.starts_with(w));
    let old: String = GOLDEN.lines().filter(first).map(|l| format!("{l}\n")).collect();
    let old = old.replacen("whet-profile 3", "whet-profile 1", 1);
    let mut now = golden();
    for f in now.modules.values_mut().flat_map(|m| m.functions.values_mut()) {
        (f.shape, f.hits, f.sites) = Default::default();
    }
    assert_eq!(old.parse(), Ok(now));
    let stayed = |text: &str| text.replacen("counted entered", "stayed entered", 1).parse::<Profile>();
    assert!(stayed(GOLDEN).is_ok() && stayed(&old).is_err());
    let line =
        old.replacen("call +14", "leads +18 of 1 0x1100 1\ncall +14", 1).parse::<Profile>().unwrap_err();
    assert_eq!(line.message, "version 1 has no such line, not \"leads\"");
}

/// A file of version 2 has no shapes.
#[test]
fn the_second_version_is_read() {
    let old = GOLDEN.replacen("whet-profile 3", "whet-profile 2", 1);
    assert_eq!(old.parse::<Profile>().unwrap_err().message, "version 2 has no such line, not \"shape\"");
    let old = old.replacen("shape 00000000000000aa\n", "", 1);
    let mut now = golden();
    now.modules.values_mut().flat_map(|m| m.functions.values_mut()).for_each(|f| f.shape = None);
    assert_eq!(old.parse(), Ok(now));
}

/// A one-second form of the fuzz target: any bytes are parsed without a panic, and a profile that was read is
/// written back the same.
#[test]
fn any_text_is_read_or_refused() {
    let words = [
        "+", "-", "0x", "function", "module", "call", "leads", "table", "shape", "hits", "of", "stayed",
        "\n", " ", "ff", "9", "end", "counted", "é", "\u{b}",
    ];
    arbtest::arbtest(|u| {
        let mut text = if u.ratio(1, 8)? { String::new() } else { GOLDEN.to_owned() };
        for _ in 0..u.int_in_range(1..=4)? {
            let mut at = u.choose_index(text.len() + 1)?;
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            if u.arbitrary()? {
                text.insert_str(at, u.choose(&words)?);
            } else {
                let mut to = (at + u.int_in_range(0..=20)?).min(text.len());
                while !text.is_char_boundary(to) {
                    to -= 1;
                }
                text.replace_range(at..to.max(at), u.choose(&words)?);
            }
        }
        if let Ok(profile) = text.parse::<Profile>() {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        Ok(())
    })
    .budget_ms(1000);
}

#[test]
fn names_cannot_break_lines() {
    let mut p = golden();
    let id = BuildId::new(&[0xaa]).unwrap();
    p.modules.get_mut(&id).unwrap().name = " a\nend\r b ".to_owned();
    let again: Profile = p.to_string().parse().unwrap();
    assert_eq!(again.modules[&id].name, "a\u{fffd}end\u{fffd} b");
    assert_eq!(again.to_string(), p.to_string());
}

fn function(counted: bool, n: u64) -> FunctionProfile {
    let edges = [(4, n), (8, 1)].into();
    let block = BlockProfile { last: 2, count: n + 1, edges };
    let callee = Place { module: None, at: Svma(8) };
    FunctionProfile {
        origin: if counted { Origin::Counted } else { Origin::Inferred },
        samples: n,
        entered: n,
        blocks: [(0, block)].into(),
        hits: [(0, n)].into(),
        sites: [(
            2,
            SiteProfile {
                callees: Looks { all: n, saw: [(callee.clone(), n)].into() },
                ..Default::default()
            },
        )]
        .into(),
        calls: [((2, callee), n)].into(),
        ..Default::default()
    }
}

fn of(f: FunctionProfile) -> Profile {
    let functions = [(FunctionKey { at: Svma(16), hash: 7 }, f)].into();
    let modules = [(BuildId::new(&[1]).unwrap(), ModuleProfile { functions, ..Default::default() })].into();
    Profile { runs: 1, samples: 100, modules, ..Default::default() }
}

#[test]
fn counted_replaces_inferred() {
    let mut p = of(function(false, 1000));
    p.merge(of(function(true, 5)));
    p.merge(of(function(false, 1 << 40)));
    p.merge(of(function(true, 6)));
    let f = p.modules.values().next().unwrap().functions.values().next().unwrap();
    assert_eq!((f.origin, f.entered, f.weight()), (Origin::Counted, 11, 13));
    assert_eq!(f.blocks[&0].edges, [(4, 11), (8, 2)].into());
    assert_eq!((f.samples, p.runs, p.samples), (1011 + (1 << 40), 4, 400));
    assert_eq!((f.hits[&0], f.sites[&2].callees.all), (1011 + (1 << 40), 1011 + (1 << 40)));
}

#[test]
fn huge_counts_are_scaled_down() {
    let mut p = of(function(true, u64::MAX - 1));
    p.merge(of(function(true, u64::MAX - 1)));
    p.tame();
    let f = p.modules.values().next().unwrap().functions.values().next().unwrap();
    assert!(f.weight() < 1 << 52 && f.weight() > 1 << 48, "{f:?}");
    let looks = &f.sites[&2].callees;
    assert!(looks.all < 1 << 52 && looks.saw.values().all(|&n| n <= looks.all && n > 1 << 48), "{looks:?}");
    let mut small = golden();
    small.tame();
    assert_eq!(small, golden());
}

#[test]
fn the_least_executed_functions_are_left_out_first() {
    let whole = golden();
    for limit in (0..GOLDEN.len() + 100).step_by(7) {
        let mut p = golden();
        p.shrink_to(limit);
        assert!(p.functions() == 0 || p.to_string().len() <= limit);
        assert_eq!(p.left_out + p.functions() as u64, 5);
        let names: Vec<&str> =
            p.modules.values().flat_map(|m| m.functions.values()).map(|f| f.name.as_str()).collect();
        assert!(names.is_empty() || names.contains(&"helper"), "it has the larger weight: {names:?}");
    }
    let mut p = golden();
    p.shrink_to(GOLDEN.len() + 100);
    assert_eq!(p, whole);
}

#[test]
fn fdata_has_the_form_of_llvm_bolt() {
    let p = golden();
    let f = fdata(&p, &BuildId::new(&[1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]).unwrap());
    let text = "\
1 main 8 1 main 10 0 10
1 main 1c 1 main 10 0 990
1 main 1c 1 main 20 0 10
1 main 14 1 helper/1 0 0 1000
1 main 18 1 helper/1 0 0 742
0 [unknown] 0 1 main 0 0 10
";
    assert_eq!(f.text, text);
    assert_eq!((f.functions, f.unnamed, f.edges_left_out), (2, 0, 4));
    assert_eq!(fdata(&p, &BuildId::new(&[9]).unwrap()), Fdata::default());
}

#[test]
fn a_moved_function_is_the_same_one() {
    let blocks = [(2, cond(2, 1)), (1, fall(2)), (3, ret())];
    assert_eq!(hash(&cfg_at(0x1000, &blocks)), hash(&cfg_at(0x7000, &blocks)));
    let other = [(2, cond(1, 2)), (1, fall(2)), (3, ret())];
    assert_ne!(hash(&cfg_at(0x1000, &blocks)), hash(&cfg_at(0x1000, &other)));
    let longer = [(2, cond(2, 1)), (1, fall(2)), (4, ret())];
    assert_ne!(hash(&cfg_at(0x1000, &blocks)), hash(&cfg_at(0x1000, &longer)));
}

/// Returns consistent counts, inferred from random weights.
fn wandered(cfg: &code::Cfg, seed: u64) -> crate::Counts {
    let mut rng = Rng(seed | 1);
    let weights: Vec<u64> = cfg.blocks.iter().map(|_| rng.below(1000)).collect();
    crate::infer(cfg, &weights)
}

proptest! {
    #[test]
    fn recorded_counts_are_restored(cfg in arb_cfg(10), seed: u64) {
        let counts = wandered(&cfg, seed);
        let recorded = FunctionProfile::record(&cfg, &counts);
        let text = of(recorded).to_string();
        let read: Profile = text.parse().unwrap();
        let f = read.modules.values().next().unwrap().functions.values().next().unwrap();
        let again = f.counts(&cfg);
        prop_assert!(again.is_consistent(&cfg));
        prop_assert_eq!(again.entry, counts.entry);
        for (again, block) in again.blocks.iter().zip(&counts.blocks) {
            prop_assert_eq!((again.count, again.inflow, again.outflow), (block.count, block.inflow, block.outflow));
        }
        // Recording the counts again gives the same text. The only difference allowed is that parallel edges
        // are joined.
        prop_assert_eq!(of(FunctionProfile::record(&cfg, &again)).to_string(), text);
    }

    #[test]
    fn any_numbers_give_consistent_counts(cfg in arb_cfg(8), seed: u64, bits in 1u32..64) {
        let mut rng = Rng(seed | 1);
        let mut p = of(FunctionProfile::record(&cfg, &wandered(&cfg, seed)));
        for f in p.modules.values_mut().flat_map(|m| m.functions.values_mut()) {
            for b in f.blocks.values_mut() {
                b.count = rng.below(1 << bits);
                b.edges.values_mut().for_each(|n| *n = rng.below(1 << bits));
            }
        }
        p.tame();
        let f = p.modules.values().next().unwrap().functions.values().next().unwrap();
        prop_assert!(f.counts(&cfg).is_consistent(&cfg));
    }

    #[test]
    fn order_makes_no_difference(cfg in arb_cfg(6), seed: u64, kinds in prop::collection::vec((0usize..3, any::<u64>(), 0u8..2), 3)) {
        let profiles: Vec<Profile> = kinds.iter().enumerate().map(|(i, &(origin, samples, module))| {
            let f = FunctionProfile { origin: [Origin::Inferred, Origin::Stayed, Origin::Counted][origin], samples, name: format!("f{}", samples % 3), ..FunctionProfile::record(&cfg, &wandered(&cfg, seed ^ samples)) };
            let mut p = of(f);
            let m = p.modules.pop_first().unwrap().1;
            p.modules.insert(BuildId::new(&[module]).unwrap(), m);
            p.exes.insert(format!("e{i}"));
            p
        }).collect();
        let merged = |order: [usize; 3]| {
            let mut sum = Profile::default();
            order.iter().for_each(|&i| sum.merge(profiles[i].clone()));
            sum
        };
        let one = merged([0, 1, 2]);
        prop_assert_eq!(&merged([2, 0, 1]), &one);
        let mut right = profiles[1].clone();
        right.merge(profiles[2].clone());
        let mut left = profiles[0].clone();
        left.merge(right);
        prop_assert_eq!(left, one);
    }
}
