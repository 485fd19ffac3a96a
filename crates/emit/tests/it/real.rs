//! All functions of real programs, in random orders and with random blocks left out.

use crate::common::program::{Program, Source};
use crate::common::walk::{Seen, Walker, clones};
use crate::common::{Rng, unwinding};
use addr::{Addr, Avma};
use code::Refusal;
use emit::Function;
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

fn check(path: &str) {
    if !Path::new(path).exists() {
        eprintln!("{path} is not on this machine");
        return;
    }
    let p = Program::load(Path::new(path));
    eprintln!("{path}: {} functions, refused by the analysis: {:?}", p.functions.len(), p.refused);
    let by_entry: FxHashMap<Avma, &Source> = p.functions.iter().map(|f| (f.cfg.entry, f)).collect();
    let mut rng = Rng(1);
    // From all blocks to the entry block alone.
    let keep = [8, 8, 4, 1];
    let mut functions: Vec<Function<'_>> =
        p.functions.iter().enumerate().map(|(i, f)| f.shuffled(&mut rng, keep[i % keep.len()])).collect();
    let mut offset = 0;
    for f in functions.iter_mut().step_by(3) {
        f.counters = crate::common::counters(f.cfg, &mut rng, &mut offset);
    }
    let (text_at, data_at) = (p.end, p.end.add(0x1000_0000));
    let request = crate::common::request(text_at, data_at, functions);
    let start = Instant::now();
    let out = emit::emit(&request).unwrap();
    let took = start.elapsed();
    let mut refused: HashMap<Refusal, usize> = HashMap::new();
    for r in &out.refused {
        *refused.entry(r.1).or_default() += 1;
    }
    let round_trip: Vec<Avma> =
        out.refused.iter().filter(|r| r.1 == Refusal::RoundTrip).map(|r| r.0).collect();
    eprintln!(
        "  {took:?} {:?} text {} data {} refused {refused:?}",
        out.stats,
        out.text.len(),
        out.data.len()
    );
    assert_eq!(round_trip, []);
    assert!(out.clones.len() * 100 >= p.functions.len() * 99);

    let mut seen = Seen::default();
    let clones = clones(&out);
    for info in &out.clones {
        let walker = Walker::new(&out, &clones, text_at, data_at, &by_entry[&info.original].cfg);
        for _ in 0..4 {
            walker.walk(info, &mut rng, 300, &mut seen);
        }
    }
    eprintln!("  {seen:?}");
    assert!(seen.cloned_switches > 0 && seen.in_further_copies > 0);
    unwinding::check_rows(&out, data_at, &|at| by_entry[&at].rows.clone(), &|at| by_entry[&at].lsda.clone());
}

#[test]
fn libc() {
    check("/lib/x86_64-linux-gnu/libc.so.6");
}

#[test]
fn libstdcxx() {
    check("/usr/lib/x86_64-linux-gnu/libstdc++.so.6");
}

#[test]
fn mariadbd() {
    check("/usr/sbin/mariadbd");
}
