//! Checks the rooms of `engine`: a module uses its own room and lower rooms, and no modules use each other in a
//! circle.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "rooms/graph.rs"]
mod graph;

use graph::{Graph, Module};
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms that use neither processes nor files nor clocks, like the crates of the core.
const PURE: [&str; 2] = ["analyse", "plan"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the rooms that the table in DESIGN.md lists, the lowest first.
fn rooms() -> Vec<String> {
    let design = fs::read_to_string(root().join("DESIGN.md")).unwrap();
    let table = design.split("\n## Rooms of `engine`\n").nth(1).expect("DESIGN.md lists the rooms of engine");
    let table = table.split("\n## ").next().unwrap_or_default();
    table.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next()).map(str::to_owned).collect()
}

/// Returns the sources of `engine`: path below `src` and text.
fn sources() -> Vec<(String, String)> {
    let src = root().join("crates/engine/src");
    let (mut folders, mut out) = (vec![src.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
                out.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    out
}

/// Lists the wrong arrows of a graph. `rooms` begins with the lowest.
fn faults(graph: &Graph, rooms: &[String]) -> Vec<String> {
    let name = |m: &Module| m.join("::");
    let height = |m: &Module| m.first().and_then(|room| rooms.iter().position(|r| r == room));
    let mut faults = Vec::new();
    for module in graph.modules.iter().filter(|m| !m.is_empty() && height(m).is_none()) {
        faults.push(format!("{} is in no room", name(module)));
    }
    for (from, to) in graph.uses.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to))) {
        if from.is_empty() || to.len() < 2 {
            faults.push(format!("{} uses {}, which is no module in a room", name(from), name(to)));
        } else if height(to) > height(from) {
            faults.push(format!("{} uses {}, which is above it", name(from), name(to)));
        }
    }
    if let Some(circle) = graph.circle() {
        faults.push(format!("in a circle: {}", circle.iter().map(name).collect::<Vec<_>>().join(" -> ")));
    }
    faults
}

#[test]
fn arrows_between_rooms() {
    let faults = faults(&Graph::new(&sources()), &rooms());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_room_is_listed_once() {
    let src = root().join("crates/engine/src");
    let folders = fs::read_dir(src).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir());
    let mut found: Vec<String> =
        folders.map(|p| p.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    let mut listed = rooms();
    found.sort();
    listed.sort();
    assert_eq!(found, listed);
}

#[test]
fn planning_is_pure() {
    let lowest: Vec<String> = rooms().into_iter().take(1 + PURE.len()).collect();
    assert!(
        PURE.iter().all(|p| lowest.iter().any(|r| r == p)),
        "below the pure rooms is one room: {lowest:?}"
    );
    let found = impurities(&Graph::new(&sources()));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Lists what modules of pure rooms name of processes, files and clocks. Modules of tests are left out.
fn impurities(graph: &Graph) -> Vec<String> {
    let is_test = |m: &Module| m.iter().any(|name| name == "tests" || name == "test_candidate");
    let is_pure = |m: &Module| m.first().is_some_and(|room| PURE.contains(&room.as_str())) && !is_test(m);
    let is_impure = |path: &str| {
        let (of, name) = path.split_once("::").unwrap_or((path, ""));
        ["tracee", "perf", "splice", "libc"].contains(&of)
            || of == "std" && ["fs", "process", "time", "env", "net", "thread"].contains(&name)
    };
    let pure = graph.outside.iter().filter(|(module, _)| is_pure(module));
    let paths = pure.flat_map(|(module, paths)| paths.iter().map(move |path| (module, path)));
    paths.filter(|(_, p)| is_impure(p)).map(|(m, p)| format!("{} names {p}", m.join("::"))).collect()
}

/// Lists the wrong arrows of a small crate.
fn drawn(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<_> = files.iter().map(|&(file, text)| (file.to_owned(), text.to_owned())).collect();
    let graph = Graph::new(&files);
    faults(&graph, &["low", "high"].map(str::to_owned))
}

#[test]
fn arrows_upwards_are_found_however_they_are_written() {
    let lib = ("lib.rs", "mod low; mod high; pub use high::b::{B, C as D}; pub use outer::Pid;");
    let low = ("low/mod.rs", "pub(crate) mod a; pub(crate) mod a2;");
    let high = ("high/mod.rs", "pub(crate) mod b;");
    let b =
        ("high/b.rs", "use crate::low::a::A; pub struct B; pub struct C; pub fn f(_: A, _: crate::Pid) {}");
    let of = |a: &str| drawn(&[lib, low, high, b, ("low/a2.rs", ""), ("low/a.rs", a)]);
    let up = "low::a uses high::b, which is above it";
    let harmless =
        "//! crate::B\n/// [`crate::B`]\nuse super::a2::*; pub struct A; const S: &str = \"crate::B\";";
    assert_eq!(of(harmless), Vec::<String>::new());
    for a in [
        "use crate::B;",
        "use crate::{D as Other, Pid};",
        "use crate::high::{b::{self}};",
        "use super::super::high::b;",
        "fn f() { let _ = vec![crate::high::b::f]; }",
        "fn f() -> impl Fn(crate::D) { |_| () }",
    ] {
        let found = of(a);
        assert_eq!(found.first().map(String::as_str), Some(up), "{a}");
        assert!(found.len() == 2 && found[1].starts_with("in a circle: "), "{a}: {found:?}");
    }
    let in_tests = of("mod tests { use super::*; use crate::B; }");
    assert_eq!(in_tests, ["low::a::tests uses high::b, which is above it"]);
    assert_eq!(of("use crate::low;"), ["low::a uses low, which is no module in a room"]);
}

#[test]
fn impure_names_are_found_however_they_are_written() {
    let of = |a: &str| {
        let lib = ("lib.rs", "pub use tracee::Pid as Number; pub use profile::Profile;");
        let files = [lib, ("plan/a.rs", a)].map(|(file, text)| (file.to_owned(), text.to_owned()));
        impurities(&Graph::new(&files))
    };
    assert_eq!(of("use crate::Profile; use std::fmt; mod tests { use std::fs; }"), Vec::<String>::new());
    assert_eq!(of("use crate::Number;"), ["plan::a names tracee::Pid"]);
    assert_eq!(of("use std::{fmt, fs::{self, File}};"), ["plan::a names std::fs"]);
    assert_eq!(of("mod tests {} fn f() { std::time::Instant::now(); }"), ["plan::a names std::time"]);
}

#[test]
fn circles_in_a_room_are_found() {
    let lib = ("lib.rs", "mod low; mod high;");
    let of = |low: &str, a: &str, inner: &str| {
        drawn(&[
            lib,
            ("low/mod.rs", low),
            ("low/a.rs", a),
            ("low/a/inner.rs", inner),
            ("low/a2.rs", "use super::a;"),
        ])
    };
    let low = "mod a; mod a2;";
    assert_eq!(of(low, "mod inner; pub use inner::I;", "use super::A;"), Vec::<String>::new());
    assert_eq!(of(low, "use super::a2;", ""), ["in a circle: low::a -> low::a2 -> low::a"]);
    let parent = of(low, "mod inner; fn f() { inner::f() }", "use super::A;");
    assert_eq!(parent, ["in a circle: low::a -> low::a::inner -> low::a"]);
}
