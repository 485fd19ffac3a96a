//! The effects of stops that a program can notice: none on the results of its system calls.

use crate::guest::{Guest, beside_others, stop, stop_and_go, until};
use addr::{Avma, ReadMemory};
use std::time::Duration;
use tracee::with_one_stopped;

/// Returns the guest's rows of four counters.
fn rows(g: &Guest) -> Vec<[u64; 4]> {
    let row = |i| [0, 8, 16, 24].map(|o| g.process.u64(Avma(g.words[0] + 32 * i + o)).unwrap());
    (0..g.words[1]).map(row).collect()
}

const TRANSFERS: [&str; 12] = [
    "write pipe",
    "writev pipe",
    "send tcp",
    "write tcp",
    "sendmsg unix, descriptors",
    "sendfile unix",
    "splice unix",
    "recv tcp, all",
    "recvmsg unix, all",
    "writev tcp",
    "pwritev2 pipe",
    "send unix",
];

/// Gives a guest the code that finishes calls; its unwinders do not matter here.
fn prepared(g: &Guest) {
    prepared_for(g, 200);
}

fn prepared_for(g: &Guest, threads: usize) {
    with_one_stopped(&g.process, |r| r.make_finishing_code(threads)).unwrap();
    for code in g.process.unlisted_finishing_code() {
        g.process.finishing_code_is_listed(&code);
    }
    g.process.open_slots();
}

#[test]
fn no_transfer_is_short() {
    let _beside = beside_others();
    let g = Guest::start("transfers", &[]);
    prepared(&g);
    // Without stops no transfer is short.
    until("calls", || rows(&g).iter().all(|r| r[0] >= 10));
    for (name, [calls, shorts, errors, wrong]) in TRANSFERS.iter().zip(rows(&g)) {
        assert_eq!((shorts, errors, wrong), (0, 0, 0), "{name}, {calls} calls, before any stop");
    }
    let mut cured = 0;
    for i in 0..1000 {
        if i % 10 == 3 {
            with_one_stopped(&g.process, |r| r.syscall(libc::SYS_getpid, [0; 6])).unwrap();
        }
        let mut stopped = stop(&g.process).unwrap();
        if i % 7 == 0 {
            stopped.syscall(libc::SYS_getppid, [0; 6]).unwrap();
        }
        cured += stopped.release().unwrap().cured;
        std::thread::sleep(Duration::from_micros(i * 37 % 3000));
    }
    let seen = rows(&g);
    until("further calls", || rows(&g).iter().zip(&seen).all(|(now, then)| now[0] >= then[0] + 10));
    println!("{cured} calls taken up again; {} descriptors passed", g.word(3));
    for (name, [calls, shorts, errors, wrong]) in TRANSFERS.iter().zip(rows(&g)) {
        println!("{name:26} calls {calls:5} short {shorts} failed {errors} wrong {wrong}");
    }
    for (name, [_, shorts, errors, wrong]) in TRANSFERS.iter().zip(rows(&g)) {
        assert_eq!((shorts, errors, wrong), (0, 0, 0), "{name}");
    }
    assert!(cured > 1000);
    assert_eq!(g.word(2), 0, "arguments changed");
    // One more may be on its way.
    let (passed, sent) = (g.word(3), rows(&g)[4][0]);
    assert!(passed.abs_diff(sent) <= 2, "{passed} descriptors with {sent} messages");
    stop_and_go(&g.process);
}

#[test]
fn no_timeout_begins_again() {
    let _beside = beside_others();
    let g = Guest::start("waits", &[]);
    prepared(&g);
    // Each wait has a timeout of 60 ms, and a stop comes before its end.
    std::thread::sleep(Duration::from_millis(200));
    let before = rows(&g);
    for i in 0..400 {
        if i % 20 == 3 {
            with_one_stopped(&g.process, |r| r.syscall(libc::SYS_getpid, [0; 6])).unwrap();
        }
        let mut stopped = stop(&g.process).unwrap();
        if i % 7 == 0 {
            stopped.syscall(libc::SYS_getppid, [0; 6]).unwrap();
        }
        stopped.release().unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    let seen = rows(&g);
    for (i, [calls, eintr, odd, longest]) in seen.iter().enumerate() {
        println!("{i:2} calls {:4} EINTR {eintr} odd {odd:#x} longest {longest} us", calls - before[i][0]);
    }
    for (i, ([calls, eintr, odd, _], then)) in seen.iter().zip(&before).enumerate() {
        assert_eq!((*eintr, *odd), (0, 0), "{i}");
        assert!(calls - then[0] >= 10, "{i}");
    }
}

#[test]
fn a_handler_still_ends_a_finished_call() {
    const NAMES: [&str; 5] =
        ["write, a part", "epoll_wait", "recv with its own timeout", "recv, a part", "send"];
    let _beside = beside_others();
    let g = Guest::start("interrupts", &[]);
    prepared(&g);
    until("calls", || rows(&g).iter().all(|r| r[0] >= 10));
    assert!(rows(&g).iter().all(|r| r[1] == 0), "before any stop: {:?}", rows(&g));
    for i in 0..1000 {
        if i % 10 == 3 {
            with_one_stopped(&g.process, |r| r.syscall(libc::SYS_getpid, [0; 6])).unwrap();
        }
        stop_and_go(&g.process);
        std::thread::sleep(Duration::from_micros(i * 37 % 3000));
    }
    let seen = rows(&g);
    until("further calls", || rows(&g).iter().zip(&seen).all(|(now, then)| now[0] >= then[0] + 10));
    for (name, [calls, bad, handled, got]) in NAMES.iter().zip(rows(&g)) {
        println!("{name:26} calls {calls:5} bad {bad} ({got:#x}) handled {handled}");
    }
    assert!(rows(&g).iter().all(|r| r[1] == 0));
}

/// Stops a guest repeatedly until each of its kinds of calls was made `calls` more times.
fn until_made(g: &Guest, calls: u64) -> Vec<[u64; 4]> {
    let before = rows(g);
    let since = std::time::Instant::now();
    loop {
        let now = rows(g);
        if now.iter().zip(&before).all(|(now, then)| now[0] >= then[0] + calls) {
            return now;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{now:?}");
        stop_and_go(&g.process);
        g.process.write(Avma(g.words[2]), &(g.word(2) + 1).to_le_bytes()).unwrap();
        std::thread::sleep(Duration::from_micros(700));
    }
}

#[test]
fn a_transfer_ends_as_without_stops() {
    const KINDS: [&str; 9] = [
        "write tcp",
        "writev tcp",
        "send tcp",
        "sendmsg tcp",
        "write unix",
        "writev unix",
        "send unix",
        "sendmsg unix",
        "write pipe, the descriptor means another file",
    ];
    let _beside = beside_others();
    let g = Guest::start("endings", &[]);
    prepared(&g);
    until("calls", || rows(&g)[..8].iter().all(|r| r[0] >= 5));
    assert!(rows(&g).iter().all(|r| r[1..3] == [0, 0]), "before any stop: {:?}", rows(&g));
    for (name, row) in KINDS.iter().zip(until_made(&g, 100)) {
        println!("{name:46} {row:?}");
    }
    for (name, [_, odd, signals, wrong]) in KINDS.iter().zip(rows(&g)) {
        assert_eq!((odd, signals, wrong), (0, 0, 0), "{name}");
    }
}

#[test]
fn descriptors_in_the_second_half_of_a_message_arrive() {
    let _beside = beside_others();
    let g = Guest::start("descriptors", &[]);
    prepared(&g);
    let since = std::time::Instant::now();
    while rows(&g)[0][0] < 200 {
        assert!(since.elapsed() < Duration::from_secs(60), "{:?}", rows(&g));
        stop_and_go(&g.process);
        std::thread::sleep(Duration::from_micros(1700));
    }
    assert_eq!(rows(&g)[0][1], 0, "messages without their descriptors");
}

#[test]
fn seccomp_filters_are_obeyed() {
    let _beside = beside_others();
    let mut g = Guest::start("endings", &["filtered"]);
    prepared(&g);
    until_made(&g, 30);
    assert!(g.child.try_wait().unwrap().is_none(), "killed by its filter");
}

/// Cancels 400 threads, while the one area has room for 128.
fn are_cancelled(g: &Guest) {
    prepared_for(g, 1);
    let since = std::time::Instant::now();
    while g.word(0) < 400 {
        assert!(since.elapsed() < Duration::from_secs(60), "{} cancelled", g.word(0));
        stop_and_go(&g.process);
        std::thread::sleep(Duration::from_micros(1300));
    }
    assert_eq!(g.word(2), 0, "of {} calls", g.word(1));
}

#[test]
fn slots_of_cancelled_threads_are_freed() {
    let _beside = beside_others();
    are_cancelled(&Guest::start("cancels", &[]));
}

/// There the library determines by an address whether a thread waits, as glibc does from 2.41 on.
#[test]
fn threads_are_cancelled_on_musl() {
    let _beside = beside_others();
    if std::process::Command::new("musl-gcc").arg("--version").output().is_err() {
        eprintln!("skipped: no musl-gcc (tools/setup.sh installs it)");
        return;
    }
    for how in [&["-static"][..], &[]] {
        are_cancelled(&Guest::start_by("musl-gcc", how, "cancels", &[]));
    }
}

/// The end of a request with `IORING_OP_TIMEOUT` ends a wait for several completions. A wait that began again
/// after a stop in which the request ended would never end.
#[test]
fn no_wait_for_several_completions_hangs() {
    let _beside = beside_others();
    let g = Guest::start("rings", &[]);
    if g.words[4] == 0 {
        println!("skipped: the kernel gives no io_uring");
        return;
    }
    for with_slots in [false, true] {
        if with_slots {
            prepared(&g);
        }
        for i in 0..300 {
            let mut stopped = stop(&g.process).unwrap();
            if i % 7 == 0 {
                stopped.syscall(libc::SYS_getppid, [0; 6]).unwrap();
            }
            // Some requests end during the stop.
            std::thread::sleep(Duration::from_micros(i * 61 % 2500));
            stopped.release().unwrap();
            std::thread::sleep(Duration::from_micros(i * 37 % 3000));
        }
        g.progress(0, 20);
        g.progress(1, 20);
    }
    println!("{} and {} waits ended", g.word(0), g.word(1));
    assert_eq!((g.word(2), g.word(3)), (0, 0));
}
