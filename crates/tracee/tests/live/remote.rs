//! System calls run by the target, and writes into it.

use crate::guest::{Guest, beside_others, stop, until};
use addr::{Avma, AvmaRange, ReadMemory};
use std::process::{Command, Stdio};
use std::time::Duration;
use tracee::{Error, Pid, Process, with_one_stopped};

const RX: i32 = libc::PROT_READ | libc::PROT_EXEC;

#[test]
fn maps_and_unmaps_and_leaves_the_thread_as_it_was() {
    let _beside = beside_others();
    for args in [&[][..], &["sleep"]] {
        let g = Guest::start("registers", args);
        let since = std::time::Instant::now();
        for _ in 0..300 {
            let at = with_one_stopped(&g.process, |r| r.mmap(None, 1 << 16, RX, 0)).unwrap();
            let line = format!("{:x}-", at.0);
            let maps = g.process.maps_text().unwrap();
            assert!(maps.lines().any(|l| l.starts_with(&line) && l.contains(" r-xp ")), "{maps}");
            // Executable memory is filled from outside.
            g.process.write(at, &[0xc3; 5000]).unwrap();
            assert_eq!(g.process.bytes(AvmaRange::with_len(at, 5000)).unwrap(), [0xc3; 5000]);
            with_one_stopped(&g.process, |r| r.munmap(at, 1 << 16)).unwrap();
            assert!(g.process.u64(at).is_err());
        }
        println!("300 maps and unmaps, one stop each: {:?}", since.elapsed());
        g.progress(0, 10);
        assert_eq!(g.word(1), 0, "{args:?}");
        let since = std::time::Instant::now();
        with_one_stopped(&g.process, |r| {
            for _ in 0..100 {
                r.syscall(libc::SYS_getpid, [0; 6])?;
            }
            Ok(())
        })
        .unwrap();
        println!("one remote call: {:?}", since.elapsed() / 100);
        g.progress(0, 10);
        assert_eq!(g.word(1), 0);
    }
}

#[test]
fn failed_calls_return_their_errors() {
    let _beside = beside_others();
    let g = Guest::start("churn", &["0", "1", "1"]);
    let e = with_one_stopped(&g.process, |r| r.munmap(Avma(1), 1)).unwrap_err();
    assert!(matches!(e, Error::Remote { nr: libc::SYS_munmap, errno: libc::EINVAL }), "{e}");
    let at = with_one_stopped(&g.process, |r| {
        let a = r.mmap(None, 4096, RX, 0)?;
        assert_eq!(r.process().pid(), g.pid());
        let again = r.mmap(Some(a), 4096, RX, libc::MAP_FIXED_NOREPLACE);
        assert!(matches!(again, Err(Error::Remote { errno: libc::EEXIST, .. })));
        Ok(a)
    })
    .unwrap();
    let mut stopped = stop(&g.process).unwrap();
    stopped.write_text(at, b"hello").unwrap();
    assert_eq!(stopped.process().bytes(AvmaRange::with_len(at, 6)).unwrap(), b"hello\0");
    assert!(matches!(stopped.write_text(Avma(64), b"x"), Err(Error::Unwritable { .. })));
    assert_eq!(stopped.syscall(libc::SYS_munmap, [at.0, 4096, 0, 0, 0, 0]).unwrap(), 0);
    stopped.release().unwrap();
    // A panic in the middle of a stop.
    let panicked = std::panic::catch_unwind(|| {
        let _: Result<(), Error> = with_one_stopped(&g.process, |_| panic!("on purpose"));
    });
    assert!(panicked.is_err());
    g.progress(1, 1000);
}

#[test]
fn huge_pages_from_outside() {
    let _beside = beside_others();
    let g = Guest::start("churn", &["0", "1", "1"]);
    let at = with_one_stopped(&g.process, |r| r.mmap(None, 4 << 20, RX, 0)).unwrap();
    let range = AvmaRange::with_len(Avma(at.0.next_multiple_of(2 << 20)), 2 << 20);
    let advice = [range.start.0, range.len(), libc::MADV_HUGEPAGE as u64, 0, 0, 0];
    if let Err(e) = with_one_stopped(&g.process, |r| r.syscall(libc::SYS_madvise, advice)) {
        return println!("no huge pages here: {e}");
    }
    assert_eq!(g.process.huge_pages(range).unwrap(), []);
    // The first touch allocates a whole huge page.
    g.process.write(range.start, &[0x90]).unwrap();
    match &g.process.huge_pages(range).unwrap()[..] {
        [] => println!("no huge pages here"),
        huge => assert_eq!(huge, [range]),
    }
    g.process.write(range.start, &vec![0x90; 2 << 20]).unwrap();
    assert!(g.process.bytes(range).unwrap().iter().all(|&b| b == 0x90));
}

/// The environment variable with the target of `calls_without_end`.
const ITS_TARGET: &str = "WHET_TEST_TARGET";

/// Not a test by itself: a whet that another test kills.
#[test]
#[ignore = "runs until it is killed, for another test"]
fn calls_without_end() {
    let Ok(pid) = std::env::var(ITS_TARGET) else { return };
    let process = Process::open(Pid(pid.parse().unwrap())).unwrap();
    loop {
        with_one_stopped(&process, |r| {
            for _ in 0..1000 {
                r.syscall(libc::SYS_getpid, [0; 6])?;
            }
            Ok(())
        })
        .unwrap();
    }
}

/// If whet is killed, a thread that runs a remote system call returns by itself. It uses the code that
/// returns from signal handlers, or, in a program without handlers, other code that leads to `rt_sigreturn`.
#[test]
fn a_thread_returns_after_its_tracer_is_killed() {
    let _beside = beside_others();
    let static_musl = ("musl-gcc", &["-static"][..]);
    for (compiler, flags) in [("gcc", &["-pthread"][..]), static_musl] {
        if Command::new(compiler).arg("--version").output().is_err() {
            println!("no {compiler} here");
            continue;
        }
        for args in [&[][..], &["sleep"]] {
            let g = Guest::start_by(compiler, flags, "registers", args);
            let exe = std::env::current_exe().unwrap();
            for i in 0..60 {
                let mut tracer = Command::new(&exe)
                    .args(["--exact", "remote::calls_without_end", "--ignored"])
                    .env(ITS_TARGET, g.pid().to_string())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap();
                let is_traced = || tracer_of(&g) != 0;
                until("tracer", is_traced);
                // Another instant of a call in each round.
                std::thread::sleep(Duration::from_micros(37 * i));
                tracer.kill().unwrap();
                tracer.wait().unwrap();
                g.progress(0, 2);
            }
            assert_eq!(g.word(1), 0, "{compiler} {args:?}");
        }
    }
}

/// Returns the tracer of its first thread; 0 for none.
fn tracer_of(g: &Guest) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", g.pid())).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("TracerPid:"));
    line.unwrap().trim().parse().unwrap()
}

/// A thread that nothing can stop for most of the time is waited for.
#[test]
fn a_thread_that_mostly_waits_for_children() {
    let _beside = beside_others();
    let g = Guest::start("states", &["vforks"]);
    g.progress(0, 2);
    for _ in 0..20 {
        let pid = with_one_stopped(&g.process, |r| r.syscall(libc::SYS_getpid, [0; 6]));
        assert_eq!(pid.unwrap(), i64::from(g.pid().0));
    }
    g.progress(0, 3);
}

#[test]
fn no_frame_is_written_to_a_small_stack() {
    let _beside = beside_others();
    let getpid = |g: &Guest| with_one_stopped(&g.process, |r| r.syscall(libc::SYS_getpid, [0; 6]));
    // A single thread returns by the stack on which it was started.
    for kind in ["alone", "thread", "turns", "guard"] {
        let g = Guest::start("smallstack", &[kind]);
        g.progress(0, 5);
        for i in 0..20 {
            match getpid(&g) {
                Ok(pid) => assert_eq!(pid, i64::from(g.pid().0)),
                // Before Linux 6.15 this guard cannot be seen.
                Err(Error::NoThread(_)) if kind == "guard" && i == 0 => break,
                Err(e) => panic!("{kind}: {e}"),
            }
            if ["alone", "thread"].contains(&kind) {
                let mut stopped = stop(&g.process).unwrap();
                stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap();
                stopped.release().unwrap();
            }
            g.progress(2, 10);
            assert_eq!(g.word(1), 0, "{kind}");
        }
        g.progress(0, 10);
    }
}

/// A new handle has no state of earlier ones except what is left in the target.
#[test]
fn later_whets_use_the_same_shelter() {
    let _beside = beside_others();
    let g = Guest::start("smallstack", &["alone"]);
    g.progress(0, 5);
    let shelters = |g: &Guest| {
        let maps = g.process.maps_text().unwrap();
        maps.lines().filter(|l| l.starts_with(|c: char| c.is_ascii_hexdigit()) && is_64_kib(l)).count()
    };
    let before = shelters(&g);
    // A stack has only a few untouched pages.
    for _ in 0..40 {
        let process = Process::open(g.pid()).unwrap();
        let pid = with_one_stopped(&process, |r| r.syscall(libc::SYS_getpid, [0; 6]));
        assert_eq!(pid.unwrap(), i64::from(g.pid().0));
    }
    assert_eq!(shelters(&g), before + 1);
    assert_eq!(g.word(1), 0);
    g.progress(0, 10);
}

fn is_64_kib(line: &str) -> bool {
    let ends = line.split(' ').next().and_then(|r| r.split_once('-'));
    let number = |s| u64::from_str_radix(s, 16).ok();
    ends.and_then(|(a, b)| Some(number(b)? - number(a)?)) == Some(64 << 10)
}
