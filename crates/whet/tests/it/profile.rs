//! Profiles that outlive their process: warm starts, profiles that do not fit, and their use by other tools.

use crate::support::{Answer, Guest, build, build_with, have, run, scratch, skip, whet};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Functions of the guest that are entered again and again.
const HOT: [&str; 2] = ["mix_some", "sum_up"];

fn words<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [first, more, &["--format", "json"]].concat()
}

/// Runs the guest and counts in it. Returns its profile as a file, and the guest's output.
fn profile_of(program: &Path) -> (PathBuf, String) {
    let guest = Guest::working(program, &["threads"], 2);
    let pid = guest.arg();
    let how = [&["--seconds", "1", "--count", "0.3", "--only"][..], &HOT].concat();
    let report = whet(&words(&["optimize", &pid], &how)).exits(0).json();
    assert_eq!((&report["functions"]["cloned"], report.get("profile")), (&2.into(), None), "{report}");
    let file = scratch("profile");
    let written = export(&pid, &file, &[]);
    assert_eq!((&written["functions"], &written["left_out"]), (&2.into(), &0.into()), "{written}");
    (file, output_of(guest))
}

fn export(pid: &str, file: &Path, how: &[&str]) -> Value {
    let to = ["profile", "export", pid, "-o", file.to_str().unwrap()];
    whet(&words(&to, how)).exits(0).json()
}

fn output_of(guest: Guest) -> String {
    let (code, signal, said) = guest.finish();
    assert_eq!((code, signal), (Some(0), None), "{said}");
    said
}

fn optimize(guest: &Guest, profile: &Path) -> Answer {
    whet(&words(&["optimize", &guest.arg(), "--profile", profile.to_str().unwrap()], &[]))
}

fn error_of(answer: &Answer) -> (String, String) {
    let error = &answer.json()["error"];
    (error["code"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
}

#[test]
fn a_restarted_program_starts_warm() {
    starts_warm(&build("cases.c"));
}

/// Old builds of MariaDB and MySQL are such programs.
#[test]
fn a_program_without_a_build_id_starts_warm() {
    starts_warm(&build_with("cases.c", &["-Wl,--build-id=none"]).unwrap());
}

fn starts_warm(program: &Path) {
    let (file, plain) = profile_of(program);
    let shown = whet(&words(&["profile", "show", file.to_str().unwrap()], &[])).exits(0).json();
    let module = &shown["modules"][0];
    assert_eq!((&module["functions"], &module["counted"], &shown["runs"]), (&2.into(), &2.into(), &1.into()));
    let name = program.file_name().unwrap().to_str().unwrap();
    assert_eq!(module["name"], name, "{shown}");
    let entered = |name: &str| {
        let all = module["top"].as_array().unwrap();
        all.iter().find(|f| f["name"] == name).unwrap()["entered"].as_f64().unwrap()
    };
    // The guest's loop is known: 200 calls a round, except for calls under way when counting began or ended.
    let ratio: f64 = entered("mix_some") / entered("sum_up") / 200.0;
    assert!((0.9..1.1).contains(&ratio), "{shown}");

    let guest = Guest::working(program, &["threads"], 2);
    let report = optimize(&guest, &file).exits(0).json();
    let used = &report["profile"];
    assert_eq!((&used["functions"], &used["stale"], &used["foreign"]), (&2.into(), &0.into(), &0.into()));
    assert_eq!((&report["source"], report.get("counting")), (&"profile".into(), None), "{report}");
    assert_eq!(report["functions"]["cloned"], 2, "{report}");
    guest.progresses(2);
    // The profile in use is the profile that was read.
    let again = scratch("profile");
    export(&guest.arg(), &again, &[]);
    assert_eq!(std::fs::read_to_string(&again).unwrap(), std::fs::read_to_string(&file).unwrap());
    whet(&["undo", &guest.arg()]).exits(0);
    let verified = whet(&words(&["verify", &guest.arg()], &[])).exits(0).json();
    assert_eq!(verified["identical"], true, "{verified}");
    assert_eq!(output_of(guest), plain);
}

/// Returns a target's clones in the order of their addresses: entries first, then rarely executed parts, each
/// with its size.
fn clones(guest: &Guest) -> Vec<(String, u64)> {
    let explained = whet(&words(&["explain", &guest.arg()], &[])).exits(0).json();
    let functions = explained["functions"].as_array().unwrap();
    let fragments = |at: &str, bytes: &str| {
        let of = |f: &Value| {
            let from = f[at].as_str()?.trim_start_matches("0x");
            Some((u64::from_str_radix(from, 16).unwrap(), f["name"].to_string(), f[bytes].as_u64().unwrap()))
        };
        let mut all: Vec<_> = functions.iter().filter_map(of).collect();
        all.sort();
        all.into_iter().map(|(_, name, bytes)| (name, bytes)).collect::<Vec<_>>()
    };
    [fragments("clone", "clone_bytes"), fragments("warm", "warm_bytes")].concat()
}

/// The same functions in the same order, with the same calls inlined or guarded.
#[test]
fn a_warm_start_makes_the_clones_that_the_profile_is_of() {
    let program = build_with("virtual.cc", &["-Wl,--emit-relocs"]).unwrap();
    let guest = Guest::working(&program, &[], 2);
    whet(&words(&["optimize", &guest.arg(), "--seconds", "1", "--count", "0.5"], &[])).exits(0);
    let (file, made) = (scratch("profile"), clones(&guest));
    export(&guest.arg(), &file, &[]);
    let plain = output_of(guest);
    assert!(made.iter().any(|(name, _)| name.contains("measure")), "{made:?}");
    // The profile has the loop that no thread enters anew, and the callees of its calls by table.
    let text = std::fs::read_to_string(&file).unwrap();
    let has = |word: &str| text.lines().any(|l| l.split(' ').any(|w| w == word));
    assert!(["stayed", "hits", "leads", "table"].into_iter().all(has), "{text}");

    let guest = Guest::working(&program, &[], 2);
    optimize(&guest, &file).exits(0);
    assert_eq!(clones(&guest), made);
    guest.progresses(2);
    let again = scratch("profile");
    export(&guest.arg(), &again, &[]);
    assert_eq!(std::fs::read_to_string(&again).unwrap(), text);
    assert_eq!(output_of(guest), plain);

    let shown = whet(&["profile", "show", file.to_str().unwrap()]).exits(0).stdout;
    assert!(shown.contains(" looks: to _ZNK"), "{shown}");
    if have("llvm-bolt-16") {
        let (fdata, rebuilt) = (scratch("fdata"), scratch("promoted"));
        let import =
            ["profile", "import", file.to_str().unwrap(), "--as", "fdata", "-o", fdata.to_str().unwrap()];
        whet(&import).exits(0);
        let mut bolt = Command::new("llvm-bolt-16");
        bolt.arg(&program).arg("-o").arg(&rebuilt).arg("--data").arg(&fdata);
        bolt.arg("--indirect-call-promotion=calls");
        let said = run(bolt).exits(0);
        assert!(said.stdout.contains("BOLT-INFO: ICP total indirect callsites with profile = 2"), "{said:?}");
        assert_eq!(output_of(Guest::working(&rebuilt, &[], 2)), plain);
    }
}

/// Returns a build of a guest under the name that all its builds have.
pub(crate) fn build_named(source: &str, flags: &[&str]) -> PathBuf {
    let folder = scratch("build");
    std::fs::create_dir(&folder).unwrap();
    let program = folder.join("guest");
    std::fs::rename(build_with(source, flags).unwrap(), &program).unwrap();
    program
}

/// In the second build all functions lie elsewhere.
#[test]
fn another_build_starts_warm() {
    let (file, plain) = profile_of(&build_named("cases.c", &["-DBUILD=1"]));
    let program = build_named("cases.c", &["-DBUILD=2", "-falign-functions=256"]);
    let guest = Guest::working(&program, &["threads"], 2);
    let report = optimize(&guest, &file).exits(0).json();
    let used = &report["profile"];
    let figures = ["functions", "found_again", "foreign", "stale"].map(|name| used[name].as_u64().unwrap());
    assert_eq!(figures, [2, 2, 0, 0], "{report}");
    guest.progresses(2);
    // What the target keeps is of its own build.
    let again = scratch("profile");
    export(&guest.arg(), &again, &[]);
    let [old, new] = [&file, &again].map(|f| std::fs::read_to_string(f).unwrap());
    let module = |text: &str| text.lines().find(|l| l.starts_with("module ")).unwrap().to_owned();
    assert_ne!(module(&old), module(&new));
    let shapes = |text: &str| {
        let mut all: Vec<_> = text.lines().filter(|l| l.starts_with("shape ")).map(str::to_owned).collect();
        all.sort();
        all
    };
    assert_eq!((shapes(&old), shapes(&old).len()), (shapes(&new), 2));
    assert_eq!(output_of(guest), plain);

    // Without the shapes the second build is another program.
    let without: String =
        old.lines().filter(|l| !l.starts_with("shape ")).map(|l| format!("{l}\n")).collect();
    std::fs::write(&file, without).unwrap();
    let guest = Guest::working(&program, &["threads"], 1);
    assert_eq!(error_of(&optimize(&guest, &file).exits(7)).0, "profile_unfit");
}

#[test]
fn profiles_that_do_not_fit_are_not_used() {
    let (file, _) = profile_of(&build("cases.c"));
    let text = std::fs::read_to_string(&file).unwrap();

    let other = Guest::working(&build_with("cases.c", &["-O1"]).unwrap(), &[], 1);
    let (code, message) = error_of(&optimize(&other, &file).exits(7));
    assert_eq!(code, "profile_unfit");
    assert!(message.contains("it is of other builds: the program cases.c-"), "{message}");
    other.progresses(1);

    // A function whose blocks differ is left out; the others are used.
    let guest = Guest::working(&build("cases.c"), &[], 1);
    let stale = scratch("stale");
    let hash_of = |line: &str| line.split(' ').nth(2).unwrap().to_owned();
    let hashes: Vec<String> = text.lines().filter(|l| l.starts_with("function ")).map(hash_of).collect();
    std::fs::write(&stale, text.replacen(&hashes[0], "0123456789abcdef", 1)).unwrap();
    let report = optimize(&guest, &stale).exits(0).json();
    assert_eq!((&report["profile"]["functions"], &report["profile"]["stale"]), (&1.into(), &1.into()));
    guest.progresses(1);

    let all = hashes.iter().fold(text, |t, h| t.replacen(h, "0123456789abcdef", 1));
    std::fs::write(&stale, all).unwrap();
    let (code, message) = error_of(&optimize(&guest, &stale).exits(7));
    assert_eq!(code, "profile_unfit");
    assert!(message.contains("of its 2 functions 2 are not what they were"), "{message}");
    guest.progresses(1);
}

#[test]
fn what_is_no_profile_is_refused_by_line_and_column() {
    let (file, _) = profile_of(&build("cases.c"));
    let text = std::fs::read_to_string(&file).unwrap();
    let guest = Guest::working(&build("cases.c"), &[], 1);
    let broken = scratch("broken");
    let cases = [
        (text.replacen("entered ", "entered x", 1), "line 12, column "),
        (text.replace("end\n", ""), "the text is cut off"),
        (text.replacen("whet-profile 3", "whet-profile 9", 1), "line 1, column 14: version 9 is not known"),
        ("\u{7f}ELF".to_owned(), "line 1, column 1"),
    ];
    for (text, why) in cases {
        std::fs::write(&broken, text).unwrap();
        let (code, message) = error_of(&optimize(&guest, &broken).exits(2));
        assert_eq!(code, "no_profile_file");
        assert!(message.contains(why), "{message}");
    }
    std::fs::remove_file(&broken).unwrap();
    assert_eq!(error_of(&optimize(&guest, &broken).exits(3)).0, "file");
    // Clones in random order are made without a profile.
    let pid = guest.arg();
    whet(&words(&["optimize", &pid, "--shuffle", "1", "--only", "sum_up"], &[])).exits(0);
    assert_eq!(error_of(&whet(&words(&["profile", "export", &pid], &[])).exits(7)).0, "no_profile");
    guest.progresses(1);
}

#[test]
fn runs_add_up() {
    let program = build("cases.c");
    let files = [profile_of(&program).0, profile_of(&program).0];
    let names: Vec<&str> = files.iter().map(|f| f.to_str().unwrap()).collect();
    let entered = |text: &str| -> Vec<u64> {
        let lines = text.lines().filter(|l| l.starts_with("function "));
        lines.map(|l| l.split(' ').nth(5).unwrap().parse().unwrap()).collect()
    };
    let sum: Vec<u64> = {
        let [a, b] = [0, 1].map(|i: usize| entered(&std::fs::read_to_string(&files[i]).unwrap()));
        a.iter().zip(b).map(|(a, b)| a + b).collect()
    };
    let [one, other] = [[names[0], names[1]], [names[1], names[0]]]
        .map(|both| whet(&[&["profile", "import"][..], &both].concat()).exits(0).stdout);
    assert_eq!(one, other);
    assert_eq!(entered(&one), sum);
    assert!(one.contains("\nruns 2\n"), "{one}");
}

/// llvm-bolt accepts the branches, and the program that it makes from them does the same. All its code is in
/// new places if the file has relocations; otherwise the hot functions are where they were.
#[test]
fn llvm_bolt_rebuilds_by_it() {
    if !have("llvm-bolt-16") {
        skip("llvm_bolt_rebuilds_by_it: no llvm-bolt-16 (tools/setup.sh installs bolt-16)");
        return;
    }
    let said = rebuilt_by_bolt(&["-Wl,--emit-relocs"], &["--reorder-functions=hfsort"]);
    assert!(said.stdout.contains("BOLT-INFO: 2 out of "), "{}", said.stdout);
    let sound = "0 callsites with invalid profile, used perf data for 0 stale functions";
    assert!(said.stdout.contains(sound), "{}", said.stdout);
    for complaint in ["invalid branch", "profile branches match only", "possibly corrupted"] {
        assert!(!said.stdout.contains(complaint) && !said.stderr.contains(complaint), "{said:?}");
    }
    rebuilt_by_bolt(&[], &[]);
}

/// Returns the output of llvm-bolt for a guest linked with `link` and whet's profile of it. The program that
/// llvm-bolt makes behaves the same, also after whet has rebuilt it. It has its program headers at the file's
/// end, and frames of code that is gone.
fn rebuilt_by_bolt(link: &[&str], order: &[&str]) -> Answer {
    let program = build_with("cases.c", link).unwrap();
    let (file, plain) = profile_of(&program);
    let fdata = scratch("fdata");
    let import =
        ["profile", "import", file.to_str().unwrap(), "--as", "fdata", "-o", fdata.to_str().unwrap()];
    let written = whet(&words(&import, &[])).exits(0).json();
    assert_eq!((&written["functions"], &written["left_out"]), (&2.into(), &0.into()), "{written}");

    let rebuilt = scratch("bolted");
    let mut bolt = Command::new("llvm-bolt-16");
    bolt.arg(&program).arg("-o").arg(&rebuilt).arg("--data").arg(&fdata);
    bolt.args(["--reorder-blocks=ext-tsp", "--dyno-stats", "-v=2"]).args(order);
    let said = run(bolt).exits(0);
    let guest = Guest::working(&rebuilt, &["threads"], 2);
    let pid = guest.arg();
    let how = [&["--seconds", "1", "--count", "0.3", "--only"][..], &HOT].concat();
    let report = whet(&words(&["optimize", &pid], &how)).exits(0).json();
    assert_eq!(report["functions"]["cloned"], 2, "{report}");
    assert_eq!(output_of(guest), plain);
    said
}

/// A linker lays the functions out in the order of symbols that it is given.
#[test]
fn a_linker_lays_out_by_it() {
    let Some(lld) = ["ld.lld-14", "ld.lld"].into_iter().find(|l| have(l)) else {
        skip("a_linker_lays_out_by_it: no ld.lld (tools/setup.sh installs lld-14)");
        return;
    };
    let (file, plain) = profile_of(&build("cases.c"));
    let ordered = scratch("order");
    let import =
        ["profile", "import", file.to_str().unwrap(), "--as", "order", "-o", ordered.to_str().unwrap()];
    assert_eq!(whet(&words(&import, &[])).exits(0).json()["functions"], 2);
    let order: Vec<String> = std::fs::read_to_string(&ordered).unwrap().lines().map(str::to_owned).collect();
    // The linker has its plain name in a folder of its own, so that the compiler finds it.
    let folder = scratch("linker");
    std::fs::create_dir(&folder).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&path).map(|dir| dir.join(lld)).find(|p| p.is_file()).unwrap();
    std::os::unix::fs::symlink(found, folder.join("ld.lld")).unwrap();
    let linked = build_with(
        "cases.c",
        &[
            "-ffunction-sections",
            "-fuse-ld=lld",
            &format!("-B{}", folder.display()),
            &format!("-Wl,--symbol-ordering-file={}", ordered.display()),
        ],
    )
    .unwrap();
    let mut nm = Command::new("nm");
    nm.arg("-n").arg(&linked);
    let symbols = run(nm).exits(0).stdout;
    let names = symbols.lines().filter_map(|l| l.split(' ').nth(2));
    let laid: Vec<&str> = names.filter(|n| order.iter().any(|o| o == n)).collect();
    assert_eq!(laid, order);
    assert_eq!(output_of(Guest::working(&linked, &["threads"], 2)), plain);
}

/// `pprof` and flame graph tools read the profile; what they show is what was sampled.
#[test]
fn pprof_and_flame_graphs_are_given_the_samples() {
    let (file, _) = profile_of(&build("cases.c"));
    let shown = whet(&words(&["profile", "show", file.to_str().unwrap()], &[])).exits(0).json();
    let import = ["profile", "import", file.to_str().unwrap(), "--as"];
    // Each line is a stack, a blank and a number.
    let text = whet(&[&import[..], &["collapsed"]].concat()).exits(0).stdout;
    let lines: Vec<(&str, u64)> =
        text.lines().map(|l| l.rsplit_once(' ').unwrap()).map(|(s, n)| (s, n.parse().unwrap())).collect();
    assert_eq!(lines.iter().map(|l| l.1).sum::<u64>(), shown["samples"].as_u64().unwrap(), "{text}");
    for name in HOT {
        let all = shown["modules"][0]["top"].as_array().unwrap();
        let wanted = all.iter().find(|f| f["name"] == name).unwrap()["samples"].as_u64().unwrap();
        let inner = lines.iter().filter(|(stack, _)| stack.rsplit(';').next() == Some(name));
        assert_eq!(inner.map(|l| l.1).sum::<u64>(), wanted, "{text}");
    }
    // The form of pprof is binary.
    whet(&[&import[..], &["pprof"]].concat()).exits(2);
    let packed = scratch("pb.gz");
    let to = ["pprof", "-o", packed.to_str().unwrap()];
    let written = whet(&words(&import, &to)).exits(0).json();
    assert_eq!((&written["form"], &written["functions"]), (&"pprof".into(), &2.into()), "{written}");
    let mut gunzip = Command::new("python3");
    gunzip.args(["-c", "import gzip,sys; print(b'mix_some' in gzip.open(sys.argv[1]).read())"]).arg(&packed);
    assert_eq!(run(gunzip).exits(0).stdout.trim(), "True");
    std::fs::remove_file(&packed).unwrap();
    std::fs::remove_file(&file).unwrap();
}

/// Runs `go tool pprof` on a file. It gets no program and no network.
fn go_pprof(file: &Path, how: &[&str]) -> String {
    let mut go = Command::new("go");
    go.args(["tool", "pprof", "-symbolize=none", "-nodefraction=0"]).args(how).arg(file);
    go.env("GOTOOLCHAIN", "local").env("GOPROXY", "off");
    run(go).exits(0).stdout
}

/// Returns the value of each function that `go tool pprof -top` lists.
fn topped(file: &Path, values: &str) -> BTreeMap<String, u64> {
    let said = go_pprof(file, &["-top", &format!("-sample_index={values}")]);
    let (_, lines) = said.split_once("flat  flat%").unwrap_or_else(|| panic!("{said}"));
    let fields = lines.lines().skip(1).map(|l| l.split_whitespace().collect::<Vec<_>>());
    fields.map(|f| (f[5..].join(" "), f[0].parse().unwrap())).filter(|f| f.1 > 0).collect()
}

/// Returns the samples and the executions of each function, as whet's own form has them.
fn own_values(text: &str) -> [BTreeMap<String, u64>; 2] {
    let (mut samples, mut executions) = (BTreeMap::new(), BTreeMap::new());
    let mut name = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "function" {
            name = words[words.len() - 1].to_owned();
            samples.insert(name.clone(), words[7].parse().unwrap());
        } else if words[0].starts_with('+') {
            // START, LAST, the count, then the edges.
            *executions.entry(name.clone()).or_insert(0) += words[2].parse::<u64>().unwrap();
        }
    }
    [samples, executions]
}

/// The program that the form is made for shows the functions and the values that whet wrote.
#[test]
fn go_tool_pprof_reads_the_profile() {
    if !have("go") {
        skip("go_tool_pprof_reads_the_profile: no go (https://go.dev/doc/install)");
        return;
    }
    // Go compiles the tool at its first use. On a busy machine this takes longer than a command of a test may.
    Command::new("go").args(["tool", "pprof", "-h"]).output().unwrap();
    let guest = Guest::working(&build("cases.c"), &["threads"], 2);
    let pid = guest.arg();
    let how = [&["--seconds", "1", "--count", "0.3", "--only"][..], &HOT].concat();
    whet(&words(&["optimize", &pid], &how)).exits(0);
    let [file, packed] = ["profile", "pb.gz"].map(scratch);
    export(&pid, &file, &[]);
    export(&pid, &packed, &["--as", "pprof"]);
    output_of(guest);
    let text = std::fs::read_to_string(&file).unwrap();
    let [mut samples, executions] = own_values(&text);
    let shown = whet(&words(&["profile", "show", file.to_str().unwrap()], &[])).exits(0).json();
    // Samples outside these functions have a line of their own.
    let other = shown["samples"].as_u64().unwrap() - samples.values().sum::<u64>();
    samples.insert("[other code]".to_owned(), other);
    samples.retain(|_, n| *n > 0);
    assert_eq!((topped(&packed, "samples"), topped(&packed, "executions")), (samples, executions), "{text}");

    let raw = go_pprof(&packed, &["-raw"]);
    assert!(raw.contains("samples/count[dflt] calls/count executions/count"), "{raw}");
    let values = raw
        .lines()
        .filter_map(|l| l.split_once(": ")?.0.split_whitespace().map(|n| n.parse().ok()).collect());
    let columns = values.filter(|row: &Vec<u64>| row.len() == 3);
    let sums = columns.fold([0; 3], |sums, row| [0, 1, 2].map(|i: usize| sums[i] + row[i]));
    // Every entry of the inner function is a call by the outer one.
    let entered = text.lines().filter(|l| l.starts_with("call ")).map(|l| l.rsplit(' ').next().unwrap());
    let calls: u64 = entered.map(|n| n.parse::<u64>().unwrap()).sum();
    let own = [shown["samples"].as_u64().unwrap(), calls, topped(&packed, "executions").values().sum()];
    assert_eq!(sums, own, "{raw}{text}");
    for name in HOT {
        assert!(raw.lines().any(|l| l.contains(&format!(" M=1 {name} "))), "{raw}");
    }
    for file in [file, packed] {
        std::fs::remove_file(file).unwrap();
    }
}
