//! Processes that share the target's memory without being its threads.

use crate::guest::{Guest, alone, beside_others, stop, until};
use std::time::{Duration, Instant};
use tracee::{Error, Pid, Seized, StopError, preflight};

fn is_refusal(e: &Error, with: Pid) -> bool {
    matches!(e, Error::SharesMemory { with: w, .. } if *w == with)
}

#[test]
fn a_lasting_sharer_is_refused() {
    let _beside = beside_others();
    let g = Guest::start("sharers", &["long"]);
    let with = Pid(i32::try_from(g.words[2]).unwrap());
    // While young, it may be a spawn under way.
    let e = stop(&g.process).map(drop).unwrap_err();
    println!("{e}");
    assert!(
        matches!(&e, StopError::Busy { stuck, .. } if stuck.len() == 1 && stuck[0].tid.0 == with.0),
        "{e}"
    );
    let seized = Seized::seize(&g.process);
    std::thread::sleep(Duration::from_millis(1100));
    match seized.unwrap().stop(Duration::from_secs(1)).map(drop) {
        Err(StopError::Failed(e)) => assert!(is_refusal(&e, with), "{e}"),
        other => panic!("{other:?}"),
    }
    let e = preflight(g.pid()).unwrap_err();
    println!("{e}");
    assert!(is_refusal(&e, with));
    assert!(is_refusal(&Seized::seize(&g.process).unwrap_err(), with));
    // The refusal holds in both directions.
    let other = tracee::Process::open(with).unwrap();
    assert!(is_refusal(&Seized::seize(&other).unwrap_err(), g.pid()));
    g.progress(0, 1000);
    until("rest", || g.process.status().unwrap().tracer_pid == 0);
}

#[test]
fn short_sharers_are_waited_for() {
    let _beside = beside_others();
    for kind in ["short", "spawn"] {
        let g = Guest::start("sharers", &[kind]);
        let (mut good, mut busy) = (0, 0);
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(4) && good < 150 {
            match Seized::seize(&g.process).unwrap().stop(Duration::from_millis(50)) {
                Ok(stopped) => {
                    // No process runs in this memory.
                    let seen = g.word(0);
                    std::thread::sleep(Duration::from_millis(1));
                    assert_eq!(seen, g.word(0), "after {good} stops");
                    stopped.release().unwrap();
                    good += 1;
                }
                Err(StopError::Busy { .. }) => busy += 1,
                Err(e) => panic!("{e}"),
            }
        }
        g.progress(1, 5);
        println!("{kind}: {good} stops, {busy} times busy, {} children", g.word(1));
        assert!(good > 10, "{good}");
    }
}

/// A thread seized before it enters vfork does not wait there as a tracee: the end of its child would then send a
/// SIGCHLD that the process ignores.
#[test]
fn no_thread_in_vfork_is_traced() {
    let _alone = alone();
    let g = Guest::start("states", &["vforks"]);
    let (mut entered, mut traced) = (0, 0);
    for _ in 0..20 {
        until("a vfork", || g.state() == 'D');
        let since = Instant::now();
        while g.state() != 'S' {
            assert!(since.elapsed() < Duration::from_secs(20), "no end of the vfork");
        }
        let seized = Seized::seize(&g.process).unwrap();
        // It enters vfork, as it is not interrupted yet.
        until("its next vfork", || g.state() != 'S');
        entered += usize::from(matches!(g.state(), 't' | 'D'));
        std::thread::scope(|scope| {
            let stop = scope.spawn(|| seized.stop(Duration::from_millis(10)).map(drop));
            let mut seen = 0;
            while !stop.is_finished() {
                let status = g.process.status().unwrap();
                seen = if status.state == 'D' && status.tracer_pid != 0 { seen + 1 } else { 0 };
                traced += usize::from(seen == 2);
            }
        });
        g.progress(0, 1);
    }
    println!("{entered} times entered, {traced} times traced there");
    assert!(entered > 10, "{entered}");
    // The kernel may have been making the child when the thread was seized.
    assert!(traced <= 2, "{traced}");
}
