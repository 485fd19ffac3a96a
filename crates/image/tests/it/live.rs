//! Real processes: the test's own process and children.

use crate::common::{Disk, Guest, Laid, Live, compile, module, run};
use addr::{Addr, Avma, AvmaRange, ReadMemory, Svma};
use image::{Error, Image, ModuleKind, NoFiles, RelocKind, Runtime, runtime};
use object::{Object, ObjectSection, ObjectSymbol};
use std::process::Command;

const WAITS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <math.h>
static int twice_or_so(int x) __attribute__((noinline, noclone, used));
static int twice_or_so(int x) { return x * 2 + (getppid() == 1); }
int visible(int x) { return twice_or_so(x) + 1; }
int main(int argc, char **argv) {
    if (argc > 5) return visible(argc) + abs(atoi(argv[1]));
    puts("ready");
    fflush(stdout);
    while (getchar() >= 0) {}
    return 0;
}
"#;

fn own() -> (Live, Image) {
    let live = Live::open(std::process::id());
    let image = live.image();
    (live, image)
}

#[test]
fn own_process_names_what_it_binds() {
    let (_, image) = own();
    // Position-independent code reads a function's address from its slot. The loader has put the same address
    // there that dlsym returns.
    let bound = [
        ("getpid", libc::getpid as *const () as usize),
        ("open", libc::open as *const () as usize),
        ("malloc", libc::malloc as *const () as usize),
        ("qsort", libc::qsort as *const () as usize),
        ("pthread_create", libc::pthread_create as *const () as usize),
        ("dlsym", libc::dlsym as *const () as usize),
    ];
    let c = module(&image, "libc.so.6");
    for (name, at) in bound {
        let at = Avma(at as u64);
        assert_eq!(c.symbols.exported(name), Some(at), "{name}");
        assert_eq!(image.module_of(at).unwrap().path, c.path);
        let got = c.symbols.function_at(at.add(1)).unwrap();
        assert_eq!(got.at, at);
        assert!(c.symbols.named(name).any(|s| s.at == at && s.exported));
    }
    let here = own_process_names_what_it_binds as *const () as usize as u64;
    let main = image.main();
    assert!(main.extent.contains(Avma(here)) && main.pie && !main.static_exe && main.nodelete);
    assert!(main.symbols.name_at(Avma(here)).unwrap().contains("own_process_names"));
    assert!(main.frames.find(Avma(here)).is_some());
    assert!(c.nodelete && c.kind == ModuleKind::Library);
    assert!(image.modules().iter().any(|m| m.kind == ModuleKind::Interpreter && m.nodelete));
    let vdso = image.modules().iter().find(|m| m.kind == ModuleKind::Vdso).unwrap();
    assert!(vdso.symbols.exported("__vdso_clock_gettime").is_some(), "its dynamic section is not relocated");
    assert!(!vdso.frames.fdes().is_empty());
    for m in image.modules() {
        assert!(m.faults.is_empty(), "{:?}: {:?}", m.path, m.faults);
    }
    assert!(image.skipped().is_empty());
}

#[test]
fn every_default_symbol_of_libc() {
    let (_, image) = own();
    let c = module(&image, "libc.so.6");
    let bytes = std::fs::read(c.path.as_deref().unwrap()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let mut n = 0;
    for s in file.dynamic_symbols() {
        let name = s.name().unwrap();
        if s.is_undefined() || s.kind() != object::SymbolKind::Text {
            continue;
        }
        n += 1;
        let at = c.bias.avma(Svma(s.address()));
        assert!(c.symbols.named(name).any(|x| x.at == at && x.exported), "{name}");
        assert!(c.symbols.name_at(at).is_some());
    }
    assert!(n > 2000);
    // There are two versions. The default version is the ifunc that ordinary programs bind to.
    let memcpy: Vec<_> = c.symbols.named("memcpy").collect();
    assert_eq!(memcpy.len(), 2);
    // objdump prints old versions in parentheses.
    let versions = run(Command::new("objdump").arg("-T").arg(c.path.as_deref().unwrap()));
    let defaults = versions.lines().filter(|l| !l.contains("(GLIBC") && l.contains(" GLIBC_"));
    let defined = defaults.filter(|l| l.contains("DF .text") || l.contains("iD  .text"));
    let mut doubled = 0;
    for line in defined {
        let (at, name) = (line.split(' ').next().unwrap(), line.rsplit(' ').next().unwrap());
        let at = c.bias.avma(Svma(u64::from_str_radix(at, 16).unwrap()));
        assert_eq!(c.symbols.exported(name), Some(at), "{name}");
        doubled += usize::from(c.symbols.named(name).any(|s| s.at != at));
    }
    assert!(doubled > 20, "{doubled} names with several versions");
    assert!(c.ifuncs().count() > 5);
}

#[test]
fn frame_tables_are_whole() {
    let (live, image) = own();
    for name in ["libc.so.6", "libgcc_s", "ld-linux"] {
        let m = module(&image, name);
        let bytes = std::fs::read(m.path.as_deref().unwrap()).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let section = file.section_by_name(".eh_frame").unwrap();
        let at = m.bias.avma(Svma(section.address()));
        let data = section.data().unwrap();
        // The terminator, which ld.so does not have, is not part of the range.
        let data = data.strip_suffix(&[0; 4]).unwrap_or(data);
        assert_eq!(m.eh_frame, Some(AvmaRange::with_len(at, data.len() as u64)), "{name}");
        assert_eq!(live.bytes(m.eh_frame.unwrap()).unwrap(), data);
        let (mut i, mut fdes) = (0, 0);
        while i < data.len() {
            let word = |o: usize| u32::from_le_bytes(data[o..o + 4].try_into().unwrap());
            let len = word(i) as usize;
            fdes += usize::from(word(i + 4) != 0);
            i += 4 + len;
        }
        assert_eq!(m.frames.fdes().len() + m.frames.skipped(), fdes, "{name}");
        assert_eq!(m.frames.skipped(), 0);
    }
}

#[test]
fn constants_by_the_live_map() {
    let (_, image) = own();
    static TEXT: &str = "constant";
    static WORD: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(7);
    let range = |p: usize, n| AvmaRange::with_len(Avma(p as u64), n);
    assert!(image.is_readonly_data(range(TEXT.as_ptr() as usize, 8)));
    assert!(!image.is_readonly_data(range(&raw const WORD as usize, 8)));
    let heap = Box::new(5u64);
    assert!(!image.is_readonly_data(range(&raw const *heap as usize, 8)));
    let c = module(&image, "libc.so.6");
    let relro = c.relro.unwrap();
    assert!(image.is_readonly_data(relro));
    assert!(!image.is_readonly_data(AvmaRange::new(relro.start, relro.end.add(1))));
    assert!(!image.is_readonly_data(AvmaRange::new(relro.start, relro.start)));
    // Before the loader has protected it, RELRO is not constant.
    let mut maps = image.maps().to_vec();
    maps.iter_mut().filter(|m| relro.contains(m.range.start)).for_each(|m| m.perms.w = true);
    let live = Live::open(std::process::id());
    let early = Image::load(&maps, &live, &NoFiles, &live.hint()).unwrap();
    assert!(!early.is_readonly_data(relro));
    let exec = image.exec_ranges(c);
    assert_eq!(exec.len(), 1);
    assert!(exec[0].contains(c.symbols.exported("getpid").unwrap()));
}

#[test]
fn a_sleeping_child() {
    let child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
    let guest = Guest::silent(child);
    // Until the child sleeps (clock_nanosleep, 230), its loader may still run.
    let syscall = format!("/proc/{}/syscall", guest.pid());
    while !std::fs::read_to_string(&syscall).is_ok_and(|s| s.starts_with("230 ")) {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let image = guest.live().image();
    assert_eq!(image.main().file_name(), Some("sleep"));
    assert_eq!(image.modules().len(), 4, "sleep, libc, ld.so, vDSO");
    assert!(image.modules().iter().all(|m| m.nodelete));
    assert!(image.main().needed.iter().any(|n| n == "libc.so.6"));
    assert_eq!(runtime::detect(&image, &guest.live()), None);
}

#[test]
fn a_deleted_program() {
    let dir = tempfile::tempdir().unwrap();
    let copy = compile(dir.path(), "a name (of sorts)", WAITS, &[]);
    let guest = Guest::start(&mut Command::new(&copy));
    std::fs::remove_file(&copy).unwrap();
    let image = guest.live().image();
    let main = image.main();
    assert!(main.deleted && main.file_name() == Some("a name (of sorts)"));
    assert!(main.frames.fdes().len() > 2);
    assert!(main.symbols.name_at(main.entry.unwrap()).is_none(), "no file, no local names");
    // Another file under the old name is recognised as different.
    let other = compile(dir.path(), "other", "int main(void) { return 0; }", &[]);
    struct Wrong(Vec<u8>);
    impl image::Files for Wrong {
        fn open(&self, m: &image::Mapping) -> Option<Box<dyn image::FileParts>> {
            m.deleted.then(|| Box::new(self.0.clone()) as _)
        }
    }
    let image = guest.live().image_with(&Wrong(std::fs::read(other).unwrap())).unwrap();
    assert!(matches!(image.main().faults[..], [Error::FileDiffers]));
}

#[test]
fn only_needed_parts_of_a_file_are_read() {
    struct Counting(std::rc::Rc<std::cell::Cell<u64>>);
    struct Parts(Vec<u8>, std::rc::Rc<std::cell::Cell<u64>>);
    impl image::FileParts for Parts {
        fn part(&self, from: u64, len: u64) -> Option<Vec<u8>> {
            self.1.set(self.1.get() + len);
            self.0.part(from, len)
        }
    }
    impl image::Files for Counting {
        fn open(&self, m: &image::Mapping) -> Option<Box<dyn image::FileParts>> {
            let bytes = std::fs::read(m.file()?).ok()?;
            Some(Box::new(Parts(bytes, self.0.clone())))
        }
    }
    // bash is stripped and has more than a megabyte of code.
    let laid = Laid::new("/bin/bash", 0x5555_5555_0000);
    let counting = Counting(std::rc::Rc::default());
    let image = Image::load(&laid.maps, &laid, &counting, &laid.hint()).unwrap();
    assert!(image.main().faults.is_empty());
    let (read, whole) = (counting.0.get(), std::fs::metadata("/bin/bash").unwrap().len());
    assert!(0 < read && read < whole / 20, "{read} of {whole} bytes");
}

/// Returns the addresses and names of the stubs according to objdump.
fn stubs_by_objdump(path: &std::path::Path) -> Vec<(u64, String)> {
    let text = run(Command::new("objdump").arg("-d").arg(path));
    let heads = text.lines().filter_map(|l| l.strip_suffix("@plt>:")?.split_once(" <"));
    let mut out: Vec<_> = heads.map(|(a, n)| (u64::from_str_radix(a, 16).unwrap(), n.to_owned())).collect();
    out.sort();
    out
}

#[test]
fn stubs_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let forms: [&[&str]; 6] = [
        &["-Wl,-z,lazy"],
        &["-Wl,-z,now"],
        &["-no-pie", "-fno-pic"],
        &["-fcf-protection=full", "-Wl,-z,ibtplt"],
        &["-no-pie", "-fcf-protection=full", "-Wl,-z,ibt"],
        &["-Wl,-z,norelro", "-Wl,--build-id=none"],
    ];
    for (i, args) in forms.into_iter().enumerate() {
        let exe = compile(dir.path(), &format!("plt{i}"), WAITS, args);
        let guest = Guest::start(&mut Command::new(&exe));
        let image = guest.live().image();
        let main = image.main();
        assert_eq!(main.bias.0 != 0, main.pie);
        assert_eq!(main.pie, !args.contains(&"-no-pie"));
        // The lazy stubs of IBT programs (the first half of .plt) jump to the resolver, not through a slot.
        let want: Vec<_> = stubs_by_objdump(&exe).into_iter().filter(|(_, n)| !n.starts_with('*')).collect();
        let got: Vec<_> =
            main.plt.iter().map(|s| (main.bias.svma(s.range.start).0, s.name.clone().unwrap())).collect();
        assert_eq!(got, want, "{args:?}");
        assert!(got.iter().any(|(_, n)| n == "puts"));
        assert_eq!(main.bind_now, args.contains(&"-Wl,-z,now"));
        let puts = main.slots.iter().find(|s| s.name == "puts").unwrap();
        let value = Avma(guest.live().u64(puts.slot).unwrap());
        assert_eq!(Some(value), module(&image, "libc.so.6").symbols.exported("puts"), "it has been called");
        assert_eq!(main.relocation_at(puts.slot).map(|r| r.kind), Some(RelocKind::JumpSlot));
        let visible = main.symbols.named("visible").next().unwrap();
        assert_eq!(main.symbols.name_at(visible.at), Some("visible"));
        assert_eq!(main.frames.find(visible.at).unwrap().range.start, visible.at);
        assert!(main.faults.is_empty(), "{:?}", main.faults);
        assert_eq!(main.build_id.is_none(), args.contains(&"-Wl,--build-id=none"));
    }
}

/// A module without a build-id has the same identity in memory, in its file and in a stripped copy.
#[test]
fn identities() {
    let dir = tempfile::tempdir().unwrap();
    let forms: [&[&str]; 8] = [
        &[],
        &["-no-pie"],
        &["-static"],
        &["-static-pie"],
        &["-Wl,-z,noseparate-code"],
        &["-Wl,--no-eh-frame-hdr"],
        &["-Wl,-z,norelro", "-fuse-ld=gold"],
        &["-Wl,-z,max-page-size=0x200000"],
    ];
    let mut seen = std::collections::BTreeSet::new();
    for (i, args) in forms.into_iter().enumerate() {
        let exe =
            compile(dir.path(), &format!("named{i}"), WAITS, &[args, &["-Wl,--build-id=none"]].concat());
        let stripped = dir.path().join(format!("stripped{i}"));
        run(Command::new("strip").arg("-o").args([&stripped, &exe]));
        // Without the table, its segment is empty.
        let bare = dir.path().join(format!("bare{i}"));
        run(Command::new("objcopy").args(["--remove-section", ".eh_frame_hdr"]).args([&exe, &bare]));
        for file in [&exe, &bare] {
            let guest = Guest::start(&mut Command::new(file));
            let image = guest.live().image();
            let main = image.main();
            assert_eq!(main.build_id, None);
            let id = main.identity().unwrap().to_vec();
            assert!(image::is_derived(&id), "{args:?}: {id:?}");
            assert_eq!(image::identity_of(file), Some(id), "{args:?}");
        }
        let id = image::identity_of(&exe).unwrap();
        assert_eq!(image::identity_of(&stripped), Some(id.clone()), "{args:?}");
        assert!(seen.insert(id), "{args:?}");
    }
}

#[test]
fn static_programs() {
    let dir = tempfile::tempdir().unwrap();
    for (name, args) in [("fixed", &["-static"][..]), ("pie", &["-static-pie"])] {
        let exe = compile(dir.path(), name, WAITS, args);
        let guest = Guest::start(&mut Command::new(&exe));
        let image = guest.live().image();
        let main = image.main();
        assert!(main.static_exe && main.nodelete && main.pie == (name == "pie"));
        assert_eq!(main.symbols.named("twice_or_so").count(), 1);
        let f = main.symbols.named("visible").next().unwrap();
        assert_eq!(main.frames.find(f.at).unwrap().range.start, f.at);
        assert!(main.frames.fdes().len() > 500);
        assert!(main.ifuncs().count() > 5, "{name}");
        assert!(main.plt.iter().all(|s| s.name.is_none()) && !main.plt.is_empty());
        assert!(main.faults.is_empty(), "{:?}", main.faults);
        // Without its file, a static program has little besides its code. This is no error.
        let bare = guest.live().image_with(&NoFiles).unwrap();
        assert!(bare.main().symbols.len() < main.symbols.len());
    }
}

#[test]
fn compressed_symbols() {
    let dir = tempfile::tempdir().unwrap();
    let exe = compile(dir.path(), "mini", WAITS, &["-g"]);
    let at = |n: &str| dir.path().join(n);
    // The section is made as rpm's find-debuginfo makes it: a stripped file with only the functions that the
    // dynamic table lacks, compressed with xz.
    run(Command::new("objcopy").arg("--only-keep-debug").args([&exe, &at("debug")]));
    std::fs::write(at("keep"), "twice_or_so\nvisible\n").unwrap();
    run(Command::new("objcopy")
        .args(["-S", "--remove-section=.gdb_index", "--remove-section=.comment"])
        .arg(format!("--keep-symbols={}", at("keep").display()))
        .args([at("debug"), at("minidebug")]));
    run(Command::new("xz").arg("-9").arg(at("minidebug")));
    run(Command::new("objcopy")
        .arg("-S")
        .arg(format!("--add-section=.gnu_debugdata={}", at("minidebug.xz").display()))
        .args([&exe, &at("final")]));
    let guest = Guest::start(&mut Command::new(at("final")));
    let image = guest.live().image();
    let main = image.main();
    let f = main.symbols.named("twice_or_so").next().unwrap();
    assert!(!f.global && f.size > 0);
    assert_eq!(main.symbols.name_at(f.at.add(1)), Some("twice_or_so"));
    assert_eq!(main.frames.find(f.at).unwrap().range.start, f.at);
    assert!(main.faults.is_empty(), "{:?}", main.faults);
}

#[test]
fn opened_libraries_may_be_unloaded() {
    let dir = tempfile::tempdir().unwrap();
    let lib = compile(dir.path(), "libplug.so", "int plug(void) { return 1; }", &["-shared", "-fPIC"]);
    let keep = compile(
        dir.path(),
        "libkeep.so",
        "int keep(void) { return 1; }",
        &["-shared", "-fPIC", "-Wl,-z,nodelete", "-Wl,-soname,libkeep.so.1"],
    );
    let source =
        WAITS.replace("puts(\"ready\")", "if (dlopen(argv[1], 2) && dlopen(argv[2], 2)) puts(\"ready\")");
    let exe =
        compile(dir.path(), "opens", &source.replace("#include <math.h>", "#include <dlfcn.h>"), &["-ldl"]);
    let guest = Guest::start(Command::new(&exe).args([&lib, &keep]));
    let image = guest.live().image();
    assert!(!module(&image, "libplug.so").nodelete);
    assert!(module(&image, "libkeep.so").nodelete);
    assert_eq!(module(&image, "libkeep.so").soname.as_deref(), Some("libkeep.so.1"));
    assert!(module(&image, "libc.so.6").nodelete);
}

#[test]
fn a_program_started_through_the_loader() {
    let dir = tempfile::tempdir().unwrap();
    let exe = compile(dir.path(), "inner", WAITS, &[]);
    let loader = image_interpreter();
    let guest = Guest::start(Command::new(&loader).arg(&exe));
    let image = guest.live().image();
    assert_eq!(image.main().file_name(), Some("inner"));
    let ld = image.modules().iter().find(|m| m.kind == ModuleKind::Interpreter).unwrap();
    assert!(loader.ends_with(ld.soname.as_deref().unwrap()) && ld.nodelete);
}

fn image_interpreter() -> String {
    own().1.main().interpreter.clone().unwrap()
}

#[test]
fn a_file_mapped_as_data_is_no_module() {
    let dir = tempfile::tempdir().unwrap();
    let source = WAITS.replace(
        "puts(\"ready\")",
        "if (mmap(0, 8192, 1, 2, open(argv[0], 0), 0) != MAP_FAILED) puts(\"ready\")",
    );
    let headers = "#include <sys/mman.h>\n#include <fcntl.h>";
    let exe = compile(dir.path(), "reads_itself", &source.replace("#include <math.h>", headers), &[]);
    let guest = Guest::start(&mut Command::new(&exe));
    let live = guest.live();
    let heads = live.maps().iter().filter(|m| m.offset == 0 && m.file() == exe.to_str()).count();
    assert_eq!(heads, 2);
    let image = live.image();
    assert_eq!(image.modules().iter().filter(|m| m.file_name() == Some("reads_itself")).count(), 1);
    assert!(image.skipped().is_empty());
}

#[test]
fn packed_relative_relocations() {
    let dir = tempfile::tempdir().unwrap();
    let source = WAITS
        .replace("int visible", "int visible(int); int (*table[9])(int) = {visible, visible};\nint visible");
    let plain = compile(dir.path(), "rela", &source, &[]);
    let packed = compile(dir.path(), "relr", &source, &["-Wl,-z,pack-relative-relocs"]);
    let words = |exe: &std::path::Path| {
        let guest = Guest::start(&mut Command::new(exe));
        let image = guest.live().image();
        let main = image.main();
        let table = main.symbols.named("table").next().unwrap().at;
        let visible = main.symbols.named("visible").next().unwrap().at;
        let relative = |at| matches!(main.relocation_at(at).map(|r| r.kind), Some(RelocKind::Relative(_)));
        assert!(relative(table) && relative(table.add(8)) && !relative(table.add(16)));
        assert_eq!(guest.live().u64(table.add(8)).unwrap(), visible.0);
        main.relocations.iter().filter(|r| r.kind == RelocKind::Relative(None)).count()
    };
    assert_eq!(words(&plain), 0);
    assert!(words(&packed) >= 2);
}

#[test]
fn sanitizers_are_seen_however_linked() {
    let dir = tempfile::tempdir().unwrap();
    for (name, args) in
        [("shared", &["-fsanitize=address"][..]), ("inside", &["-fsanitize=address", "-static-libasan"])]
    {
        let exe = compile(dir.path(), name, WAITS, args);
        let guest = Guest::start(Command::new(&exe).env("ASAN_OPTIONS", "detect_leaks=0"));
        let image = guest.live().image();
        assert_eq!(runtime::detect(&image, &guest.live()), Some(Runtime::AddressSanitizer), "{name}");
    }
}

#[test]
fn go_is_seen_by_its_tables() {
    // The heads of Go's tables are in a C program that has no symbols for them.
    let dir = tempfile::tempdir().unwrap();
    let table = r#"
const struct { unsigned magic; unsigned char z[4]; unsigned long n; } line_table
    __attribute__((aligned(32), used)) = {0xfffffff1, {0, 0, 1, 8}, 99};
int visible"#;
    let info = r#"
char info[32] __attribute__((aligned(16), used)) = "\xff Go buildinf:\x08\x02";
int visible"#;
    for (i, extra) in [table, info].into_iter().enumerate() {
        let exe = compile(dir.path(), &format!("go{i}"), &WAITS.replace("int visible", extra), &["-s"]);
        let laid = Laid::new(exe.to_str().unwrap(), 0x5555_5555_0000);
        let image = Image::load(&laid.maps, &laid, &Disk, &laid.hint()).unwrap();
        assert_eq!(runtime::detect(&image, &laid), Some(Runtime::Go), "{i}");
    }
}

#[test]
fn v8_is_seen_by_its_names_alone() {
    // V8's names are among the constants of a stripped C program without V8's symbols.
    let dir = tempfile::tempdir().unwrap();
    let both = r#"
const char builtin[] __attribute__((used)) = "InterpreterEntryTrampoline";
const char histogram[] __attribute__((used)) = "V8.GCFinalizeMC";
int visible"#;
    let one = r#"
const char builtin[] __attribute__((used)) = "InterpreterEntryTrampoline";
int visible"#;
    let beside_code = ["-s", "-Wl,-z,noseparate-code"];
    for (i, (names, more, found)) in [
        (both, &["-s"][..], Some(Runtime::V8)),
        (both, &beside_code, Some(Runtime::V8)),
        (one, &["-s"], None),
    ]
    .into_iter()
    .enumerate()
    {
        let exe = compile(dir.path(), &format!("v8{i}"), &WAITS.replace("int visible", names), more);
        let laid = Laid::new(exe.to_str().unwrap(), 0x5555_5555_0000);
        let image = Image::load(&laid.maps, &laid, &Disk, &laid.hint()).unwrap();
        assert_eq!(runtime::detect(&image, &laid), found, "{i}");
    }
}

#[test]
fn no_main_program() {
    let (live, _) = own();
    let maps = live.maps();
    let lost = image::MainHint { exe_path: Some("/nowhere".to_owned()), ..Default::default() };
    assert!(matches!(Image::load(&maps, &live, &NoFiles, &lost), Err(Error::NoMain)));
    let mut other = Laid::new("/bin/ls", 0x5555_5555_0000);
    other.parts[0].1[4] = 1;
    let hint = other.hint();
    assert!(matches!(Image::load(&other.maps, &other, &NoFiles, &hint), Err(Error::Unsupported32Bit { .. })));
}
