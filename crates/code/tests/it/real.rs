//! The sweep and the joining of cold parts on real programs. One is a static C++ program that gcc splits; its
//! symbols are the reference. The others are programs of this machine.

use crate::support::Program;
use addr::{Avma, ReadMemory};
use code::{Extents, parse, redirect_sites, verify};
use object::{Object, ObjectSymbol, SymbolKind};
use std::collections::BTreeMap;
use std::path::Path;

/// Returns every joined fragment with its function.
fn joined(e: &Extents) -> Vec<(Avma, Avma)> {
    e.functions.iter().flat_map(|f| f.parts.iter().skip(1).map(|part| (f.entry, part.start))).collect()
}

/// This links in all input and output of the C++ library, which gcc has split.
const GUEST: &str = r"
#include <fstream>
#include <iostream>
#include <regex>
int main(int argc, char **argv) {
    std::ifstream in(argv[0]);
    std::string s;
    in >> s;
    try {
        std::cout << std::regex_match(s, std::regex(s)) << std::stoi(s) << std::endl;
    } catch (std::exception &e) {
        return argc;
    }
}
";

#[test]
fn cold_parts_are_found_without_symbols() {
    let dir = tempfile::tempdir().unwrap();
    let program = testkit::build_source("g++", &["-O2", "-static"], dir.path(), "a.cc", GUEST);
    let p = Program::load(&program);
    // All names of each address; a program has many aliases.
    let data = std::fs::read(&program).unwrap();
    let mut names: BTreeMap<Avma, Vec<String>> = BTreeMap::new();
    for s in object::File::parse(&data[..]).unwrap().symbols().filter(|s| s.kind() == SymbolKind::Text) {
        names.entry(Avma(s.address())).or_default().push(s.name().unwrap().to_string());
    }
    let cold_of = |at: &Avma| names.get(at)?.iter().find_map(|n| n.split_once(".cold")).map(|(base, _)| base);
    let truth = p.frames.fdes().iter().filter(|f| cold_of(&f.range.start).is_some()).count();
    assert!(truth > 100, "{truth} cold parts in all: is this gcc?");

    let branches = p.sweep();
    let named = joined(&p.merge(&branches, true));
    for (entry, part) in &named {
        // A name always decides. A fragment without a `.cold` name may be joined only if it has no name at
        // all.
        match cold_of(part) {
            Some(base) => assert!(names[entry].iter().any(|n| n == base), "{entry}: {base}"),
            None => assert!(!names.contains_key(part), "{part}"),
        }
    }
    assert_eq!(named.iter().filter(|(_, part)| cold_of(part).is_some()).count(), truth);

    let nameless = joined(&p.merge(&branches, false));
    let found: Vec<_> = nameless.iter().filter(|(_, part)| cold_of(part).is_some()).collect();
    assert!(found.len() * 100 >= truth * 95, "{} of {truth}", found.len());
    for pair in found {
        // Without names, a function to which only one other function jumps counts as part of that function,
        // together with its own cold part.
        let with_parent = named.iter().any(|(parent, part)| {
            *part == pair.1 && (*parent == pair.0 || nameless.contains(&(pair.0, *parent)))
        });
        assert!(with_parent, "{} is no part of {}", pair.1, pair.0);
    }
}

#[test]
fn programs_of_this_machine() {
    let own = std::env::current_exe().unwrap();
    let libc = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let server = Path::new("/usr/sbin/mariadbd");
    for path in [&own, libc, server].into_iter().filter(|p| p.exists()) {
        let p = Program::load(path);
        let branches = p.sweep();
        let e = p.merge(&branches, true);
        let fdes = p.frames.fdes();
        println!(
            "{}: {} instructions, {} invalid bytes, {} FDEs, {} functions",
            path.display(),
            branches.instructions(),
            branches.invalid(),
            fdes.len(),
            e.functions.len()
        );
        // Compilers put no data into text.
        assert!(branches.invalid() * 10_000 < branches.instructions());
        assert_eq!((e.overlapping, e.empty), (0, 0));
        // Nearly all fragments that do not start like a function are part of one.
        let left = e.functions.iter().filter(|f| !p.starts_like_entry(f.fdes[0])).count();
        let all = (0..fdes.len()).filter(|&i| !p.starts_like_entry(i)).count();
        assert!(left <= 1 + all / 10, "{left} of {all}");
    }
}

/// Most functions of a real program have redirect sites, and no site contains the first byte of an
/// instruction.
#[test]
fn sites_of_a_real_program() {
    let p = Program::load(Path::new("/lib/x86_64-linux-gnu/libc.so.6"));
    let (mut functions, mut with_sites) = (0, 0);
    for f in p.functions.iter().filter(|f| !f.plt) {
        let Ok(cfg) = p.analyse(f) else { continue };
        let found = redirect_sites(&cfg, &|_| true, &|_| true);
        for site in &found.sites {
            assert!(cfg.insts.iter().all(|i| !site.range.contains(i.at)), "{} {site:?}", f.entry);
        }
        functions += 1;
        with_sites += usize::from(!found.sites.is_empty());
    }
    println!("{with_sites} of {functions}");
    assert!(with_sites * 10 > functions * 6);
}

/// Every graph of a real program is sound, and is unchanged after printing and parsing.
#[test]
fn graphs_as_text() {
    let p = Program::load(Path::new("/lib/x86_64-linux-gnu/libc.so.6"));
    let mut graphs = 0;
    for f in p.functions.iter().filter(|f| !f.plt) {
        let Ok(cfg) = p.analyse(f) else { continue };
        assert_eq!(verify(&cfg, &|r| p.bytes(r).ok()), Ok(()), "{}", f.entry);
        let text = cfg.to_string();
        let again = parse(&text).unwrap();
        assert_eq!(format!("{cfg:?}"), format!("{again:?}"));
        assert_eq!(again.to_string(), text);
        graphs += 1;
    }
    assert!(graphs > 1000, "{graphs}");
}
