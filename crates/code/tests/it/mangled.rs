//! No bytes make the analysis panic: random bytes, and real functions with changed bytes.

use addr::{Avma, AvmaRange, ReadMemory};
use code::{CalleeKind, Input, Liveness, Part, analyse};
use unwind::{CfaRule, Reg, Row};

fn run(bytes: &[u8], pads: &[Avma], table: &[u8]) {
    let at = Avma(0x1000);
    let range = AvmaRange::with_len(at, bytes.len() as u64);
    let row = Row { range, cfa: CfaRule::RegOffset(Reg::RBP, 16), regs: Vec::new(), args_size: 0 };
    let input = Input {
        entry: at,
        parts: &[Part { range, bytes }],
        rows: &[row],
        landing_pads: pads,
        constant: &|r| {
            // All other memory is a table.
            if range.overlaps(&r) {
                return (at, bytes).bytes(r).ok();
            }
            let n = usize::try_from(r.len()).ok().filter(|&n| n < 1 << 20)?;
            (!table.is_empty()).then(|| table.iter().copied().cycle().take(n).collect())
        },
        callee: &|_| CalleeKind::Ordinary,
        is_function: &|_| true,
    };
    if let Ok(cfg) = analyse(&input) {
        let known = |r: AvmaRange| (at, bytes).bytes(r).ok();
        let sound = code::verify(&cfg, &|r| if range.covers(&r) { known(r) } else { None });
        assert!(sound.is_ok(), "{sound:?} {bytes:02x?}");
        let live = Liveness::compute(&cfg);
        assert!(cfg.insts.len() >= cfg.blocks.len());
        let _ = live.flags_live_before(code::InstId(0));
    }
}

#[test]
fn random_bytes() {
    arbtest::arbtest(|u| {
        let table: Vec<u8> = u.arbitrary()?;
        let bytes: Vec<u8> = u.arbitrary()?;
        if !bytes.is_empty() {
            run(&bytes, &[Avma(0x1000 + bytes.len() as u64 / 2)], &table);
        }
        Ok(())
    })
    .budget_ms(1000);
}

#[test]
fn changed_functions() {
    use object::{Object, ObjectSection};
    let dir = tempfile::tempdir().unwrap();
    let source = "int g(int); int f(int x, int k) { for (;;) switch (k) { case 0: x = g(x); k = x; break; case 1: return x; case 2: k = 5; break; case 3: x ^= k; k = g(k); break; case 4: case 5: k--; x += g(x); break; case 6: return g(9); case 7: k = 2; x--; } }";
    let built = testkit::build_source("gcc", &["-O2", "-c"], dir.path(), "a.c", source);
    let data = std::fs::read(built).unwrap();
    let text =
        object::File::parse(&data[..]).unwrap().section_by_name(".text").unwrap().data().unwrap().to_vec();
    arbtest::arbtest(|u| {
        let mut bytes = text.clone();
        for _ in 0..u.int_in_range(0..=4)? {
            let n = u.choose_index(bytes.len())?;
            bytes[n] = u.arbitrary()?;
        }
        // Offsets from a base at any address.
        let table: Vec<u8> =
            (0..u.int_in_range(0..=12)?).flat_map(|n: i32| (n * 7 - 40).to_le_bytes()).collect();
        run(&bytes, &[], &table);
        Ok(())
    })
    .budget_ms(1000);
}
