//! Processes that are refused, each with its reason.

use crate::guest::{Guest, beside_others, stop, until};
use std::process::{Command, Stdio};
use tracee::{Error, Pid, Seccomp, Seized, preflight, with_one_stopped};

#[test]
fn kinds_of_processes_are_refused() {
    assert!(matches!(preflight(Pid(std::process::id().cast_signed())), Err(Error::Itself(_))));
    assert!(matches!(preflight(Pid(1 << 23)), Err(Error::NoSuchProcess(_))));
    assert!(matches!(preflight(Pid(-1)), Err(Error::NoSuchProcess(_))));
    // A kernel thread, if one is visible.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|c| c == "kthreadd\n") {
        assert!(matches!(preflight(Pid(2)), Err(Error::KernelThread { .. })));
    }
    let _beside = beside_others();
    let g = Guest::start("churn", &["0", "0", "1"]);
    let fine = preflight(g.pid()).unwrap();
    assert_eq!((fine.threads, fine.seccomp), (2, Seccomp::None));
    let other = g.process.threads().unwrap().into_iter().find(|t| t.0 != g.pid().0).unwrap();
    assert!(matches!(preflight(Pid(other.0)), Err(Error::NotAProcess(_, leader)) if leader == g.pid()));
}

#[test]
fn a_zombie_is_refused() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = Pid(child.id().cast_signed());
    until("end", || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z "));
    assert!(matches!(preflight(pid), Err(Error::Ending(_))));
    child.wait().unwrap();
}

#[test]
fn a_traced_process_is_refused() {
    let _beside = beside_others();
    let g = Guest::start("churn", &["0", "1", "1"]);
    let mut gdb = Command::new("gdb")
        .args(["-nx", "-q", "-p", &g.pid().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("gdb", || g.process.status().unwrap().tracer_pid != 0);
    let is_gdb = |e: &Error| matches!(e, Error::AlreadyTraced { by, comm, .. } if by.0 == gdb.id().cast_signed() && comm == "gdb");
    let e = preflight(g.pid()).unwrap_err();
    println!("{e}");
    assert!(is_gdb(&e));
    assert!(is_gdb(&Seized::seize(&g.process).unwrap_err()));
    let e = with_one_stopped(&g.process, |r| r.syscall(libc::SYS_getpid, [0; 6])).unwrap_err();
    assert!(matches!(e, Error::AlreadyTraced { .. } | Error::NoThread(_)), "{e}");
    gdb.kill().unwrap();
    gdb.wait().unwrap();
    until("end of gdb", || g.process.status().unwrap().tracer_pid == 0);
    // whet's own tracing counts as well.
    let stopped = stop(&g.process).unwrap();
    assert!(matches!(preflight(g.pid()), Err(Error::TracedByWhet { .. })));
    assert!(matches!(Seized::seize(&g.process), Err(Error::TracedByWhet { .. })));
    stopped.release().unwrap();
}

#[test]
fn seccomp_modes_are_recognized() {
    let _beside = beside_others();
    let g = Guest::start("states", &["strict"]);
    g.tell("\n");
    until("seccomp", || g.process.status().unwrap().seccomp == 1);
    assert!(matches!(preflight(g.pid()), Err(Error::SeccompStrict(_))));

    let g = Guest::start("states", &["filter"]);
    until("seccomp", || g.process.status().unwrap().seccomp == 2);
    until("rest", || g.state() == 'S');
    match preflight(g.pid()) {
        Ok(p) => {
            assert_eq!((p.seccomp, p.no_new_privs), (Seccomp::Filter, true));
            // The filter would kill the process for this call.
            match with_one_stopped(&g.process, |r| r.mmap(None, 4096, libc::PROT_READ, 0)) {
                Ok(_) => {}
                Err(Error::SeccompFilter { why, .. }) => println!("cannot be suspended here: {why}"),
                Err(e) => panic!("{e}"),
            }
            g.progress(0, 1000);
        }
        Err(e) => assert!(matches!(e, Error::SeccompFilter { .. }), "{e}"),
    }
}
