//! The analysis of every function of real programs ends, refuses few, and resolves most jump tables.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test that reports")]

use crate::support::Program;
use addr::ReadMemory;
use code::{Cfg, Refusal, Term};
use iced_x86::{Mnemonic, OpKind};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(Default, Debug)]
struct Counts {
    functions: usize,
    accepted: usize,
    refused: BTreeMap<Refusal, Vec<String>>,
    instructions: usize,
    blocks: usize,
    cloneable: usize,
    entries: usize,
    found: Vec<String>,
    unknown: Vec<String>,
    tail: usize,
    time: Duration,
}

/// Returns whether an unresolved jump computes its destination like a table read.
fn like_a_switch(cfg: &Cfg, b: &code::Block) -> bool {
    let insts = &cfg.insts[b.insts.start as usize..b.insts.end as usize];
    let last = &insts.last().unwrap().decoded;
    if last.op0_kind() == OpKind::Memory {
        return last.memory_index_scale() == 8 && last.memory_index() != iced_x86::Register::None;
    }
    insts.iter().rev().take(8).any(|i| {
        i.decoded.mnemonic() == Mnemonic::Movsxd && i.decoded.memory_index_scale() == 4
            || i.decoded.mnemonic() == Mnemonic::Mov && i.decoded.memory_index_scale() == 8
    }) || last.has_repne_prefix()
        || insts.iter().any(|i| i.bytes.as_slice().starts_with(&[0x3e, 0xff]))
}

fn survey(path: &str) -> Counts {
    let p = Program::load(Path::new(path));
    let mut c = Counts::default();
    for f in p.functions.iter().filter(|f| !f.plt) {
        c.functions += 1;
        let start = Instant::now();
        let r = p.analyse(f);
        c.time += start.elapsed();
        let cfg = match r {
            Ok(cfg) => cfg,
            Err(e) => {
                c.refused.entry(e).or_default().push(format!("{:?}", f.entry));
                continue;
            }
        };
        let sound = code::verify(&cfg, &|r| p.bytes(r).ok());
        assert!(sound.is_ok(), "{:?}: {sound:?}", f.entry);
        c.accepted += 1;
        c.instructions += cfg.insts.len();
        c.blocks += cfg.blocks.len();
        for b in &cfg.blocks {
            let at = cfg.insts[b.insts.end as usize - 1].at;
            match b.term {
                Term::Switch { table } => {
                    let t = &cfg.tables[table.index()];
                    c.entries += t.targets.len();
                    if t.cloneable.is_some() {
                        c.cloneable += 1;
                    } else {
                        c.found.push(format!("{at:?}({})", t.targets.len()));
                    }
                }
                Term::Indirect if like_a_switch(&cfg, b) => c.unknown.push(format!("{at:?}")),
                Term::Indirect => c.tail += 1,
                _ => {}
            }
        }
    }
    println!(
        "{path}: {} functions, {:.2} % accepted, {} instructions, {} blocks, {:?}",
        c.functions,
        100.0 * c.accepted as f64 / c.functions as f64,
        c.instructions,
        c.blocks,
        c.time
    );
    for (r, v) in &c.refused {
        println!("  {} {}: {}", r.code(), v.len(), v[..v.len().min(12)].join(" "));
    }
    println!(
        "  switches: {} cloneable ({} entries in all), {} only found, {} unknown; other indirect jumps {}",
        c.cloneable,
        c.entries,
        c.found.len(),
        c.unknown.len(),
        c.tail
    );
    println!("  found: {}", c.found[..c.found.len().min(60)].join(" "));
    println!("  unknown: {}", c.unknown[..c.unknown.len().min(60)].join(" "));
    c
}

#[test]
fn server() {
    let path = "/usr/sbin/mariadbd";
    if Path::new(path).exists() {
        let c = survey(path);
        assert!(c.accepted * 1000 > c.functions * 999);
        assert!(c.cloneable * 100 > (c.cloneable + c.found.len()) * 96);
    }
}

#[test]
fn c_library() {
    let path = "/lib/x86_64-linux-gnu/libc.so.6";
    if Path::new(path).exists() {
        let c = survey(path);
        assert!(c.accepted * 100 > c.functions * 99);
    }
}

#[test]
fn libraries() {
    let paths =
        ["/lib/x86_64-linux-gnu/libstdc++.so.6", "/lib/x86_64-linux-gnu/libcrypto.so.3", "/usr/bin/python3"];
    for path in paths.into_iter().filter(|p| Path::new(p).exists()) {
        let c = survey(path);
        assert!(c.accepted * 100 > c.functions * 99);
    }
}
