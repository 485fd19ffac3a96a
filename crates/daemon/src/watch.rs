//! Scans all processes at low cost: of most processes, only the id is listed.
//!
//! A process's program is read when the process is new, in the next two scans, since a forked process soon
//! becomes another program, and rarely later. CPU time is read only for processes on the list. Most scans
//! list new processes alone ([`Roster`]).

use crate::config::Rule;
use crate::roster::Roster;
use crate::states::Moment;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The number of a new process's first scans in which its program is read each time.
const NEW: u32 = 3;
/// After that, the program is read once in this many scans.
const LOOKS_PER_LOOKUP: u32 = 12;
/// The most programs that are read in one scan. The programs of targets and of processes that were just found
/// are always read.
const AT_ONCE: usize = 128;

/// The identity of a process, valid for ever: its id, and its start in clock ticks since boot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Identity {
    /// The process id.
    pub pid: i32,
    /// Its start, in clock ticks since boot.
    pub start: u64,
}

/// A process on the list, as seen in one scan.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    /// Its identity.
    pub id: Identity,
    /// Its parent's process id.
    pub parent: i32,
    /// Its program's path.
    pub exe: String,
    /// User CPU time since the previous scan, percent of one CPU; 0 in the first scan.
    pub cpu_percent: f64,
    /// User CPU time since its start, with that of its children that ended and were waited for. Seconds.
    pub spent: f64,
    /// How long it has been running.
    pub age: Duration,
}

/// An observer of processes, with its results of earlier scans.
#[derive(Debug)]
pub struct Watch {
    proc: PathBuf,
    roster: Roster,
    /// Until this moment only new processes are listed, if this is possible.
    all_at: Moment,
    ticks_per_second: u64,
    looks: u32,
    known: HashMap<i32, Known>,
    text: Vec<u8>,
}

#[derive(Debug)]
struct Known {
    /// How many times its program was read.
    times: u32,
    /// The number of the last scan in which its program was read.
    at: u32,
    target: Option<Followed>,
}

const UNKNOWN: Known = Known { times: 0, at: 0, target: None };

#[derive(Debug)]
struct Followed {
    id: Identity,
    exe: String,
    user: u64,
    when: Moment,
}

/// The fields of `/proc/PID/stat` that are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stat {
    parent: i32,
    user: u64,
    waited: u64,
    start: u64,
}

/// The time of a scan, by the daemon's clock and since boot.
#[derive(Clone, Copy)]
struct Clock {
    now: Moment,
    uptime: Duration,
}

impl Watch {
    /// Creates an observer of `/proc`, or of a folder that stands in for it.
    #[must_use]
    pub fn new(proc: &Path) -> Self {
        Self {
            proc: proc.to_owned(),
            roster: Roster::new(proc),
            all_at: Moment::ZERO,
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            looks: 0,
            known: HashMap::new(),
            text: Vec::new(),
        }
    }

    /// Forgets all processes that are no targets, because the rules have changed.
    pub fn look_again(&mut self) {
        self.known.retain(|_, k| k.target.is_some());
        self.all_at = Moment::ZERO;
    }

    /// Lists new processes alone until the moment `at`, if this is possible. Returns whether it is.
    pub fn list_all_at(&mut self, at: Moment) -> bool {
        self.all_at = at;
        self.roster.can_list_new()
    }

    /// Returns all processes on the list, and whether all processes were listed for this. `now` is the
    /// daemon's clock, `uptime` the time since boot.
    pub fn look(&mut self, rules: &[Rule], now: Moment, uptime: Duration) -> (Vec<Seen>, bool) {
        self.looks = self.looks.wrapping_add(1);
        let new = if now < self.all_at { self.roster.new_ones() } else { None };
        let all = new.is_none();
        match new {
            Some(new) => new.into_iter().for_each(|pid| self.found(pid)),
            None => {
                let pids: HashSet<i32> = self.roster.all().into_iter().collect();
                self.known.retain(|pid, _| pids.contains(pid));
                for pid in pids {
                    self.known.entry(pid).or_insert(UNKNOWN);
                }
            }
        }
        self.known.remove(&i32::try_from(std::process::id()).unwrap_or(0));
        let due = self.due();
        let clock = Clock { now, uptime };
        (due.into_iter().filter_map(|pid| self.one(pid, rules, clock)).collect(), all)
    }

    /// Records a process that was listed as new.
    fn found(&mut self, pid: i32) {
        let known = self.known.entry(pid).or_insert(UNKNOWN);
        // A process that was found in the previous scan is listed once more. If it was read more often, the
        // id belonged to an earlier process, which has ended.
        if known.target.is_none() && known.times > 1 {
            *known = UNKNOWN;
        }
    }

    /// Returns the processes whose program is read in this scan.
    fn due(&self) -> Vec<i32> {
        let mut now = Vec::new();
        let mut later = Vec::new();
        for (&pid, k) in &self.known {
            let passed = self.looks.wrapping_sub(k.at);
            if k.times == 0 || k.target.is_some() {
                now.push(pid);
            } else if k.times < NEW || passed >= LOOKS_PER_LOOKUP {
                // New processes come first, then those whose last reading was longest ago.
                later.push((k.times >= NEW, u32::MAX - passed, pid));
            }
        }
        later.sort_unstable();
        now.extend(later.into_iter().take(AT_ONCE).map(|(.., pid)| pid));
        now
    }

    fn one(&mut self, pid: i32, rules: &[Rule], clock: Clock) -> Option<Seen> {
        let mut known = self.known.remove(&pid)?;
        known.times = known.times.saturating_add(1);
        known.at = self.looks;
        let seen = self.follow(pid, &mut known, rules, clock);
        self.known.insert(pid, known);
        seen
    }

    fn follow(&mut self, pid: i32, known: &mut Known, rules: &[Rule], clock: Clock) -> Option<Seen> {
        let Clock { now, uptime } = clock;
        let before = known.target.take();
        let folder = self.proc.join(pid.to_string());
        let exe = fs::read_link(folder.join("exe")).ok()?;
        let exe = exe.to_string_lossy();
        let exe = exe.strip_suffix(" (deleted)").unwrap_or(&exe);
        if !rules.iter().any(|r| fits(r, exe, &folder)) {
            return None;
        }
        let stat = self.stat(&folder)?;
        let id = Identity { pid, start: stat.start };
        let before = before.filter(|b| b.id == id && b.exe == exe);
        let cpu_percent = before.as_ref().map_or(0.0, |b| {
            let seconds = now.saturating_sub(b.when).as_secs_f64().max(1e-3);
            100.0 * stat.user.saturating_sub(b.user) as f64 / self.ticks_per_second as f64 / seconds
        });
        let started = Duration::from_secs_f64(stat.start as f64 / self.ticks_per_second as f64);
        known.target = Some(Followed { id, exe: exe.to_owned(), user: stat.user, when: now });
        Some(Seen {
            id,
            parent: stat.parent,
            exe: exe.to_owned(),
            cpu_percent,
            spent: stat.user.saturating_add(stat.waited) as f64 / self.ticks_per_second as f64,
            age: uptime.saturating_sub(started),
        })
    }

    fn stat(&mut self, folder: &Path) -> Option<Stat> {
        self.text.clear();
        fs::File::open(folder.join("stat")).ok()?.take(4096).read_to_end(&mut self.text).ok()?;
        stat(&self.text)
    }
}

/// Parses the fields of a `stat` text. Returns `None` for a process that has ended, whether or not its parent
/// has waited for it, and for a malformed text.
fn stat(text: &[u8]) -> Option<Stat> {
    // The command's name is in parentheses and may hold any bytes.
    let end = text.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(text.get(end + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().take(20).collect();
    // Fields are numbered as in proc_pid_stat(5). The first here is the third.
    let field = |n: usize| fields.get(n - 3).copied();
    if matches!(field(3)?, "Z" | "X" | "x") {
        return None;
    }
    Some(Stat {
        parent: field(4)?.parse().ok()?,
        user: field(14)?.parse().ok()?,
        waited: field(16)?.parse().ok()?,
        start: field(22)?.parse().ok()?,
    })
}

fn fits(rule: &Rule, exe: &str, folder: &Path) -> bool {
    let by_exe = rule.exe.as_ref().is_none_or(|wanted| {
        if wanted.starts_with('/') { wanted == exe } else { exe.rsplit('/').next() == Some(wanted) }
    });
    by_exe
        && rule.cgroup.as_ref().is_none_or(|wanted| {
            let text = fs::read_to_string(folder.join("cgroup")).unwrap_or_default();
            let wanted = wanted.trim_end_matches('/');
            text.lines().filter_map(|l| l.splitn(3, ':').nth(2)).any(|path| {
                path.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Fake(tempfile::TempDir);

    impl Fake {
        fn put(&self, pid: i32, exe: &str, user: u64, start: u64) {
            let folder = self.0.path().join(pid.to_string());
            let _ = fs::create_dir(&folder);
            let _ = fs::remove_file(folder.join("exe"));
            symlink(exe, folder.join("exe")).unwrap();
            let zeros = "0 ".repeat(7);
            fs::write(
                folder.join("stat"),
                format!("{pid} (a) b) S 1 {zeros}0 0 {user} 5 7 0 20 0 1 0 {start} 0 0\n"),
            )
            .unwrap();
            fs::write(folder.join("cgroup"), "0::/system.slice/mariadb.service\n").unwrap();
        }
    }

    fn rule(exe: Option<&str>, cgroup: Option<&str>) -> Rule {
        Rule { exe: exe.map(str::to_owned), cgroup: cgroup.map(str::to_owned) }
    }

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn processes_on_the_list_are_followed() {
        let fake = Fake(tempfile::tempdir().unwrap());
        let mut watch = Watch::new(fake.0.path());
        watch.ticks_per_second = 100;
        let rules = [rule(Some("server"), None)];
        fake.put(10, "/usr/bin/server", 500, 1000);
        fake.put(11, "/usr/bin/other", 500, 1000);
        let (seen, _) = watch.look(&rules, S, 20 * S);
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].id, seen[0].parent), (Identity { pid: 10, start: 1000 }, 1));
        assert_eq!((seen[0].cpu_percent, seen[0].age, seen[0].spent), (0.0, 10 * S, 5.07));
        fake.put(10, "/usr/bin/server (deleted)", 650, 1000);
        let (seen, _) = watch.look(&rules, 2 * S, 21 * S);
        assert_eq!(seen[0].cpu_percent, 150.0);
        // A forked process soon becomes another program.
        fake.put(11, "/usr/bin/server", 0, 1000);
        assert_eq!(watch.look(&rules, 3 * S, 22 * S).0.len(), 2);
        // Another process has the same id.
        fake.put(10, "/usr/bin/server", 9000, 2200);
        let (again, _) = watch.look(&rules, 4 * S, 23 * S);
        let again = again.iter().find(|s| s.id.pid == 10).unwrap();
        assert_eq!((again.id.start, again.cpu_percent), (2200, 0.0));
        // One process becomes another program, the other ends.
        fake.put(10, "/usr/bin/other", 9000, 2200);
        assert_eq!(watch.look(&rules, 5 * S, 24 * S).0.len(), 1);
        fs::remove_dir_all(fake.0.path().join("11")).unwrap();
        assert_eq!(watch.look(&rules, 6 * S, 25 * S), (Vec::new(), true));
        assert_eq!(watch.known.len(), 1);
        // The first process becomes a target again, later than a new process would be found.
        for i in 0..20 {
            watch.look(&rules, (7 + i) * S, 30 * S);
        }
        fake.put(10, "/usr/bin/server", 9000, 2200);
        let found =
            (0..LOOKS_PER_LOOKUP).filter(|_| !watch.look(&rules, 40 * S, 40 * S).0.is_empty()).count();
        assert!(found > 0);
    }

    /// Where processes begin and end all the time, a new process still becomes a target soon.
    #[test]
    fn nobody_waits_for_ever_among_many_new_processes() {
        let fake = Fake(tempfile::tempdir().unwrap());
        let mut watch = Watch::new(fake.0.path());
        let rules = [rule(Some("server"), None)];
        let mut found = None;
        for look in 0..4 {
            for i in 0..200 {
                fake.put(1000 + 200 * look + i, "/bin/sh", 0, 1);
            }
            if look == 1 {
                fake.put(1199, "/usr/bin/server", 0, 1);
            }
            let (seen, _) = watch.look(&rules, look.unsigned_abs() * S, 20 * S);
            found = found.or(seen.first().map(|s| s.id.pid));
        }
        assert_eq!(found, Some(1199));
    }

    #[test]
    fn rules_match_programs_and_control_groups() {
        let fake = Fake(tempfile::tempdir().unwrap());
        fake.put(10, "/usr/bin/server", 0, 1);
        let folder = fake.0.path().join("10");
        let fit = |exe, cgroup| fits(&rule(exe, cgroup), "/usr/bin/server", &folder);
        assert!(fit(Some("server"), None) && fit(Some("/usr/bin/server"), None));
        assert!(!fit(Some("serve"), None) && !fit(Some("/bin/server"), None));
        assert!(fit(None, Some("/system.slice")) && fit(None, Some("/system.slice/mariadb.service")));
        assert!(!fit(None, Some("/system.slice/maria")) && !fit(Some("other"), Some("/system.slice")));
    }

    #[test]
    fn any_stat_text_is_parsed_or_rejected() {
        assert_eq!(stat(b"7 (x) Z 1 2 3"), None);
        assert_eq!(stat(b""), None);
        arbtest::arbtest(|u| {
            let text: Vec<u8> = u.arbitrary()?;
            let _ = stat(&[b"1 (x) ", &text[..]].concat());
            Ok(())
        })
        .budget_ms(200);
    }
}
