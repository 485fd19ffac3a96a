//! Jump tables of each compiler, level and code model. Symbols and relocations are the reference for a
//! table's entries.

use crate::support::Program;
use code::{Cfg, Dest, Term};
use std::ffi::OsStr;
use std::path::Path;

const SOURCE: &str = r"
__attribute__((noinline)) int f(int x) { __asm__ volatile(''); return x * 3; }
#define C(n) case n: return f(x + n) ^ n * 77;
#define TEN(n) C(n) C(n + 1) C(n + 2) C(n + 3) C(n + 4) C(n + 5) C(n + 6) C(n + 7) C(n + 8) C(n + 9)
int dense(int x, int k) { switch (k) { TEN(0) TEN(10) } return f(x); }
int shifted(int x, int k) { switch (k) { TEN(-5) TEN(100) TEN(110) } return f(x); }
int gaps(int x, unsigned k) { switch (k) { C(0) C(1) C(3) C(4) C(7) C(8) C(9) C(12) C(13) } return f(x); }
int bytes(int x, unsigned char k) { switch (k) { TEN(48) TEN(58) } return f(x); }
int masked(int x, unsigned k) { switch (k & 7) { C(0) C(1) C(2) C(3) C(4) C(5) C(6) C(7) } return f(x); }
int wide(int x, unsigned long k) { switch (k) { TEN(0) TEN(10) } return f(x); }
int nested(int x, int k, int l) {
    switch (k) { C(0) C(1) C(2) C(3) C(4) C(5)
    case 6: switch (l) { TEN(0) } return f(x) + 1;
    case 7: switch (l) { TEN(20) } return f(x) + 2; }
    return f(x);
}
int looped(int x, const unsigned char *p, int n) {
    for (int i = 0; i < n; i++) switch (p[i]) {
        case 0: x = f(x) + 1; break; case 1: x = f(x + 2); break; case 2: x ^= 9; break; case 3: x = f(x - i); break;
        case 4: x = f(x) * 9; break; case 5: x += i; break; case 6: return f(x); default: x = f(f(x)); }
    return x;
}
struct s { int pad, kind; };
int field(int x, struct s *s) { switch (s->kind) { TEN(0) } return f(x); }
int unreachable(int x, int k) {
    switch (k) { TEN(0) default: __builtin_unreachable(); }
}
int computed(int x, const unsigned char *p) {
    static const void *const go[] = {&&a, &&b, &&c, &&d};
    goto *go[*p++];
    a: x = f(x); goto *go[*p++];
    b: x = f(x) + 1; goto *go[*p++];
    c: x ^= 5; goto *go[*p++];
    d: return x;
}
int main(int n, char **v) {
    return dense(n, n) + shifted(n, n) + gaps(n, n) + bytes(n, n) + masked(n, n) + wide(n, n) + nested(n, n, n)
        + looped(n, (void *)v[0], n) + field(n, (void *)v) + unreachable(n, n) + computed(n, (void *)v);
}
";

/// Name, tables, and entries in each. The list is empty if a compiler makes no table of a switch.
const EXPECTED: &[(&str, &[usize])] = &[
    ("dense", &[20]),
    ("shifted", &[]),
    ("gaps", &[14]),
    ("bytes", &[20]),
    ("masked", &[8]),
    ("wide", &[20]),
    ("nested", &[8, 10, 10]),
    ("looped", &[7]),
    ("field", &[10]),
];

struct Variant {
    compiler: &'static str,
    flags: Vec<&'static str>,
}

fn variants() -> Vec<Variant> {
    let mut out = Vec::new();
    for compiler in ["gcc", "clang"] {
        for level in ["-O0", "-O1", "-O2", "-Os"] {
            for model in [&["-fPIE", "-pie"][..], &["-fno-pic", "-no-pie"]] {
                for cet in [&[][..], &["-fcf-protection=full"]] {
                    let flags = [&[level, "-w"], model, cet].concat();
                    out.push(Variant { compiler, flags });
                }
            }
        }
    }
    out
}

fn tables(cfg: &Cfg) -> Vec<&code::JumpTable> {
    let of = |b: &code::Block| match b.term {
        Term::Switch { table } => Some(&cfg.tables[table.index()]),
        _ => None,
    };
    cfg.blocks.iter().filter_map(of).collect()
}

/// Returns the distinct places in the function to which a table's entries lead.
fn places(t: &code::JumpTable) -> usize {
    t.targets.iter().collect::<std::collections::HashSet<_>>().len()
}

#[test]
fn corpus() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("a.c");
    std::fs::write(&source, SOURCE.replace("''", "\"\"")).unwrap();
    let (mut report, mut wrong) = (Vec::new(), Vec::new());
    let mut check = |right: bool, what: String| {
        if !right {
            wrong.push(what);
        }
    };
    for v in variants() {
        let program = dir.path().join("a");
        let args = v.flags.iter().map(OsStr::new).chain([source.as_os_str()]);
        if !testkit::build(v.compiler, args, &program) {
            continue;
        }
        let p = Program::load(Path::new(&program));
        let optimized = v.flags[0] != "-O0";
        let what = format!("{} {}", v.compiler, v.flags.join(" "));
        for &(name, wanted) in EXPECTED {
            let cfg = p.analyse(p.function(name)).unwrap_or_else(|e| panic!("{what} {name}: {e:?}"));
            let found = tables(&cfg);
            let indirect = cfg.blocks.iter().filter(|b| b.term == Term::Indirect).count();
            let sizes: Vec<usize> = found.iter().map(|t| t.targets.len()).collect();
            let proven = found.iter().filter(|t| t.cloneable.is_some()).count();
            report.push(format!("{what} {name}: {sizes:?} {proven} proven, {indirect} unknown"));
            if optimized {
                check(indirect == 0, format!("{what} {name}: {indirect} unknown"));
                // Not if the bound is of memory that is read again and another table follows at once. Also,
                // clang keeps a masked table's destination in a register that could pass an argument.
                let hard = ["field", "looped", "masked"].contains(&name);
                check(proven == found.len() || hard, format!("{what} {name}: {sizes:?}, {proven} proven"));
            }
            for t in &found {
                // All entries lead inside. There are as many distinct entries as cases (and the default, and
                // merged arms).
                let inside = t.targets.iter().all(|d| matches!(d, Dest::Block(_)));
                check(inside && places(t) > 3, format!("{what} {name}: {:?}", t.targets));
            }
            if optimized && !found.is_empty() && !wanted.is_empty() && proven == found.len() {
                // gcc -Os leaves the first case to the default arm's code where it can.
                let less = |n: usize, m: usize| n == m || v.flags[0] == "-Os" && n + 1 == m;
                let mut sorted = (sizes.clone(), wanted.to_vec());
                sorted.0.sort_unstable();
                sorted.1.sort_unstable();
                let same =
                    sizes.len() == wanted.len() && sorted.0.iter().zip(&sorted.1).all(|(&n, &m)| less(n, m));
                check(same, format!("{what} {name}: {sizes:?}"));
            }
        }
        // Not to be trusted: no bound, or a table that is not certain.
        for name in ["unreachable", "computed"] {
            let cfg = p.analyse(p.function(name)).unwrap();
            for t in tables(&cfg) {
                check(t.cloneable.is_none(), format!("{what} {name}: {t:?}"));
            }
        }
        let got =
            tables(&p.analyse(p.function("unreachable")).unwrap()).iter().map(|t| t.targets.len()).max();
        check(got.is_none_or(|n| n >= 10), format!("{what} unreachable: {got:?}"));
    }
    assert!(report.len() > 100, "no compilers");
    println!("{}", report.join("\n"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
