//! Compares block orders with those of llvm-bolt, for the same functions and the same exact counts, by the
//! same score.

use crate::support::paths::{Paths, own};
use crate::support::shuffled;
use addr::{Addr, Svma};
use code::{BlockId, Cfg, Dest, Term};
use engine::CountedFunction;
use iced_x86::Mnemonic;
use profile::{Binding, BuildId, FunctionKey, FunctionProfile, ModuleProfile, Profile};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// How far the sum of whet's scores may lie below llvm-bolt's, as a share of llvm-bolt's.
const SLACK: f64 = 0.005;

fn bolt() -> Option<&'static str> {
    let names = ["llvm-bolt", "llvm-bolt-19", "llvm-bolt-16", "llvm-bolt-15", "llvm-bolt-14"];
    names.into_iter().find(|name| Command::new(name).arg("--version").output().is_ok())
}

/// Returns the counts in llvm-bolt's format.
fn fdata(functions: &[&CountedFunction]) -> String {
    let mut module = ModuleProfile::default();
    for f in functions {
        let mut profile = FunctionProfile::record(&f.cfg, &f.counts);
        profile.name.clone_from(&f.name);
        profile.binding = if f.name == "p_all" { Binding::Global } else { Binding::Local };
        let key = FunctionKey { at: Svma(f.cfg.entry.0), hash: profile::hash(&f.cfg) };
        module.functions.insert(key, profile);
    }
    let id = BuildId::new(&[1; 20]).unwrap();
    let profile = Profile { modules: [(id.clone(), module)].into(), ..Profile::default() };
    profile::fdata(&profile, &id).text
}

/// Returns for each function the former offsets of its blocks, in the order that llvm-bolt gives them.
fn bolt_orders(bolt: &str, program: &Path, profile: &str) -> BTreeMap<String, Vec<u64>> {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("profile.fdata");
    std::fs::write(&data, profile).unwrap();
    let out = Command::new(bolt)
        .arg(program)
        .arg("-o")
        .arg(dir.path().join("out"))
        .arg(format!("--data={}", data.display()))
        .args(["--reorder-blocks=ext-tsp", "--simplify-conditional-tail-calls=0"])
        .args(["--print-cfg", "--print-finalized", "--print-only=p_.*"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap() + &String::from_utf8_lossy(&out.stderr);

    let (mut starts, mut orders) = (BTreeMap::new(), BTreeMap::new());
    let (mut function, mut label, mut before) = ("", None, true);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Binary Function \"") {
            function = rest.split(['"', '/', '(']).next().unwrap();
            before = line.contains("after building cfg");
            label = None;
        } else if line.contains("instructions, align") {
            label = line.split(' ').next();
        } else if let Some(layout) = line.strip_prefix("  BB Layout   : ").filter(|_| !before) {
            let labels: Vec<&str> = layout.split(", ").collect();
            orders.insert(function.to_owned(), labels);
        } else if let Some((offset, _)) = line.trim_start().split_once(": ").filter(|_| before)
            && let Ok(offset) = u64::from_str_radix(offset, 16)
            && let Some(label) = label.take()
        {
            // Before llvm-bolt changes anything, it prints a block's first instruction with its offset in the
            // function.
            starts.insert((function.to_owned(), label), offset);
        }
    }
    orders
        .into_iter()
        .map(|(name, labels)| {
            let at = labels.iter().filter_map(|l| starts.get(&(name.clone(), *l)).copied()).collect();
            (name, at)
        })
        .collect()
}

/// Returns the block that this one aligns, if it does nothing else.
fn aligned(cfg: &Cfg, b: usize) -> Option<usize> {
    let insts = cfg.insts_of(BlockId(u32::try_from(b).unwrap()));
    match cfg.blocks[b].term {
        Term::Fall { next: Dest::Block(next) } => {
            insts.iter().all(|i| i.decoded.mnemonic() == Mnemonic::Nop).then_some(next.index())
        }
        _ => None,
    }
}

#[test]
fn block_orders_score_no_less_than_those_of_llvm_bolt() {
    let Some(bolt) = bolt() else {
        eprintln!("skipped: no llvm-bolt on this machine");
        return;
    };
    for (compiler, flags) in [("gcc", ["-O2", "-Wl,--emit-relocs"]), ("clang", ["-O2", "-Wl,--emit-relocs"])]
    {
        let mut paths = Paths::start(compiler, &flags);
        let shuffled = shuffled(1);
        let functions = paths.counted(&shuffled, b's');
        let functions: Vec<&CountedFunction> = own(&functions).into_iter().filter(|f| f.exact).collect();
        let program = std::fs::read_link(format!("/proc/{}/exe", paths.pid().0)).unwrap();
        let theirs = bolt_orders(bolt, &program, &fdata(&functions));
        paths.end();

        let (mut ours_all, mut theirs_all, mut plain_all, mut compared) = (0.0, 0.0, 0.0, 0);
        for f in &functions {
            let cfg = &f.cfg;
            let graph = engine::block_order_graph(cfg, &f.counts);
            let n = graph.blocks.len();
            let block = |at: u64| cfg.blocks.iter().position(|b| b.range.start == cfg.entry.add(at));
            let Some(order) = theirs.get(&f.name) else { continue };
            let mut order: Vec<usize> = order.iter().filter_map(|&at| block(at)).collect();
            // llvm-bolt drops blocks that only align. Such a block would lie before the block that it falls
            // through into.
            for b in (0..n).rev().filter(|b| !order.contains(b)).collect::<Vec<_>>() {
                if let Some(place) = aligned(cfg, b).and_then(|next| order.iter().position(|&o| o == next)) {
                    order.insert(place, b);
                }
            }
            let lost = (0..n).filter(|b| f.counts.blocks[*b].count > 0 && !order.contains(b)).count();
            if lost > 0 {
                eprintln!("{compiler}: {}: llvm-bolt has {lost} blocks that ran elsewhere", f.name);
                continue;
            }
            // Blocks that never ran add nothing to the score behind the blocks that ran.
            let rest: Vec<usize> = (0..n).filter(|b| !order.contains(b)).collect();
            order.extend(rest);
            let ours = layout::score(&graph, &layout::ext_tsp(&graph));
            let (theirs, plain) =
                (layout::score(&graph, &order), layout::score(&graph, &(0..n).collect::<Vec<_>>()));
            eprintln!(
                "{compiler}: {}: ours {ours:.1}, llvm-bolt's {theirs:.1}, as it was {plain:.1}",
                f.name
            );
            ours_all += ours;
            theirs_all += theirs;
            plain_all += plain;
            compared += 1;
        }
        eprintln!(
            "{compiler}: {compared} functions: ours {ours_all:.0}, llvm-bolt's {theirs_all:.0}, as they were {plain_all:.0}"
        );
        assert!(compared >= 8, "{compiler}: {compared}");
        assert!(theirs_all > plain_all, "{compiler}: llvm-bolt did not read the profile");
        assert!(ours_all >= theirs_all * (1.0 - SLACK), "{compiler}: {ours_all} {theirs_all}");
    }
}
