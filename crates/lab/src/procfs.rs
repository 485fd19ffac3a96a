//! CPU time, as the kernel reports it: in /proc, and by the clocks of processes.

use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use std::fs;
use std::time::Duration;

/// CPU time of the whole machine between two readings, in seconds.
#[derive(Clone, Copy, Default, Debug)]
pub struct CpuTimes {
    /// CPUs were idle, whether a disk request was outstanding or not.
    pub idle: f64,
    /// The part of `idle` in which a disk request was outstanding.
    pub iowait: f64,
    /// The hypervisor ran other guests.
    pub steal: f64,
    /// All CPU time.
    pub capacity: f64,
}

/// The machine's CPU time since its start, in clock ticks: user nice system idle iowait irq softirq steal. The
/// guest times that follow in the file are part of the first two already.
#[derive(Clone, Copy, Default, Debug)]
pub struct CpuTicks([u64; 8]);

impl CpuTicks {
    /// Reads the first line of /proc/stat. Zeros if the file cannot be read.
    pub fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Parses /proc/stat, of which only the first line is needed.
    pub fn parse(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let mut fields = line.split_whitespace().skip(1).map(|w| w.parse().unwrap_or(0));
        Self(std::array::from_fn(|_| fields.next().unwrap_or(0)))
    }

    /// Returns the time spent since `before`. Whole ticks are subtracted, so that a part is never more than the
    /// whole. (The kernel's counts of idle time may go back a little: proc(5).)
    pub fn since(&self, before: &Self) -> CpuTimes {
        let mut spent = self.0;
        for (ticks, earlier) in spent.iter_mut().zip(before.0) {
            *ticks = ticks.saturating_sub(earlier);
        }
        let [_, _, _, idle, iowait, _, _, steal] = spent;
        CpuTimes {
            idle: seconds(idle + iowait),
            iowait: seconds(iowait),
            steal: seconds(steal),
            capacity: seconds(spent.iter().sum()),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "ticks are few")]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64
}

/// The CPU seconds of a process until now, up to the last tick of each CPU on which it runs.
#[derive(Clone, PartialEq, Debug)]
pub enum Spent {
    /// Of all its threads, those that have ended included.
    Clock(f64),
    /// Of each thread that lives, by its id.
    Threads(Vec<(i32, f64)>),
}

/// Returns the CPU seconds of a thread from a line of grep: its file, a colon and its schedstat.
pub fn thread_cpu(line: &str) -> Option<(i32, f64)> {
    let (file, schedstat) = line.split_once("/schedstat:")?;
    let ns: f64 = schedstat.split(' ').next()?.parse().ok()?;
    Some((file.rsplit_once('/')?.1.parse().ok()?, ns / 1e9))
}

/// Returns the CPU seconds of a process by its clock, which has the threads that have ended, and is one moment
/// for all. `None` if the process is gone.
pub fn process_cpu(pid: i32) -> Option<f64> {
    let now = clock_getcpuclockid(Pid::from_raw(pid)).ok()?.now().ok()?;
    Some(Duration::from(now).as_secs_f64())
}

/// A part of the status of a process.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// When it began, in the kernel's clock. With the pid it identifies a process.
    pub begun: u64,
    /// User CPU seconds, in the kernel's coarse split.
    pub user: f64,
    /// System CPU seconds, likewise.
    pub system: f64,
}

impl Stat {
    /// Parses the stat of a process. `None` if it is cut off.
    pub fn parse(stat: &str) -> Option<Self> {
        // The name in the second field may hold anything. The text behind its last parenthesis is regular, and
        // begins with the third field.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3);
        let ticks = |number| field(number)?.parse().ok();
        Some(Self { begun: ticks(22)?, user: seconds(ticks(14)?), system: seconds(ticks(15)?) })
    }
}

/// Returns a process and all its descendants that exist now.
pub fn family(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(parent) = all.get(next) {
        let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        let children: Vec<i32> = tasks
            .flat_map(|task| {
                let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                text.split_whitespace().filter_map(|w| w.parse().ok()).collect::<Vec<i32>>()
            })
            .collect();
        all.extend(children);
        next += 1;
    }
    all
}

/// Returns whether a process has not ended, from its stat. That of a process that does not exist is empty.
pub fn is_alive(stat: &str) -> bool {
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Returns the memory in KiB from the text of /proc/meminfo, or 0 if it does not say.
pub fn memory_kib(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    line.and_then(|l| l.split_whitespace().next()).and_then(|w| w.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::{ClockId, clock_gettime};
    use std::sync::mpsc;

    #[test]
    fn guest_time_is_not_counted_twice() {
        let t =
            CpuTicks::parse("cpu  100 0 50 800 50 0 0 25 100 0\ncpu0 1 2 3\n").since(&CpuTicks::default());
        let ticks = [t.idle, t.iowait, t.steal, t.capacity].map(|s| s / seconds(1));
        assert!(ticks.iter().zip([850.0, 50.0, 25.0, 1025.0]).all(|(a, b)| (a - b).abs() < 1e-9), "{t:?}");
    }

    #[test]
    fn a_wait_for_a_disk_is_idle_time() {
        for ticks in 0..1000 {
            let before = CpuTicks([7, 0, 5, 300 + ticks, ticks, 0, 0, 0]);
            let t = CpuTicks([7, 0, 5, 300 + ticks, 3 * ticks, 0, 0, 0]).since(&before);
            assert!(t.iowait <= t.idle && t.idle <= t.capacity, "{t:?}");
        }
    }

    #[test]
    fn this_process_uses_time_and_lives() {
        let me = i32::try_from(std::process::id()).unwrap();
        let begin = std::time::Instant::now();
        while begin.elapsed().as_millis() < 50 {
            std::hint::spin_loop();
        }
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(
            is_alive(&stat)
                && !is_alive("")
                && process_cpu(me).unwrap() > 0.0
                && Stat::parse(&stat).unwrap().begun > 0
        );
    }

    #[test]
    fn a_thread_and_its_time_are_read_from_a_line_of_grep() {
        assert_eq!(thread_cpu("/proc/7/task/12/schedstat:2500000000 34 5"), Some((12, 2.5)));
        assert_eq!(thread_cpu("grep: /proc/7/task/12/schedstat: No such process"), None);
        assert_eq!(thread_cpu(""), None);
    }

    #[test]
    fn the_time_of_a_thread_that_ends_is_kept() {
        let me = i32::try_from(std::process::id()).unwrap();
        let (ready, wait) = mpsc::channel();
        let (end, may_end) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            while Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap().as_millis() < 200 {
                std::hint::spin_loop();
            }
            ready.send(rustix::thread::gettid()).unwrap();
            may_end.recv().unwrap();
        });
        let tid = wait.recv().unwrap();
        let before = process_cpu(me).unwrap();
        end.send(()).unwrap();
        thread.join().unwrap();
        // The thread is listed until the kernel has done with it.
        while std::path::Path::new(&format!("/proc/self/task/{tid}")).exists() {
            std::thread::yield_now();
        }
        assert!(process_cpu(me).unwrap() >= before);
    }

    #[test]
    fn a_family_has_children_and_their_children() {
        let me = i32::try_from(std::process::id()).unwrap();
        let script = "sleep 60 & echo; wait";
        let mut shell = std::process::Command::new("sh");
        let mut shell = shell.args(["-c", script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        // The line comes when the child of the shell runs.
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let of_shell = family(i32::try_from(shell.id()).unwrap());
        let mine = family(me);
        for pid in &of_shell[1..] {
            assert!(std::process::Command::new("kill").arg(pid.to_string()).status().unwrap().success());
        }
        shell.wait().unwrap();
        assert_eq!(of_shell.len(), 2);
        assert!(mine[0] == me && of_shell.iter().all(|pid| mine.contains(pid)), "{mine:?} {of_shell:?}");
    }
}
