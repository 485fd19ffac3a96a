//! Virtual tables: the tables of a real program are found, and data that only looks like a table is not.

use crate::common::Guest;
use image::vtable_slots;
use std::collections::BTreeSet;
use std::process::Command;

const SOURCE: &str = r#"
#include <cstdio>
#include <typeinfo>
#include <unistd.h>
struct A { virtual ~A() {} virtual int f(int x) { return x + 1; } virtual int g() { return 2; } };
struct B { virtual int h() = 0; virtual ~B() {} };
struct C : A, B { int f(int x) override { return x * 2; } int h() override { return 7; } };
struct V : virtual A { int g() override { return 9; } };
// Looks like a table in part: function pointers without a type, and a type with a number after it.
int plain(int x) { return x; }
int (*ops[])(int) = { plain, plain };
struct Fake { long offset; const std::type_info* type; long number; };
Fake fake = { 0, &typeid(C), 5 };
Fake not_top = { 77, &typeid(C), (long)0 };
int main() {
    A* a = new C; B* b = new C; A* v = new V;
    fprintf(stderr, "%d\n", a->f(3) + b->h() + v->g() + ops[0](1) + (int)fake.number + (int)not_top.offset);
    puts("ready");
    fflush(stdout);
    pause();
}
"#;

/// Returns the words of the compiler's tables, from the symbols of an unstripped program.
fn by_symbols(program: &std::path::Path) -> BTreeSet<u64> {
    let out = Command::new("nm").args(["-S", "--defined-only"]).arg(program).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines()
        .filter_map(|l| {
            let mut words = l.split_whitespace();
            let (at, size, _, name) = (words.next()?, words.next()?, words.next()?, words.next()?);
            let hex = |s| u64::from_str_radix(s, 16).ok();
            name.starts_with("_ZTV").then_some((hex(at)?, hex(size)?))
        })
        .flat_map(|(at, size)| (at..at + size).step_by(8))
        .collect()
}

#[test]
fn exactly_the_functions_of_virtual_tables() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["-O1", "-fPIE", "-pie"];
    let program = testkit::build_source("g++", &flags, dir.path(), "tables.cc", SOURCE);
    let guest = Guest::start(&mut Command::new(&program));
    let live = guest.live();
    let image = live.image();
    let main = image.main();
    let slots: Vec<_> =
        vtable_slots(&image, &live).into_iter().filter(|s| main.extent.contains(s.slot)).collect();
    let words = by_symbols(&program);
    for s in &slots {
        assert!(words.contains(&main.bias.svma(s.slot).0), "{} is in no virtual table", s.slot);
    }
    // A has 2 destructors, f and g. C has 2 destructors, f, g and h, and for its B part h and 2 destructors
    // (B's own table is never used, as B is abstract). V has 2 destructors, f and g; A is a virtual base, so
    // V's part for A has 2 destructors, f and g too.
    let functions: BTreeSet<&str> = slots.iter().filter_map(|s| main.symbols.name_at(s.function)).collect();
    for name in ["_ZN1A1fEi", "_ZN1A1gEv", "_ZN1C1fEi", "_ZN1C1hEv", "_ZN1V1gEv", "_ZThn8_N1C1hEv"] {
        assert!(functions.contains(name), "{name} is missing from {functions:?}");
    }
    assert!(!functions.contains("_Z5plaini"));
}
