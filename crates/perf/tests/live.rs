//! Samples a live process: this test program, started once more as a guest that spins.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use perf::{Options, Sample, Sampler, Source, capability};
use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const GUEST: &str = "PERF_TEST_GUEST";

/// Not a test by itself: the guest's code. One thread spins, and `births` more are created, one each 100 ms.
#[test]
fn guest() {
    let Ok(births) = std::env::var(GUEST) else { return };
    let spin = || {
        let mut x = 1u64;
        loop {
            x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    };
    for _ in 0..births.parse().unwrap() {
        std::thread::spawn(spin);
        std::thread::sleep(Duration::from_millis(100));
    }
    spin();
}

/// A guest, ended when dropped.
struct Guest(Child);

impl Guest {
    fn start(births: u32) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "guest", "--nocapture"])
            .env(GUEST, births.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Wait until its threads run: the harness has one, the test another.
        let guest = Self(child);
        let begun = Instant::now();
        while guest.tasks().len() < 2 && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        guest
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    fn tasks(&self) -> Vec<String> {
        let dir = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        dir.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Returns the CPU time of all its threads so far, in nanoseconds.
    fn cpu_ns(&self) -> u64 {
        let read = |tid: String| {
            let text = fs::read_to_string(format!("/proc/{}/task/{tid}/schedstat", self.pid())).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        };
        self.tasks().into_iter().filter_map(read).sum()
    }

    /// Moves all its threads to the first CPU that this process may use.
    fn stay_on_one_cpu(&self) {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
        let first = list.split([',', '-']).next().unwrap();
        let done = Command::new("taskset")
            .args(["-a", "-c", "-p", first, &self.pid().to_string()])
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(done.success());
    }

    /// Returns its executable mappings.
    fn code(&self) -> Vec<(u64, u64)> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let executable = maps.lines().filter(|l| l.split(' ').nth(1).unwrap().contains('x'));
        let hex = |s| u64::from_str_radix(s, 16).unwrap();
        executable
            .map(|l| {
                let (start, end) = l.split(' ').next().unwrap().split_once('-').unwrap();
                (hex(start), hex(end))
            })
            .collect()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a sample without branches, which outlives the kernel's buffer.
fn kept(s: Sample<'_>) -> Sample<'static> {
    Sample { ip: s.ip, pid: s.pid, tid: s.tid, time_ns: s.time_ns, branches: Default::default() }
}

fn collect(sampler: &mut Sampler, time: Duration) -> Vec<Sample<'static>> {
    let mut samples = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < time {
        sampler.poll(Duration::from_millis(50)).unwrap();
        sampler.drain(|s| samples.push(kept(s))).unwrap();
    }
    samples
}

#[test]
fn threads_old_and_new_are_sampled() {
    let guest = Guest::start(3);
    let options = Options { hz: 2000, ..Options::default() };
    let before = guest.cpu_ns();
    let mut sampler = Sampler::open(guest.pid(), &options).unwrap();
    let mut samples = collect(&mut sampler, Duration::from_secs(2));
    sampler.stop().unwrap();
    let used = guest.cpu_ns() - before;
    sampler.drain(|s| samples.push(kept(s))).unwrap();

    let mut by_thread: BTreeMap<i32, u64> = BTreeMap::new();
    for s in &samples {
        *by_thread.entry(s.tid).or_default() += 1;
    }
    eprintln!("{by_thread:?} in {used} ns, {} threads at start", sampler.threads());
    // Three new threads and their creator; the harness's own thread sleeps.
    assert_eq!(by_thread.values().filter(|&&n| n > 20).count(), 4);
    assert_eq!(sampler.lost(), 0);
    if sampler.source() == Source::CpuClock {
        let expected = used / (1_000_000_000 / 2000);
        let got = samples.len() as u64;
        // If the host takes the CPU away for a while, that counts as use, but many ticks arrive as one.
        assert!(got * 2 > expected, "{got} of {expected}");
        assert!(got * 100 < expected * 105, "{got} of {expected}");
    }
    let code = guest.code();
    for s in &samples {
        assert!(code.iter().any(|&(a, b)| (a..b).contains(&s.ip.0)), "{:?}", s.ip);
    }
    // No samples arrive after the stop.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(sampler.drain(|_| {}).unwrap(), 0);
}

#[test]
fn samples_without_room_are_counted() {
    let guest = Guest::start(0);
    // Each CPU has its own buffer and reports its losses when the guest is next sampled there.
    guest.stay_on_one_cpu();
    let options = Options { hz: 4000, pages: 1, ..Options::default() };
    let mut small = Sampler::open(guest.pid(), &options).unwrap();
    // If the host takes the CPU away, both samplers lose the same samples.
    let mut large = Sampler::open(guest.pid(), &Options { pages: 128, ..options }).unwrap();
    // 4 KiB hold 102 samples.
    let mut taken = 0;
    let begun = Instant::now();
    while taken < 1000 && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
        taken += large.drain(|_| {}).unwrap();
    }
    let first = small.drain(|_| {}).unwrap();
    assert!((50..=102).contains(&first), "{first}");
    // The next sample that finds room comes with the count of lost samples.
    let mut kept = first;
    while small.lost() == 0 && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
        kept += small.drain(|_| {}).unwrap();
    }
    taken += large.drain(|_| {}).unwrap();
    let counted = kept + small.lost();
    let near = (taken * 9 / 10 - 20)..=(taken * 11 / 10 + 20);
    assert!(near.contains(&counted), "{counted} of {taken}, {} of them lost", small.lost());
}

#[test]
fn branches_are_sampled_if_available() {
    let guest = Guest::start(0);
    let options = Options { branches: true, ..Options::default() };
    let mut sampler = Sampler::open(guest.pid(), &options).unwrap();
    let offered = capability();
    assert_eq!(sampler.has_branches(), offered.branch_stacks.is_some(), "{offered:?}");
    assert_eq!(Some(sampler.source()), offered.branch_stacks.or(offered.source()));
    let (mut samples, mut branches) = (0, 0);
    let begun = Instant::now();
    while samples < 100 && begun.elapsed() < Duration::from_secs(60) {
        sampler.poll(Duration::from_millis(50)).unwrap();
        sampler
            .drain(|s| {
                samples += 1;
                branches += s.branches.count();
            })
            .unwrap();
    }
    assert!(samples >= 100, "{samples}");
    assert_eq!(branches > 0, sampler.has_branches());
}

/// A shell spins in one child after the other. Children are sampled for a family, and only for a family.
#[test]
fn children_of_a_family_are_sampled() {
    let spin = "while :; do (j=0; while [ $j -lt 50000 ]; do j=$((j+1)); done; :); done";
    let mut parent = Guest(Command::new("sh").args(["-c", spin]).spawn().unwrap());
    let (pid, options) = (parent.pid(), Options { pages: 16, ..Options::default() });
    let samples = |sampler: &mut Sampler, enough: usize| {
        let (mut of_children, begun) = (0, Instant::now());
        while of_children < enough && begun.elapsed() < Duration::from_secs(30) {
            sampler.poll(Duration::from_millis(50)).unwrap();
            sampler.drain(|s| of_children += usize::from(s.pid != pid)).unwrap();
        }
        of_children
    };
    assert!(samples(&mut Sampler::open_family(&[pid, i32::MAX], &options).unwrap(), 100) >= 100);
    let mut alone = Sampler::open(pid, &options).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        alone.poll(Duration::from_millis(50)).unwrap();
        alone.drain(|s| assert_eq!(s.pid, pid)).unwrap();
    }
    parent.0.kill().unwrap();
    parent.0.wait().unwrap();
    assert!(matches!(Sampler::open_family(&[i32::MAX], &options), Err(perf::Error::Gone { .. })));
}

#[test]
fn a_process_that_ends_is_no_error() {
    let mut guest = Guest::start(1);
    let mut sampler = Sampler::open(guest.pid(), &Options::default()).unwrap();
    collect(&mut sampler, Duration::from_millis(200));
    guest.0.kill().unwrap();
    guest.0.wait().unwrap();
    // Descriptors that have hung up do not turn the wait into spinning.
    sampler.poll(Duration::from_millis(10)).unwrap();
    sampler.drain(|_| {}).unwrap();
    let begun = Instant::now();
    for _ in 0..4 {
        sampler.poll(Duration::from_millis(50)).unwrap();
    }
    assert!(begun.elapsed() > Duration::from_millis(140), "{:?}", begun.elapsed());
    sampler.stop().unwrap();
}

#[test]
fn threads_created_while_opening_are_sampled_once() {
    // Opened again and again while threads are created: no thread may have more samples than its CPU time
    // allows.
    let guest = Guest::start(20);
    for _ in 0..8 {
        let mut sampler =
            Sampler::open(guest.pid(), &Options { hz: 2000, pages: 16, ..Options::default() }).unwrap();
        let begun = Instant::now();
        let samples = collect(&mut sampler, Duration::from_millis(150));
        sampler.stop().unwrap();
        let most = u64::try_from(begun.elapsed().as_millis()).unwrap() * 2 * 11 / 10 + 10;
        let mut by_thread: BTreeMap<i32, u64> = BTreeMap::new();
        for s in &samples {
            *by_thread.entry(s.tid).or_default() += 1;
        }
        assert!(by_thread.values().all(|&n| n <= most), "{by_thread:?} {most}");
    }
}
