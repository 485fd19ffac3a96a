//! Counts events of a live process: this test program, started once more as a guest with known system calls.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use perf::{Counted, Counter, Error};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const GUEST: &str = "PERF_COUNTING_GUEST";
/// How many system calls each of three threads and one child process makes for one byte on standard input.
const CALLS: u64 = 20_000;

fn call() {
    for _ in 0..CALLS {
        std::hint::black_box(std::os::unix::process::parent_id());
    }
}

/// Not a test by itself: the guest's code.
#[test]
fn guest() {
    match std::env::var(GUEST).as_deref() {
        Ok("child") => call(),
        Ok(_) => {
            let (wake, woken) = std::sync::mpsc::channel::<()>();
            let (done, all_done) = std::sync::mpsc::channel::<()>();
            std::thread::spawn(move || {
                while woken.recv().is_ok() {
                    call();
                    done.send(()).unwrap();
                }
            });
            let mut byte = [0];
            while std::io::stdin().read_exact(&mut byte).is_ok() {
                wake.send(()).unwrap();
                call();
                std::thread::spawn(call).join().unwrap();
                all_done.recv().unwrap();
                let exe = std::env::current_exe().unwrap();
                let mut child = Command::new(exe);
                child.args(["--exact", "guest"]).env(GUEST, "child").stdin(Stdio::null());
                assert!(child.stdout(Stdio::null()).status().unwrap().success());
                // Written to standard error: the harness holds back the standard output of tests.
                std::io::stderr().write_all(&byte).unwrap();
            }
        }
        Err(_) => {}
    }
}

/// A guest, ended when dropped.
struct Guest(Child);

impl Guest {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "guest", "--nocapture"]).env(GUEST, "parent");
        Self(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    fn work(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b".").unwrap();
        self.0.stderr.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn system_calls_of_threads_but_not_of_children_are_counted() {
    let mut guest = Guest::start();
    guest.work();
    let mut counter = match Counter::open(guest.pid(), Counted::SystemCalls) {
        Err(Error::Denied { .. }) => return eprintln!("skipped: not allowed to count here"),
        other => other.unwrap(),
    };
    for _ in 0..2 {
        let before = counter.read().unwrap();
        guest.work();
        let after = counter.read().unwrap();
        let counted = after.counted - before.counted;
        // The start of a thread and a process adds some; the child's own calls would add as many as a
        // thread's.
        assert!((3 * CALLS..3 * CALLS + CALLS / 10).contains(&counted), "{counted}");
    }
}

#[test]
fn the_clock_counts_cpu_time() {
    let mut guest = Guest::start();
    let mut counter = Counter::open(guest.pid(), Counted::TaskClock).unwrap();
    guest.work();
    let busy = counter.read().unwrap();
    assert!(busy.counted > 100_000 && busy.running_ns <= busy.enabled_ns, "{busy:?}");
    std::thread::sleep(Duration::from_millis(20));
    let idle = counter.read().unwrap().counted - busy.counted;
    assert!(idle < 5_000_000, "{idle} ns of a guest that waits");
}

#[test]
fn missing_processes_and_events_give_named_errors() {
    assert!(matches!(Counter::open(i32::MAX, Counted::TaskClock), Err(Error::Gone { .. })));
    // Cycles can be counted exactly where they can be sampled.
    let cycles = Counter::open(Guest::start().pid(), Counted::Cycles);
    match cycles {
        Err(Error::Unavailable(_)) => assert!(!perf::capability().cycles),
        other => assert!(other.is_ok() && perf::capability().cycles, "{other:?}"),
    }
}
