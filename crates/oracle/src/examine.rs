//! The examination of a process.

use crate::Error;
use crate::atlas::Atlas;
use crate::decoded::State;
use crate::frame::{MAX_FRAMES, World, walk};
use crate::hunt::Hunt;
use crate::lockstep::{Lockstep, Memo, Verdict};
use crate::report::Report;
use crate::twin::{Side, state};
use addr::{Avma, AvmaRange, ReadMemory};
use emit::AddressMap;
use engine::Target;
use std::time::{Duration, Instant};
use tracee::{Pid, Process, Run, Tid, Watched};

/// Limits of an examination.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most functions to examine.
    pub max_functions: usize,
    /// Most pairs of instructions to compare for one function, from its entry on.
    pub max_steps: u64,
    /// Longest time to look for functions.
    pub time: Duration,
    /// Seed of the choice among functions and threads.
    pub seed: u64,
}

/// Returns bytes to write into the twin that runs the clone, before the clone runs. Gets the clone's map and
/// the target's memory. Tests use it to see that wrong clones are found.
pub type Tamper<'a> = &'a dyn Fn(&AddressMap, &dyn ReadMemory) -> Vec<(Avma, Vec<u8>)>;

/// Runs clones against their originals in twins of a live process.
///
/// Call it from a thread that traces nothing else. The process is slowed down while it is watched and twins
/// are made of it. Afterwards it is unchanged. It may end meanwhile.
///
/// # Errors
/// [`Error`] if nothing can be examined.
pub fn examine(pid: Pid, options: &Options) -> Result<Report, Error> {
    examine_tampered(pid, options, &|_, _| Vec::new())
}

/// Does the same as [`examine`], with clones that `tamper` changes.
///
/// # Errors
/// As [`examine`].
pub fn examine_tampered(pid: Pid, options: &Options, tamper: Tamper<'_>) -> Result<Report, Error> {
    let target = Target::open(pid)?;
    let atlas = Atlas::read(&target)?;
    let mut e = Examination {
        process: &target.process,
        hunt: Hunt::new(&atlas, options.seed),
        atlas: &atlas,
        memo: Memo::default(),
        report: Report::default(),
        dead: Vec::new(),
        tamper,
    };
    e.report.clones = atlas.clones().iter().filter(|c| c.newest).count();
    let deadline = Instant::now() + options.time;
    while e.report.examined.len() < options.max_functions && Instant::now() < deadline && !e.hunt.is_over() {
        match e.hunt.thread(e.process).and_then(|tid| e.watch(tid, deadline)) {
            Ok(Some(found)) => e.compare(found, options.max_steps)?,
            Ok(None) | Err(tracee::Error::ThreadGone(_)) => {}
            Err(tracee::Error::Gone(_)) => break,
            Err(e) => return Err(e.into()),
        }
        if e.dead.len() >= BURIAL {
            e.bury();
        }
    }
    e.bury();
    e.report.clones_run = e.memo.run.len();
    e.report.distinct = e.memo.seen.len();
    Ok(e.report)
}

/// Number of dead twins at which the target is made to reap them.
const BURIAL: usize = 32;
/// How many times a thread is watched before another is chosen.
const ROUNDS: usize = 8;

/// Two twins of a thread that is at the entry of a function or of its clone.
struct Found {
    tid: Tid,
    original: Avma,
    clone: Avma,
    twins: (tracee::Twin, tracee::Twin),
}

struct Examination<'a> {
    process: &'a Process,
    atlas: &'a Atlas,
    hunt: Hunt,
    memo: Memo,
    report: Report,
    /// Dead twins that the target has not yet reaped.
    dead: Vec<Pid>,
    tamper: Tamper<'a>,
}

impl Examination<'_> {
    /// Watches one thread for a while. Returns two twins of it if it enters a function that has not been
    /// examined.
    fn watch(&mut self, tid: Tid, deadline: Instant) -> Result<Option<Found>, tracee::Error> {
        let mut thread = Watched::seize(self.process, tid)?;
        let mut last = None;
        for _ in 0..ROUNDS {
            let regs = thread.regs()?;
            let state = state(&regs);
            // The thread is still in the same system call, so watching it would only cost time.
            let idle = regs.syscall().is_some() && last == Some(state);
            if idle || Instant::now() > deadline {
                break;
            }
            last = Some(state);
            self.sample(&state);
            let (entries, window) = self.hunt.next();
            match thread.run_to(&entries, window)? {
                Run::Late => {}
                Run::Ended => break,
                Run::Hit => {
                    let Some(c) = self.atlas.entered_at(thread.regs()?.ip()) else { continue };
                    let clone = c.entered;
                    if self.hunt.is_done(c.original) {
                        continue;
                    }
                    let mut first = thread.twin()?;
                    let second = first.twin()?;
                    return Ok(Some(Found { tid, original: c.original, clone, twins: (first, second) }));
                }
            }
        }
        Ok(None)
    }

    /// Notes the functions on a thread's stack. They are likely to be entered again.
    fn sample(&mut self, state: &State) {
        let (frames, _) = walk(self.atlas, World::Clones, state, self.process, (u64::MAX, MAX_FRAMES));
        let clones = frames.iter().filter_map(|f| self.atlas.clone_of(f.pc));
        self.hunt.meet(clones.map(|c| c.original));
    }

    /// Compares the executions of both twins. The thread itself runs on meanwhile.
    fn compare(&mut self, found: Found, max_steps: u64) -> Result<(), Error> {
        let Found { tid, original, clone, twins: (mut a, mut b) } = found;
        let pid = a.process().pid();
        let cpu = tracee::own_cpu();
        a.pin(cpu)?;
        b.pin(cpu)?;
        let shared = shared(a.process())?;
        let map = self.atlas.clone_of(clone).map(|c| &c.map);
        let wrong = map.map(|m| (self.tamper)(m, self.process)).unwrap_or_default();
        if !wrong.is_empty() {
            self.memo.code.1.clear();
        }
        for (at, bytes) in &wrong {
            b.process().write(*at, bytes)?;
        }
        let sides = (Side::new(a, original, Some(self.atlas))?, Side::new(b, clone, None)?);
        let lockstep = Lockstep::new(self.atlas, &mut self.memo, &mut self.report, sides, shared, original)?;
        match lockstep.run(max_steps)? {
            Verdict::End(end) => *self.report.ends.entry(end.name()).or_default() += 1,
            Verdict::Mismatch(m) => {
                *self.report.ends.entry("mismatch".to_owned()).or_default() += 1;
                self.report.mismatches.push(*m);
            }
        }
        self.dead.push(pid);
        self.report.examined.push(original);
        self.hunt.done(original, tid);
        self.hunt.meet(self.memo.run.iter().copied());
        Ok(())
    }

    /// Makes the target reap its dead twins. A target that has ended has none.
    fn bury(&mut self) {
        let dead = std::mem::take(&mut self.dead);
        if !dead.is_empty() {
            let _ = tracee::with_one_stopped(self.process, |remote| tracee::bury(remote, &dead));
        }
    }
}

/// Returns the writable memory that a twin shares with other processes.
fn shared(process: &Process) -> Result<Vec<AvmaRange>, Error> {
    let maps = image::maps::parse(&process.maps_text()?)?;
    Ok(maps.iter().filter(|m| m.perms.shared && m.perms.w).map(|m| m.range).collect())
}
