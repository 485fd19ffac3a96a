//! Unwinders that find frame tables in other ways than libgcc does: exceptions and stack walks cross clones
//! all the same.
//!
//! LLVM's and the nongnu libunwind iterate over modules. So the words by which they call `dl_iterate_phdr`
//! are redirected, permanently, to a routine that also shows the code caches. Other modules' words are not
//! changed, nor any code of the C library. The guests report the modules that dl_iterate_phdr shows them; the
//! code is read from memory.

use crate::support::{
    Guest, changed_text, have, run, scratch, skip, stray_code, stress, wait_until, whet, whet_command,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Counters of the guests.
const THREADS: u64 = 4;

/// Runs a compiler. If something is missing on this machine, says so and returns `None`, and nothing is
/// tested.
fn compile(compiler: &str, source: &str, arguments: &[&str], needed: &[&str]) -> Option<PathBuf> {
    if !have(compiler) {
        skip(&format!("{source}: no {compiler}"));
        return None;
    }
    if let Some(missing) = needed.iter().find(|path| !Path::new(path).exists()) {
        skip(&format!("{source}: no {missing} (tools/setup.sh installs it)"));
        return None;
    }
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock();
    let program = scratch("unwinder");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/unwinders");
    let mut command = Command::new(compiler);
    command.arg(folder.join(source)).arg("-o").arg(&program).args(arguments);
    run(command).exits(0);
    Some(program)
}

const LLVM: [&str; 3] = [
    "/usr/include/c++/v1/stdexcept",
    "/usr/lib/x86_64-linux-gnu/libunwind.so.1",
    "/usr/lib/llvm-14/lib/libc++abi.a",
];

/// Builds with libc++ and LLVM's libunwind as shared libraries. `-unwindlib=libunwind` is not used, because
/// it requires compiler-rt as well.
fn with_llvm(source: &str, more: &[&str]) -> Option<PathBuf> {
    let libraries = ["-lc++", "-lc++abi", "-lunwind", "-lm", "-lgcc", "-lc"];
    let how = ["-O2", "-Wall", "-pthread", "-stdlib=libc++", "-nodefaultlibs"];
    compile("clang++", source, &[&how[..], more, &libraries].concat(), &LLVM)
}

/// Builds with everything inside the program, without symbols. The program lists modules by its own words,
/// which are those of its unwinder.
fn with_llvm_inside() -> Option<PathBuf> {
    let libraries = ["-l:libc++.a", "-l:libc++abi.a", "-l:libunwind.a", "-lm", "-lgcc", "-lc"];
    let how = ["-O2", "-Wall", "-pthread", "-s", "-DENUMERATES", "-stdlib=libc++", "-nodefaultlibs"];
    compile("clang++", "throws.cc", &[&how[..], &libraries].concat(), &LLVM)
}

fn pid_arguments<'a>(command: &'a str, guest: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&[command, guest, "--format", "json"], more].concat()
}

/// Runs a command on a guest, which must succeed.
#[track_caller]
fn act(command: &str, guest: &Guest, more: &[&str]) -> serde_json::Value {
    let pid = guest.arg();
    whet(&pid_arguments(command, &pid, more)).exits(0).json()
}

/// Counts the changed mappings of the C library.
fn changed_libc(guest: &Guest) -> usize {
    changed_text(guest.pid()).iter().filter(|line| line.contains("libc.so.6")).count()
}

/// Clones functions in random order: all of them, or in the short form the program's own and some of the
/// libraries'.
fn shuffle(guest: &Guest, seed: &str) -> serde_json::Value {
    let how = ["--shuffle", seed, "--max-functions", "1500"];
    act("optimize", guest, if stress() { &how[..2] } else { &how })
}

/// What a guest's whole run has to show.
struct Life {
    /// How many counters the guest has.
    counters: u64,
    /// True if it has a thread that descends on request.
    stays: bool,
    /// How many places by which unwinders call must be redirected to the anchor.
    words: u64,
}

/// Runs a guest untouched, then through everything that whet does. Both runs must give the same output.
fn through_all(program: &Path, seen: &Path, life: &Life) {
    let seen_arg = seen.to_str().unwrap();
    let untouched = Guest::working(program, &[seen_arg], life.counters);
    untouched.go();
    let untouched = untouched.finish();
    assert_eq!((untouched.0, untouched.1), (Some(0), None), "{}", untouched.2);

    let guest = Guest::working(program, &[seen_arg], life.counters);
    let report = shuffle(&guest, "1");
    assert!(report["functions"]["cloned"].as_u64().unwrap() > 20, "{report}");
    guest.progresses(life.counters);
    if life.stays {
        guest.go();
        guest.second_thread();
    }
    for _ in 0..3 {
        act("undo", &guest, &[]);
        guest.progresses(life.counters);
        act("redo", &guest, &[]);
        guest.progresses(life.counters);
    }
    if life.words > 0 || stress() {
        // A later generation finds the unwinders' redirect in place and still in force.
        shuffle(&guest, "2");
        guest.progresses(life.counters);
    }
    act("undo", &guest, &[]);
    guest.progresses(life.counters);
    let verified = act("verify", &guest, &[]);
    assert_eq!(verified["identical"], true, "{verified}");
    assert_eq!(verified["live_redirects"], 0, "{verified}");
    assert_eq!(verified["kept_redirects"], life.words, "{verified}");
    assert_eq!(changed_libc(&guest), 0, "no code of the C library is changed");
    // Clones are on the stack of the thread that throws last.
    if !life.stays {
        guest.go();
    }
    assert_eq!(guest.finish(), untouched);
}

/// Tests a guest of `throws.cc`, which writes what it saw to a file. It must have seen at least `shown`
/// modules of whet's, and none unless the program's own calls are redirected, as those of an unwinder in it.
/// These modules are the anchor and, for two generations, the caches of the program and, if there are any, of
/// the libraries.
fn throws(program: &Path, words: u64, shown: u64) {
    let seen = scratch("seen");
    through_all(program, &seen, &Life { counters: THREADS, stays: true, words });
    let said = std::fs::read_to_string(&seen).unwrap();
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(words[..4], ["0", "42", "1", "1"], "{said}");
    let ours: u64 = words[4].parse().unwrap();
    assert!(ours >= shown, "{said}");
    assert_eq!(ours == 0, shown == 0, "{said}");
}

#[test]
fn llvm_libunwind() {
    if let Some(program) = with_llvm("throws.cc", &[]) {
        throws(&program, 1, 0);
    }
}

#[test]
fn llvm_libunwind_inside_a_stripped_program() {
    if let Some(program) = with_llvm_inside() {
        throws(&program, 1, 5);
    }
}

/// Each generation is listed in a page of its own, behind the pages of all earlier ones. Unwinders find the
/// newest clones, and old clones that are on stacks, through the whole chain.
#[test]
fn a_list_of_many_pages() {
    let libgcc = compile("g++", "throws.cc", &["-O2", "-Wall", "-pthread"], &[]);
    for (program, hooked) in [(libgcc, false), (with_llvm("throws.cc", &[]), true)] {
        let Some(program) = program else { continue };
        let guest = Guest::working(&program, &[scratch("seen").to_str().unwrap()], THREADS);
        let pid = guest.arg();
        for seed in ["1", "2", "3", "4", "5", "6"] {
            let how = ["--shuffle", seed, "--max-functions", "300"];
            let mut command = whet_command(&pid_arguments("optimize", &pid, &how));
            run({
                command.env("WHET_PAGE_ROOM", "6");
                command
            })
            .exits(0);
            guest.progresses(THREADS);
            if seed == "3" {
                guest.go();
                guest.second_thread();
            }
        }
        act("undo", &guest, &[]);
        guest.progresses(THREADS);
        let verified = act("verify", &guest, &[]);
        assert_eq!((&verified["identical"], &verified["live_redirects"]), (&true.into(), &0.into()));
        assert_eq!(verified["kept_redirects"], u64::from(hooked), "{verified}");
        assert_eq!(guest.finish().0, Some(0));
    }
}

/// A redirected function is never rebuilt like another function, however often it is called: its clone would
/// not show clones.
#[test]
fn a_redirected_walk_is_not_rebuilt() {
    let Some(program) = with_llvm("throws.cc", &["-DLISTS"]) else { return };
    let guest = Guest::working(&program, &[scratch("seen").to_str().unwrap()], THREADS);
    for generation in 1..=2 {
        let how = ["--shuffle", "1", "--count", "0.3", "--only", "list_modules", "attempt", "descend"];
        let report = act("optimize", &guest, &how);
        assert!(report["counting"]["functions"].as_u64().unwrap() > 3, "its callees came in: {report}");
        assert_eq!(report["refusals"]["foreign_change"], serde_json::Value::Null, "{report}");
        let explained = act("explain", &guest, &[]);
        let names = || explained["functions"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap());
        assert!(
            names().any(|n| n == "list_modules") && names().all(|n| n != "dl_iterate_phdr"),
            "{generation}"
        );
        guest.progresses(THREADS);
    }
    act("undo", &guest, &[]);
    guest.go();
    assert_eq!(guest.finish().0, Some(0));
}

/// If the program replaces `dl_iterate_phdr`, nothing can be redirected, so nothing is touched.
#[test]
fn a_program_that_replaces_dl_iterate_phdr_is_refused() {
    let Some(program) = with_llvm("throws.cc", &["-DANSWERS"]) else { return };
    let guest = Guest::working(&program, &[scratch("seen").to_str().unwrap()], THREADS);
    let pid = guest.arg();
    let refused = whet(&pid_arguments("optimize", &pid, &["--shuffle", "1"])).exits(5).json();
    assert_eq!(refused["error"]["code"], "no_unwind_lookup", "{refused}");
    assert_eq!(changed_text(guest.pid()), Vec::<String>::new());
    assert_eq!(stray_code(guest.pid()), Vec::<String>::new());
    guest.go();
    assert_eq!(guest.finish().0, Some(0));
}

/// libgcc needs only the lookup, also if the program itself iterates over modules.
#[test]
fn libgcc() {
    let how = ["-O2", "-Wall", "-pthread", "-DENUMERATES"];
    throws(&compile("g++", "throws.cc", &how, &[]).unwrap(), 0, 0);
}

/// In a static program, the displacements of its unwinder's calls are redirected.
#[test]
fn static_libgcc() {
    for how in ["-static", "-static-pie"] {
        let how = ["-O2", "-Wall", "-pthread", "-DENUMERATES", how];
        let program = compile("g++", "throws.cc", &how, &[]).unwrap();
        throws(&program, 1, 0);
        // With counting: functions that are called often join, except those by which the unwinder calls.
        let guest = Guest::working(&program, &[scratch("seen").to_str().unwrap()], THREADS);
        let report = act("optimize", &guest, &["--shuffle", "1", "--max-functions", "400", "--count", "0.3"]);
        assert!(report["counting"]["functions"].as_u64().unwrap() > 3, "{report}");
        guest.progresses(THREADS);
        act("undo", &guest, &[]);
        guest.go();
        assert_eq!(guest.finish().0, Some(0));
    }
}

/// LLVM's unwinder iterates over modules there too, so the program sees modules of whet's.
#[test]
fn static_llvm_libunwind() {
    let how = ["-O2", "-Wall", "-pthread", "-static", "-DENUMERATES", "-stdlib=libc++", "-nodefaultlibs"];
    let own = ["-Wl,--start-group", "-l:libc++.a", "-l:libc++abi.a", "-l:libunwind.a"];
    // The C library needs the parts of libgcc other than the unwinder.
    let others = ["-lm", "-lgcc", "-lgcc_eh", "-lc", "-Wl,--end-group"];
    let Some(program) = compile("clang++", "throws.cc", &[&how[..], &own, &others].concat(), &LLVM) else {
        return;
    };
    // One call by the unwinder, three by the program.
    throws(&program, 4, 3);
}

/// Without symbols, the calls of a static program's unwinder are not known.
#[test]
fn static_and_stripped() {
    let program = compile("g++", "throws.cc", &["-O2", "-pthread", "-static", "-s", "-DENUMERATES"], &[]);
    let program = program.unwrap();
    let guest = Guest::working(&program, &[scratch("seen").to_str().unwrap()], THREADS);
    let pid = guest.arg();
    let refused = whet(&pid_arguments("optimize", &pid, &["--shuffle", "1"])).exits(5).json();
    assert_eq!(refused["error"]["code"], "no_unwind_lookup", "{refused}");
    guest.go();
    assert_eq!(guest.finish().0, Some(0));
}

const NONGNU: &str = "/usr/lib/x86_64-linux-gnu/libunwind.so.8";

#[test]
fn nongnu_libunwind() {
    let how = ["-O2", "-Wall", "-pthread", "-l:libunwind.so.8"];
    let Some(program) = compile("gcc", "walks.c", &how, &[NONGNU]) else { return };
    through_all(&program, &scratch("seen"), &Life { counters: THREADS, stays: true, words: 1 });
}

/// libunwind as Debian builds it since 1.8, without the names of C++'s unwinders. A program that walks by it
/// still iterates over modules.
#[test]
fn nongnu_libunwind_without_exceptions() {
    let folder = scratch("libraries");
    let rpath = format!("-Wl,-rpath,{}", folder.display());
    let how = ["-O2", "-Wall", "-pthread", "-l:libunwind.so.8", &rpath];
    let Some(program) = compile("gcc", "walks.c", &how, &[NONGNU]) else { return };
    let mut library = std::fs::read(NONGNU).unwrap();
    let name = b"_Unwind_";
    let places: Vec<usize> = (0..library.len()).filter(|&i| library[i..].starts_with(name)).collect();
    for at in places {
        library[at + 1] = b'X';
    }
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("libunwind.so.8"), library).unwrap();

    let guest = Guest::working(&program, &[], THREADS);
    shuffle(&guest, "1");
    guest.progresses(THREADS);
    guest.go();
    guest.second_thread();
    act("undo", &guest, &[]);
    guest.progresses(THREADS);
    assert_eq!(act("verify", &guest, &[])["kept_redirects"], 1);
    assert_eq!(guest.finish(), (Some(0), None, "walked\n".to_owned()));
    std::fs::remove_dir_all(folder).unwrap();
}

// Counters of `waits.cc`.
const WALKS: u64 = 1;
const THROUGH: u64 = 2;
const LOST: u64 = 3;

/// Walks of a stack whose top is a routine that finishes a call. A stop has sent the thread there.
#[test]
fn a_walk_through_a_wait_that_a_stop_interrupted() {
    let Some(program) = with_llvm("waits.cc", &[]) else { return };
    let guest = Guest::working(&program, &[], 2);
    assert_eq!((guest.counter(THROUGH), guest.counter(LOST)), (0, 0), "before any stop");
    act("optimize", &guest, &["--seconds", "0.3"]);
    let mut toggles = 0;
    while guest.counter(THROUGH) < 10 {
        assert!(toggles < 1000, "{} walks, {} through", guest.counter(WALKS), guest.counter(THROUGH));
        act(if toggles % 2 == 0 { "undo" } else { "redo" }, &guest, &[]);
        guest.progresses(2);
        assert_eq!(guest.counter(LOST), 0, "of {} walks", guest.counter(WALKS));
        toggles += 1;
    }
    assert_eq!(guest.finish().1, None);
}

/// Walks from the first instruction of such a routine, to which the kernel returns to restart a call. LLVM's
/// libunwind looks for the byte before it.
#[test]
fn a_walk_from_a_transfer_that_restarts() {
    let Some(program) = with_llvm("waits.cc", &["-DTRANSFERS"]) else { return };
    let version = Command::new("getconf").arg("GNU_LIBC_VERSION").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    let minor = version.trim().strip_prefix("glibc 2.").and_then(|minor| minor.parse::<u32>().ok());
    if minor.is_none_or(|minor| minor >= 41) {
        return skip(&format!("whet lets no signal restart a transfer on this C library: {version}"));
    }
    let guest = Guest::working(&program, &[], 1);
    act("optimize", &guest, &["--seconds", "0.3"]);
    guest.go();
    wait_until("walks", || guest.counter(WALKS) >= 10);
    let walks = guest.counter(WALKS);
    assert_eq!(guest.counter(LOST), 0, "of {walks} walks");
    assert!(guest.counter(THROUGH) >= walks, "{} of {walks} walks", guest.counter(THROUGH));
    assert_eq!(guest.finish().1, None);
}

/// An unwinder that is loaded after a first generation, which has rebuilt `dl_iterate_phdr` like any other
/// function. The next generation redirects it, and frames of both generations unwind.
#[test]
fn an_unwinder_loaded_later() {
    let how = ["-O2", "-Wall", "-pthread", "-DLATER"];
    let Some(program) = compile("gcc", "walks.c", &how, &[NONGNU]) else { return };
    let guest = Guest::working(&program, &[], THREADS);
    shuffle(&guest, "1");
    guest.progresses(THREADS);
    guest.go();
    guest.second_thread();
    let verified = act("verify", &guest, &[]);
    assert_eq!(
        (&verified["identical"], &verified["kept_redirects"]),
        (&true.into(), &0.into()),
        "{verified}"
    );
    shuffle(&guest, "2");
    guest.progresses(THREADS);
    let verified = act("verify", &guest, &[]);
    assert_eq!(
        (&verified["identical"], &verified["kept_redirects"]),
        (&true.into(), &1.into()),
        "{verified}"
    );
    act("undo", &guest, &[]);
    let verified = act("verify", &guest, &[]);
    assert_eq!(
        (&verified["identical"], &verified["live_redirects"]),
        (&true.into(), &0.into()),
        "{verified}"
    );
    assert_eq!(guest.finish(), (Some(0), None, "walked\n".to_owned()));
}

/// C programs on musl have no unwinder, stripped or not, so nothing need be redirected in a static one. In a
/// dynamic one, the C library's symbol is redirected for unwinders that are loaded later. The program's own
/// word is redirected as well, because a program that lists modules may have an unwinder without names.
#[test]
fn musl_without_an_unwinder() {
    for (how, shown, kept) in [
        (&[][..], "shown", 2),
        (&["-static"], "nothing", 0),
        (&["-static", "-s"], "nothing", 0),
        (&["-static", "-DHANDLES"], "nothing", 0),
    ] {
        let Some(program) = compile("musl-gcc", "musl.c", &[&["-O2", "-Wall"], how].concat(), &[]) else {
            return;
        };
        let untouched = Guest::working(&program, &[], 1).finish();
        assert!(untouched.2.ends_with(" nothing\n"), "{untouched:?}");
        let guest = Guest::working(&program, &[], 1);
        let report = shuffle(&guest, "1");
        assert!(report["functions"]["cloned"].as_u64().unwrap() >= 3, "{how:?}: {report}");
        guest.progresses(1);
        for command in ["undo", "redo", "undo"] {
            act(command, &guest, &[]);
            guest.progresses(1);
        }
        shuffle(&guest, "2");
        guest.progresses(1);
        act("undo", &guest, &[]);
        let verified = act("verify", &guest, &[]);
        assert_eq!(
            (&verified["identical"], &verified["live_redirects"], &verified["kept_redirects"]),
            (&true.into(), &0.into(), &kept.into()),
            "{how:?}: {verified}"
        );
        assert_eq!(changed_text(guest.pid()).len(), 0, "{how:?}");
        let said = untouched.2.replace("nothing", shown);
        assert_eq!(guest.finish(), (Some(0), None, said), "{how:?}");
    }
}

#[test]
fn rust() {
    let Some(program) = compile("rustc", "panics.rs", &["-O", "--edition", "2021"], &[]) else { return };
    through_all(&program, &scratch("seen"), &Life { counters: 1, stays: false, words: 0 });
}

/// whet is killed while it installs for the first time, in the long form at every point. The program runs on,
/// and the next whet can do all of it.
#[test]
fn dying_during_the_first_installation() {
    let Some(program) = with_llvm("throws.cc", &[]) else { return };
    let seen = scratch("seen");
    let start = || Guest::working(&program, &[seen.to_str().unwrap()], THREADS);
    let only = [
        "--shuffle",
        "3",
        "--only",
        "descend",
        "attempt",
        "hot",
        "__cxa_throw",
        "__cxa_begin_catch",
        "malloc",
    ];
    let mut deaths = 0;
    for point in (1..).step_by(if stress() { 1 } else { 7 }) {
        let guest = start();
        let pid = guest.arg();
        let mut command = whet_command(&pid_arguments("optimize", &pid, &only));
        command.env("WHET_FAULT", point.to_string());
        let answer = run(command);
        guest.progresses(THREADS);
        if answer.signal.is_none() {
            answer.exits(0);
            break;
        }
        deaths += 1;
        act("optimize", &guest, &only);
        guest.go();
        guest.second_thread();
        act("undo", &guest, &[]);
        assert_eq!(act("verify", &guest, &[])["identical"], true);
        let (code, signal, said) = guest.finish();
        assert_eq!((code, signal), (Some(0), None), "point {point}: {said}");
    }
    println!("died at {deaths} points");
    assert!(deaths > 2);
}
