//! Stops of all threads, under all conditions that make them hard.

use crate::guest::{Guest, alone, stop, stop_and_go, until};
use addr::{Avma, AvmaRange, ReadMemory};
use std::process::Command;
use std::time::{Duration, Instant};
use tracee::{Error, Pid, Process, Seized, StopError, Stopped, Tid};

#[test]
fn a_thousand_stops_during_thread_creation() {
    let _alone = alone();
    let g = Guest::start("churn", &["4", "2", "4"]);
    let mut most = 0;
    let since = Instant::now();
    for i in 0..1000 {
        let stopped = stop(&g.process).unwrap();
        let threads = stopped.threads();
        assert!(threads.len() >= 11, "{}", threads.len());
        most = most.max(threads.len());
        if i % 50 == 0 {
            // No thread runs.
            let seen = (g.word(0), g.word(1));
            for &t in &threads {
                assert_eq!(g.process.thread_status(t).unwrap().state, 't');
            }
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(seen, (g.word(0), g.word(1)));
            assert!(g.process.threads().unwrap().iter().all(|t| threads.contains(t)));
        }
        stopped.release().unwrap();
        if i % 50 == 0 {
            g.progress(0, 10);
            g.progress(1, 1000);
        }
    }
    println!("1000 stops in {:?}, at most {most} threads", since.elapsed());
    assert_eq!(g.process.status().unwrap().tracer_pid, 0);
    g.progress(0, 100);
}

#[test]
fn a_drop_releases_all_threads() {
    let _alone = alone();
    let g = Guest::start("churn", &["1", "1", "1"]);
    drop(Seized::seize(&g.process).unwrap());
    g.progress(1, 1000);
    drop(stop(&g.process).unwrap());
    g.progress(1, 1000);
    let panicked = std::panic::catch_unwind(|| {
        let _stopped = stop(&g.process).unwrap();
        panic!("on purpose");
    });
    assert!(panicked.is_err());
    g.progress(0, 10);
    g.progress(1, 1000);
    assert_eq!(g.process.status().unwrap().tracer_pid, 0);
}

#[test]
fn stops_are_counted_once_each() {
    let _alone = alone();
    let g = Guest::start("churn", &["1", "1", "1"]);
    let before = tracee::tally();
    let report = stop(&g.process).unwrap().release().unwrap();
    drop(stop(&g.process).unwrap());
    // Threads that were seized and not stopped are not stopped.
    drop(Seized::seize(&g.process).unwrap());
    let after = tracee::tally();
    assert_eq!(after.count, before.count + 2);
    assert!(after.longest >= report.stopped && after.longest >= before.longest);
}

#[test]
fn stop_times_with_many_threads() {
    let _alone = alone();
    let g = Guest::start("churn", &["0", "8", "55"]);
    until("threads", || g.process.threads().unwrap().len() == 64);
    let (mut whole, mut own) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let since = Instant::now();
        let report = stop_and_go(&g.process);
        whole.push(since.elapsed());
        own.push(report.stopped);
        assert_eq!(report.threads, 64);
        std::thread::sleep(Duration::from_millis(1));
    }
    whole.sort_unstable();
    own.sort_unstable();
    println!(
        "64 threads, 8 spinning: stopped for {:?} (median), {:?} (max); seize to end {:?}, {:?}",
        own[100], own[199], whole[100], whole[199]
    );
    assert!(own[100] < Duration::from_millis(50));
}

#[test]
fn registers_are_read_and_written() {
    let _alone = alone();
    let g = Guest::start("registers", &[]);
    for _ in 0..100 {
        let mut stopped = stop(&g.process).unwrap();
        let tid = Tid(g.pid().0);
        let regs = stopped.regs(tid).unwrap();
        // Unless the thread is in a call, new registers may be the old ones.
        if regs.syscall().is_none() {
            stopped.set_regs(tid, regs).unwrap();
        }
        assert!(matches!(stopped.regs(Tid(1)), Err(Error::NotStopped(_))));
        stopped.release().unwrap();
    }
    g.progress(0, 100);
    assert_eq!(g.word(1), 0);
}

#[test]
fn no_signal_is_lost() {
    let _alone = alone();
    let g = Guest::start("signals", &[]);
    g.progress(0, 100);
    for i in 0..300 {
        let mut stopped = stop(&g.process).unwrap();
        if i % 3 == 0 {
            stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap();
        }
        stopped.release().unwrap();
        if i % 10 == 0 {
            g.progress(0, 10);
        }
    }
    g.progress(0, 1000);
    println!("{} signals taken during 300 stops", g.word(0));
    assert_eq!(g.word(1), 0, "lost, doubled, out of order or without their number");
}

#[test]
fn no_wait_is_cut_short() {
    const NAMES: [&str; 29] = [
        "epoll_wait",
        "epoll_pwait",
        "epoll_pwait2",
        "semtimedop",
        "recv tcp",
        "recvmsg unix",
        "read unix",
        "readv tcp",
        "accept",
        "accept4",
        "rt_sigtimedwait",
        "io_getevents",
        "nanosleep",
        "clock_nanosleep",
        "futex",
        "poll",
        "select",
        "ppoll",
        "send unix",
        "write unix",
        "recvmmsg",
        "connect",
        "io_uring_enter",
        "sendmsg unix",
        "sendmmsg unix",
        "sendfile",
        "splice to unix",
        "splice from unix",
        "preadv2 unix",
    ];
    let _alone = alone();
    let mut g = Guest::start("waits", &[]);
    // The last, which submits and waits, is never cut short only where there are slots.
    assert_eq!(g.words[1], NAMES.len() as u64 + 1);
    println!("io_uring: {}", g.words[2] == 1);
    let counts = || {
        let mut all = Vec::new();
        for i in 0..NAMES.len() as u64 {
            all.push([0, 8, 16, 24].map(|o| g.process.u64(Avma(g.words[0] + 32 * i + o)).unwrap()));
        }
        all
    };
    std::thread::sleep(Duration::from_millis(200));
    let (mut cured, mut busy) = (0, 0);
    for round in 0..20 {
        for _ in 0..10 {
            let mut stopped = stop(&g.process).unwrap();
            if round % 2 == 1 {
                // The thread that runs another call in between is tested as well.
                stopped.syscall(libc::SYS_getppid, [0; 6]).unwrap();
            }
            cured += stopped.release().unwrap().cured;
            // Given up before all have come to rest; some may have.
            match Seized::seize(&g.process).unwrap().stop(Duration::ZERO) {
                Ok(s) => drop(s),
                Err(StopError::Busy { .. }) => busy += 1,
                Err(e) => panic!("{e}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // Relative timeouts begin again with each stop: let them end now and then.
        let before = counts();
        until("end of each wait", || counts().iter().zip(&before).all(|(now, then)| now[0] > then[0]));
    }
    let seen = counts();
    for (name, [calls, eintr, odd, longest]) in NAMES.iter().zip(&seen) {
        println!("{name:16} calls {calls:4} EINTR {eintr} odd {odd:#x} longest {longest} us");
    }
    println!("cured {cured}, {busy} times busy");
    assert!(busy > 10);
    for (name, [calls, eintr, odd, _]) in NAMES.iter().zip(&seen) {
        assert!(*calls >= 10, "{name}");
        assert_eq!((*eintr, *odd), (0, 0), "{name}");
    }
    assert!(cured > 0);
    // Calls that the kernel restarts keep their timeout: not one of ten stops was added.
    let longest = |name| NAMES.iter().zip(&seen).find(|(n, _)| **n == name).unwrap().1[3];
    assert!(longest("nanosleep") < longest("epoll_wait"));
    g.tell("\n");
    g.child.wait().unwrap();
}

#[test]
fn a_handler_still_ends_a_wait() {
    let _alone = alone();
    let g = Guest::start("handler", &[]);
    for i in 0..500 {
        stop_and_go(&g.process);
        std::thread::sleep(Duration::from_micros(i * 7 % 900));
    }
    g.progress(0, 50);
    g.progress(1, 50);
    assert_eq!(g.word(2), 0);
}

#[test]
fn a_stop_by_job_control_is_kept() {
    let _alone = alone();
    let g = Guest::start("churn", &["0", "2", "2"]);
    for early in [true, false] {
        // SIGSTOP before the stop, between seizing and stopping, and while stopped.
        let seized = Seized::seize(&g.process).unwrap();
        if early {
            g.signal("-STOP");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut stopped = seized.stop(Duration::from_secs(5)).unwrap();
        if !early {
            g.signal("-STOP");
        }
        stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap();
        stopped.release().unwrap();
        until("stop", || g.state() == 'T');
        for t in g.process.threads().unwrap() {
            until("stop", || g.process.thread_status(t).unwrap().state == 'T');
        }
        let spun = g.word(1);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(spun, g.word(1));
        assert!(matches!(tracee::preflight(g.pid()), Err(Error::JobStopped(_))));
        g.signal("-CONT");
        g.progress(1, 1000);
    }
    // SIGCONT while stopped by whet.
    g.signal("-STOP");
    until("stop", || g.state() == 'T');
    let stopped = stop(&g.process).unwrap();
    g.signal("-CONT");
    let spun = g.word(1);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(spun, g.word(1));
    stopped.release().unwrap();
    g.progress(1, 1000);
}

#[test]
fn the_first_thread_may_have_ended() {
    let _alone = alone();
    let g = Guest::start("states", &["leader"]);
    until("end of the first thread", || g.state() == 'Z');
    tracee::preflight(g.pid()).unwrap();
    assert!(g.process.exe().unwrap().ends_with("states"));
    assert!(g.process.maps_text().unwrap().contains("libc"));
    for _ in 0..20 {
        let mut stopped = stop(&g.process).unwrap();
        assert_eq!(stopped.threads().len(), 1);
        assert_eq!(stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap(), i64::from(g.pid().0));
        stopped.release().unwrap();
        g.progress(0, 10);
    }
}

#[test]
fn a_process_opens_while_its_first_thread_ends() {
    let _alone = alone();
    let mut g = Guest::start("states", &["leader"]);
    for _ in 0..100 {
        while g.state() != 'Z' {
            Process::open(g.pid()).unwrap();
        }
        g = g.again(&["leader"]);
    }
}

#[test]
fn forks_and_execs_continue() {
    let _alone = alone();
    for kind in ["f", "v", "s", "c"] {
        let g = Guest::start("forks", &[kind]);
        let (mut good, mut busy) = (0, 0);
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(3) && good < 200 {
            match Seized::seize(&g.process).unwrap().stop(Duration::from_millis(50)) {
                Ok(s) => {
                    s.release().unwrap();
                    good += 1;
                }
                Err(e @ StopError::Busy { .. }) => {
                    println!("{e}");
                    busy += 1;
                }
                Err(e) => panic!("{e}"),
            }
        }
        g.progress(0, 20);
        println!("{kind}: {good} stops, {busy} times busy, {} children", g.word(0));
        assert!(good > 10);
        assert_eq!(g.word(1), 0);
    }
}

#[test]
fn busy_stops_end_in_time_and_resume_all_threads() {
    let _alone = alone();
    let g = Guest::start("states", &["vfork"]);
    until("vfork", || g.state() == 'D');
    let since = Instant::now();
    let e = stop_for(&g.process, Duration::from_millis(50)).unwrap_err();
    let took = since.elapsed();
    let StopError::Busy { stuck, .. } = &e else { panic!("{e}") };
    println!("{e} after {took:?}");
    assert_eq!((stuck.len(), stuck[0].tid, stuck[0].state), (1, Tid(g.pid().0), 'D'));
    assert!(took < Duration::from_millis(100));
    g.progress(0, 1000);
    assert_eq!(g.process.status().unwrap().tracer_pid, 0);
    let g = Guest::start("states", &["vfork"]);
    until("vfork", || g.state() == 'D');
    // Another thread can run remote calls.
    let pid = tracee::with_one_stopped(&g.process, |r| r.syscall(libc::SYS_getpid, [0; 6])).unwrap();
    assert_eq!(pid, i64::from(g.pid().0));
    // The parent itself leaves the vfork.
    until("end of the vfork", || g.word(0) > 1_000_000_000_000);
    stop_and_go(&g.process);
}

#[test]
fn a_tracer_stays_until_an_uninterruptible_wait_ends() {
    let _alone = alone();
    let g = Guest::start("states", &["fault"]);
    if g.words[0] == 0 {
        return println!("skipped: userfaultfd is not permitted");
    }
    until("the wait", || g.state() == 'D');
    let e = stop_for(&g.process, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(e, StopError::Busy { .. }), "{e}");
    // The target is a child of this program: no tracer stays.
    assert_eq!(g.process.status().unwrap().tracer_pid, 0);
    // For another parent's child, the tracer stays until the wait ends.
    let exe = std::env::current_exe().unwrap();
    let other = Command::new(exe)
        .args(["--exact", "stops::not_the_parent"])
        .env("TRACEE_NO_CHILD", g.pid().to_string())
        .env("TRACEE_CHILDREN", g.words[1].to_string())
        .output()
        .unwrap();
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stdout));
    until("the page", || g.word(0) > 1_000_000_000_000);
    stop_and_go(&g.process);
}

fn stop_within(p: &Process, deadline: Duration) -> Result<Stopped<'_>, StopError> {
    Seized::seize(p)?.stop(deadline)
}

fn stop_for(p: &Process, deadline: Duration) -> Result<(), StopError> {
    stop_within(p, deadline).map(drop)
}

/// Not a test by itself: the same steps in a program that did not start the target.
#[test]
fn not_the_parent() {
    let Ok(pid) = std::env::var("TRACEE_NO_CHILD") else { return };
    let pid = Pid(pid.parse().unwrap());
    let p = Process::open(pid).unwrap();
    assert!(matches!(stop_for(&p, Duration::from_millis(20)), Err(StopError::Busy { .. })));
    // A tracer that stays is no obstacle for a next stop.
    assert_ne!(p.status().unwrap().tracer_pid, 0);
    tracee::preflight(pid).unwrap();
    let again = stop_for(&p, Duration::from_millis(20)).unwrap_err();
    assert!(matches!(again, StopError::Busy { .. }), "{again}");
    assert_ne!(p.status().unwrap().tracer_pid, 0);
    // Meanwhile a thread that was in a transfer, and so was not interrupted, can make children.
    let children = Avma(std::env::var("TRACEE_CHILDREN").unwrap().parse().unwrap());
    until("children", || p.u64(children).unwrap() >= 3);
    assert_ne!(p.status().unwrap().tracer_pid, 0);
    until("end of the tracing", || p.status().unwrap().tracer_pid == 0);
    assert_ne!(p.status().unwrap().state, 'D');
    stop(&p).unwrap().release().unwrap();
}

#[test]
fn exec_and_end_give_named_errors() {
    let _alone = alone();
    let g = Guest::start("states", &["exec"]);
    let seized = Seized::seize(&g.process).unwrap();
    g.tell("\n");
    std::thread::sleep(Duration::from_millis(50));
    let e = seized.stop(Duration::from_secs(1)).unwrap_err();
    assert!(matches!(e, StopError::Failed(Error::Exec(_) | Error::Gone(_))), "{e}");
    until("the new program", || g.process.status().unwrap().name == "sleep" && g.state() == 'S');
    assert_eq!(g.process.status().unwrap().tracer_pid, 0);
    // The opened memory is not the new program's.
    assert!(g.process.write(Avma(g.words[0]), &[1]).is_err());

    let mut g = Guest::start("churn", &["1", "1", "1"]);
    let stopped = stop(&g.process).unwrap();
    g.child.kill().unwrap();
    // Killed while stopped: the release works all the same.
    stopped.release().unwrap();
    g.child.wait().unwrap();
    assert!(!g.process.is_alive());
    assert!(matches!(Seized::seize(&g.process), Err(Error::Gone(_))));
    let gone = tracee::with_one_stopped(&g.process, |r| r.syscall(libc::SYS_getpid, [0; 6]));
    assert!(matches!(gone, Err(Error::Gone(_))));
}

/// Stops a process for a while, again and again, also after it has called exec. Returns the number of stops, at least
/// one.
fn stop_again_and_again(pid: Pid, time: Duration) -> usize {
    let since = Instant::now();
    let mut stops = 0;
    while stops == 0 || since.elapsed() < time {
        let Ok(p) = Process::open(pid) else { continue };
        if let Ok(stopped) = stop_within(&p, Duration::from_millis(50)) {
            // The process that was opened was stopped, not the next program.
            let regs = stopped.regs(stopped.threads()[0]).unwrap();
            p.bytes(AvmaRange::with_len(regs.ip(), 1)).unwrap();
            stops += 1;
        }
        let _ = tracee::with_one_stopped(&p, |r| r.syscall(libc::SYS_getpid, [0; 6]));
    }
    stops
}

/// Not a test by itself: stops a process that this program did not start.
#[test]
fn stops_by_another() {
    let Ok(pid) = std::env::var("TRACEE_EXECS") else { return };
    println!("{} stops", stop_again_and_again(Pid(pid.parse().unwrap()), Duration::from_secs(3)));
}

/// A thread that calls exec waits in the kernel until their tracer has reaped the threads that it ended. Seizing one of
/// them waits for the same exec.
#[test]
fn an_exec_of_many_threads_goes_on() {
    let _alone = alone();
    for by_another in [false, true] {
        let mut g = Guest::start("execs", &[]);
        let pid = g.pid();
        let number = || {
            let line = std::fs::read_to_string(format!("/proc/{}/cmdline", pid.0)).unwrap();
            line.split('\0').nth(1).and_then(|n| n.parse::<u32>().ok())
        };
        std::thread::scope(|scope| {
            let stops = scope.spawn(|| {
                if !by_another {
                    return stop_again_and_again(pid, Duration::from_secs(3));
                }
                let mut other = Command::new(std::env::current_exe().unwrap());
                other
                    .args(["--exact", "stops::stops_by_another", "--nocapture"])
                    .env("TRACEE_EXECS", pid.0.to_string());
                let said = String::from_utf8(other.output().unwrap().stdout).unwrap();
                let stops = said.lines().find_map(|l| l.strip_suffix(" stops")?.parse().ok());
                stops.expect(&said)
            });
            let (mut last, mut seen, mut longest) = (None, Instant::now(), Duration::ZERO);
            while !stops.is_finished() {
                let now = number();
                longest = longest.max(seen.elapsed());
                if now.is_some() && now != last {
                    (last, seen) = (now, Instant::now());
                } else if seen.elapsed() > Duration::from_secs(20) {
                    g.child.kill().unwrap();
                    panic!("the exec did not go on");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let stops = stops.join().unwrap();
            println!("{stops} stops, {last:?} execs, the longest wait between two {longest:?}");
        });
    }
}

/// Works on a process until it ends. Returns the first failure.
fn work_until_it_ends(p: &Process) -> Error {
    let failed = |e| match e {
        StopError::Failed(e) => e,
        busy @ StopError::Busy { .. } => panic!("{busy}"),
    };
    loop {
        let once = || -> Result<(), Error> {
            let at = tracee::with_one_stopped(p, |r| r.mmap(None, 4096, libc::PROT_READ, 0))?;
            p.write(at, &[1])?;
            let mut stopped = stop(p).map_err(failed)?;
            let tid = stopped.threads()[0];
            stopped.set_regs(tid, stopped.regs(tid)?)?;
            stopped.write_text(at, &[2])?;
            stopped.syscall(libc::SYS_munmap, [at.0, 4096, 0, 0, 0, 0])?;
            stopped.release()?;
            p.status()?;
            p.maps_text()?;
            p.exe()?;
            p.threads()?;
            Ok(())
        };
        if let Err(e) = once() {
            return e;
        }
    }
}

#[test]
fn an_end_at_any_moment_is_reported_as_gone() {
    let _alone = alone();
    let mut g = Guest::start("churn", &["1", "2", "3"]);
    for i in 0..80u64 {
        let (child, process) = (&mut g.child, &g.process);
        std::thread::scope(|s| {
            s.spawn(move || {
                std::thread::sleep(Duration::from_micros(500 + i * 613 % 7000));
                child.kill().unwrap();
            });
            let e = work_until_it_ends(process);
            assert!(matches!(e, Error::Gone(_)), "{e} ({e:?})");
        });
        g = g.again(&["1", "2", "3"]);
    }
}

/// Not a test by itself: the work of the tracer that is killed below.
#[test]
fn victim() {
    let Ok(pid) = std::env::var("TRACEE_VICTIM") else { return };
    let (pid, how) = pid.split_once(' ').unwrap();
    let p = Process::open(Pid(pid.parse().unwrap())).unwrap();
    match how {
        "stand" => {
            let _stopped = stop(&p).unwrap();
            tracee::kill_self();
        }
        _ => loop {
            tracee::with_one_stopped(&p, |r| {
                for _ in 0..50 {
                    r.syscall(libc::SYS_getpid, [0; 6])?;
                }
                Ok(())
            })
            .unwrap();
        },
    }
}

#[test]
fn a_killed_tracer_leaves_no_harm() {
    let _alone = alone();
    let exe = std::env::current_exe().unwrap();
    let victim = |g: &Guest, how: &str| {
        Command::new(&exe)
            .args(["--exact", "stops::victim"])
            .env("TRACEE_VICTIM", format!("{} {how}", g.pid()))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let g = Guest::start("churn", &["1", "1", "1"]);
    let mut v = victim(&g, "stand");
    v.wait().unwrap();
    g.progress(0, 100);
    g.progress(1, 1000);
    assert_eq!(g.process.status().unwrap().tracer_pid, 0);

    // A kill at any instant of a remote system call, in a thread that spins and in one that waits.
    for args in [&[][..], &["sleep"]] {
        let g = Guest::start("registers", args);
        for i in 0..40u64 {
            let mut v = victim(&g, "call");
            until("the tracer at work", || g.process.status().unwrap().tracer_pid != 0);
            std::thread::sleep(Duration::from_micros(i * 67 % 2000));
            v.kill().unwrap();
            v.wait().unwrap();
            g.progress(0, 2);
            assert_eq!(g.word(1), 0, "after {i} kills");
        }
        stop_and_go(&g.process);
        g.progress(0, 5);
        assert_eq!(g.word(1), 0);
    }
}
