//! The daemon's one loop: waits for signals, callers, workers and the next look, and hands each to where it belongs.

use crate::config::{Config, ConfigError};
use crate::machine::{Event, Memory, Moment, Policy, State, Target};
use crate::metrics::Counted;
use crate::server::Server;
use crate::signals::Signals;
use crate::store::{Store, write_lightly};
use crate::watch::{Identity, Seen, Watch};
use crate::worker::Worker;
use engine::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use sd_notify::NotifyState;
use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How often a target's journal is read for what others have done.
const JOURNAL_EVERY: Duration = Duration::from_secs(10);
/// Journals read in one look at most, but for those of new targets.
const JOURNALS_AT_ONCE: usize = 16;
/// A look may cost the part of a CPU that one divided by this is: 0.05%.
const COST: u32 = 2000;
/// The longest time from look to look that this comes to.
const LONGEST: Duration = Duration::from_secs(60);
/// The same for lists of all processes, which cost as much again, and the shortest time between two of them.
const ALL: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(600)];
/// The time between two checks for the kill-switch file. They do not wait for a look at the host.
const SWITCH_EVERY: Duration = Duration::from_millis(250);
/// How long a target that has ended is still told of.
const REMEMBERED: Duration = Duration::from_secs(300);
/// How many of those at most.
const REMEMBERED_AT_MOST: usize = 64;
/// How long workers are waited for at the end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another daemon runs.
    #[error("a daemon is running already: it holds {}", path.display())]
    Running {
        /// The lock file.
        path: PathBuf,
    },
    /// Something it cannot be without.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

/// One target with what belongs to it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: Identity,
    pub(crate) exe: String,
    pub(crate) life: Target,
    pub(crate) build_id: Option<String>,
    journal_at: Option<Moment>,
}

/// The daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) config: Config,
    pub(crate) config_file: PathBuf,
    pub(crate) config_error: Option<String>,
    pub(crate) off: bool,
    pub(crate) quiet: bool,
    pub(crate) targets: BTreeMap<i32, Entry>,
    pub(crate) lost: Vec<Entry>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) counted: Counted,
    pub(crate) store: Store,
    pub(crate) program: PathBuf,
    pub(crate) is_stopping: bool,
    pub(crate) bad_layout: bool,
    watch: Watch,
    known: HashMap<Identity, Memory>,
    kept: Vec<(Identity, Memory)>,
    files_fail: bool,
    started: Instant,
    next_look: Moment,
    /// Journals of targets that are not new are read then.
    next_journals: Moment,
    next_switch: Moment,
}

/// Runs until told to stop.
///
/// # Errors
/// [`DaemonError`]; nothing was done to any target then.
pub fn run(config_file: &Path) -> Result<(), DaemonError> {
    let config = Config::read_or_default(config_file)?;
    let system = |what: String| move |source| DaemonError::System { what, source };
    let socket = config.paths.socket.clone();
    let folder = socket.parent().unwrap_or(Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .map_err(system(format!("make the folder {}", folder.display())))?;
    let _lock = lock(&socket)?;
    let (mut wake, signals) = Signals::catch().map_err(system("catch signals".to_owned()))?;
    let mut server = Server::listen(&socket).map_err(system(format!("listen at {}", socket.display())))?;
    let mut daemon = Daemon::new(config, config_file);
    info!(version = env!("CARGO_PKG_VERSION"), config = %config_file.display(), socket = %socket.display(), "whet watches");
    let watchdog = sd_notify::watchdog_enabled();
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    while !daemon.is_stopping {
        daemon.turn(&mut server, &mut wake, watchdog);
        if signals.wants_reload() {
            daemon.reload();
        }
        daemon.is_stopping |= signals.wants_stop();
        if watchdog.is_some() {
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    }
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    daemon.finish(&mut server, &mut wake);
    info!("whet stops; targets stay as they are");
    Ok(())
}

/// Says that this daemon is the one at this socket, for as long as the file is open.
fn lock(socket: &Path) -> Result<File, DaemonError> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let system =
        |source| DaemonError::System { what: format!("use the lock file {}", path.display()), source };
    let mut options = OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.create(true).truncate(false).write(true).open(&path).map_err(system)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DaemonError::Running { path }),
        Err(TryLockError::Error(source)) => Err(system(source)),
    }
}

impl Daemon {
    fn new(config: Config, config_file: &Path) -> Self {
        let store = Store::new(&config.paths.state);
        let known = store.known();
        Self {
            config_file: config_file.to_owned(),
            config_error: None,
            off: false,
            quiet: false,
            targets: BTreeMap::new(),
            lost: Vec::new(),
            workers: Vec::new(),
            counted: Counted::default(),
            program: PathBuf::from("/proc/self/exe"),
            is_stopping: false,
            bad_layout: std::env::var_os("WHET_BAD_LAYOUT").is_some(),
            watch: Watch::new(Path::new("/proc")),
            known,
            kept: Vec::new(),
            files_fail: false,
            started: Instant::now(),
            next_look: Moment::ZERO,
            next_journals: Moment::ZERO,
            next_switch: Moment::ZERO,
            store,
            config,
        }
    }

    /// The daemon's clock.
    pub(crate) fn now(&self) -> Moment {
        self.started.elapsed()
    }

    /// What is so for all targets, and the targets.
    pub(crate) fn split(&mut self) -> (Policy<'_>, &mut BTreeMap<i32, Entry>) {
        let optimized =
            self.targets.values().filter(|e| e.life.is_optimized() || e.life.job.is_some()).count();
        let most = usize::try_from(self.config.take.max_targets).unwrap_or(usize::MAX);
        let policy =
            Policy { config: &self.config, off: self.off, quiet: self.quiet, full: optimized >= most };
        (policy, &mut self.targets)
    }

    /// Waits for something to happen, and does it.
    fn turn(&mut self, server: &mut Server, wake: &mut UnixStream, watchdog: Option<Duration>) {
        self.wait(server, wake, watchdog);
        while matches!(wake.read(&mut [0; 64]), Ok(1..)) {}
        self.hear_workers();
        server.serve(Instant::now(), |call, may_command| self.answer(call, may_command));
        self.heed_switch();
        if self.now() >= self.next_look && !self.is_stopping {
            self.look();
        }
        self.start_jobs();
        self.keep();
    }

    fn wait(&self, server: &Server, wake: &UnixStream, watchdog: Option<Duration>) {
        let now = Instant::now();
        let until = |at: Instant| at.saturating_duration_since(now);
        let deadlines = self.workers.iter().map(Worker::deadline).chain(server.deadline()).map(until);
        let look = self.next_look.min(self.next_switch).saturating_sub(self.now());
        let timeout = deadlines.chain(watchdog.map(|w| w / 2)).fold(look, Duration::min);
        // Rounded up: a moment too early would only make it come back at once, again and again.
        let timeout = Timespec::try_from(timeout + Duration::from_millis(1)).ok();
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        fds.extend(self.workers.iter().map(|w| PollFd::from_borrowed_fd(w.fd(), PollFlags::IN)));
        fds.extend(server.fds().map(|(fd, writes)| {
            PollFd::from_borrowed_fd(fd, if writes { PollFlags::OUT } else { PollFlags::IN })
        }));
        // Interrupted by a signal, or not possible: what there is to do is looked up in any case.
        if poll(&mut fds, timeout.as_ref()).is_err_and(|e| e != rustix::io::Errno::INTR) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Checks for the kill-switch file, if a check is due, and acts on a change at once.
    fn heed_switch(&mut self) {
        let now = self.now();
        if now < self.next_switch || self.is_stopping {
            return;
        }
        self.next_switch = now + SWITCH_EVERY;
        let was_off = std::mem::replace(&mut self.off, self.config.is_switched_off());
        if self.off {
            self.switch_off();
        }
        if self.off == was_off {
            return;
        }
        warn!(file = %self.config.paths.kill_switch.display(), "the kill-switch file {}", if self.off { "is there: all targets are taken back" } else { "is gone" });
        self.start_jobs();
        // What somebody else has optimized meanwhile is found by its journal.
        self.targets.values_mut().for_each(|e| e.journal_at = None);
        self.next_look = now;
    }

    /// One look at all processes.
    fn look(&mut self) {
        let (began, wanted_at) = (cpu_time(), self.next_look);
        let time = jiff::Zoned::now().time();
        self.quiet = self.config.take.quiet_hours.iter().any(|h| h.contain(time));
        let uptime = clock_gettime(ClockId::Boottime).try_into().unwrap_or(Duration::ZERO);
        let (seen, all) = self.watch.look(&self.config.target, self.now(), uptime);
        self.take_in(seen);
        let cost = cpu_time().saturating_sub(began);
        self.read_journals();
        let now = self.now();
        self.lost.retain(|e| now < e.life.since + REMEMBERED);
        let too_many = self.lost.len().saturating_sub(REMEMBERED_AT_MOST);
        self.lost.drain(..too_many);
        self.counted.looks += 1;
        self.counted.looking += cpu_time().saturating_sub(began);
        let mut pause = cost.saturating_mul(COST);
        // What a list of all costs, only the next one waits for, where those of new processes are to be had in between.
        if all && self.watch.list_all_at(now + pause.clamp(ALL[0], ALL[1])) {
            pause = Duration::ZERO;
        }
        // Unless another look is wanted already.
        if self.next_look == wanted_at {
            self.next_look = now + self.config.take.every.0.max(pause.min(LONGEST));
        }
        if let Some(path) = self.config.paths.metrics.clone() {
            let text = self.metrics();
            let written = write_lightly(&path, text.as_bytes());
            self.tell_of_files(written.map_err(|e| format!("cannot write {}: {e}", path.display())));
        }
    }

    /// Who is there now, and who no longer.
    fn take_in(&mut self, seen: Vec<Seen>) {
        let now = self.now();
        let still: HashMap<i32, (Identity, &str)> =
            seen.iter().map(|s| (s.id.pid, (s.id, s.exe.as_str()))).collect();
        let gone: Vec<i32> = self
            .targets
            .iter()
            .filter(|(pid, e)| still.get(*pid) != Some(&(e.id, e.exe.as_str())))
            .map(|(pid, _)| *pid)
            .collect();
        for pid in gone {
            self.tell(pid, Event::Gone);
            self.lost.extend(self.targets.remove(&pid));
            self.counted.ended += 1;
        }
        for s in seen {
            let pid = s.id.pid;
            if !self.targets.contains_key(&pid) {
                // A child that was forked while a worker had its parent in hand is as the parent was then.
                let parent = self.targets.get(&s.parent).is_some_and(|p| p.life.is_being_changed(now));
                let inherited = || {
                    parent.then(|| Memory { undone_by: Some(crate::machine::By::Whet), ..Memory::default() })
                };
                let memory = self.known.remove(&s.id).or_else(inherited);
                let build_id = engine::build_id(Pid(pid));
                let mut life = Target::new(now, memory);
                life.has_profile = build_id.as_ref().is_some_and(|id| self.store.profile(id).exists());
                self.targets.insert(pid, Entry { id: s.id, exe: s.exe, life, build_id, journal_at: None });
            }
            self.tell(pid, Event::Seen { cpu_percent: s.cpu_percent, age: s.age });
        }
        // What is not there any more will not come back.
        self.known.clear();
    }

    /// What others have done to targets, by their journals.
    fn read_journals(&mut self) {
        let (now, began) = (self.now(), cpu_time());
        let is_due = |at: Moment| now >= at + JOURNAL_EVERY && now >= self.next_journals;
        let mut due: Vec<(Option<Moment>, i32)> = self
            .targets
            .iter()
            .filter(|(_, e)| e.life.job.is_none() && e.journal_at.is_none_or(is_due))
            .map(|(pid, e)| (e.journal_at, *pid))
            .collect();
        due.sort_unstable();
        let new = due.iter().filter(|(at, _)| at.is_none()).count();
        due.truncate(new.max(JOURNALS_AT_ONCE));
        let any = !due.is_empty();
        for (_, pid) in due {
            // Many journals, or one that is slow to be had, do not keep the switch waiting.
            self.heed_switch();
            if let Some(entry) = self.targets.get_mut(&pid) {
                entry.journal_at = Some(now);
            }
            // What cannot be looked at now may be another time, and what somebody works on tells little yet.
            let Ok(report) = engine::status(Some(Pid(pid))) else { continue };
            let target = report.targets.first();
            if target.is_none_or(|t| t.worked_on_by.is_none()) {
                self.tell(pid, Event::Journal(target.map(|t| t.state)));
            }
        }
        if any {
            let pause = cpu_time().saturating_sub(began).saturating_mul(COST).min(LONGEST);
            self.next_journals = self.now() + pause;
        }
    }

    /// Hands an event to a target, and tells the log what came of it.
    pub(crate) fn tell(&mut self, pid: i32, event: Event) {
        let now = self.now();
        let (policy, targets) = self.split();
        let Some(entry) = targets.get_mut(&pid) else { return };
        let before = (entry.life.state, entry.life.verdict);
        entry.life.apply(event, now, &policy);
        if before != (entry.life.state, entry.life.verdict) {
            let (state, reason) = (entry.life.state, entry.life.reason.as_str());
            match state {
                State::Refused => warn!(pid, exe = entry.exe, state = state.word(), "{reason}"),
                _ => info!(pid, exe = entry.exe, state = state.word(), "{reason}"),
            }
        }
    }

    /// Keeps on disk what a later daemon must know, where it has changed.
    pub(crate) fn keep(&mut self) {
        let now: Vec<_> = self
            .targets
            .values()
            .map(|e| (e.id, e.life.memory()))
            .filter(|(_, m)| m.undone_by.is_some() || m.refused)
            .collect();
        if now != self.kept {
            let written = self.store.keep(now.iter().cloned());
            self.kept = now;
            self.tell_of_files(written.map_err(|e| format!("cannot keep what is known of targets: {e}")));
        }
    }

    /// Says once that files cannot be written, and once that they can again.
    fn tell_of_files(&mut self, written: Result<(), String>) {
        match written {
            Ok(()) => self.files_fail = false,
            Err(why) => {
                self.counted.unwritten += 1;
                if !std::mem::replace(&mut self.files_fail, true) {
                    warn!("{why}; the work goes on without");
                }
            }
        }
    }

    /// Reads the configuration anew; a wrong one changes nothing.
    pub(crate) fn reload(&mut self) {
        match Config::read_or_default(&self.config_file) {
            Ok(config) => {
                if config.paths.socket != self.config.paths.socket
                    || config.paths.state != self.config.paths.state
                {
                    warn!("another socket or state folder takes a new start of the daemon");
                }
                let paths = crate::config::Paths {
                    socket: self.config.paths.socket.clone(),
                    state: self.config.paths.state.clone(),
                    ..config.paths
                };
                self.config = Config { paths, ..config };
                self.config_error = None;
                self.watch.look_again();
                self.next_look = self.now();
                info!("the configuration is read anew");
            }
            Err(e) => {
                warn!("{e}; the configuration before stays in force");
                self.config_error = Some(e.to_string());
            }
        }
    }

    /// Lets workers bring their targets in order, and ends.
    fn finish(&mut self, server: &mut Server, wake: &mut UnixStream) {
        let until = Instant::now() + PATIENCE;
        for worker in &mut self.workers {
            worker.interrupt();
        }
        while !self.workers.is_empty() && Instant::now() < until {
            self.wait(server, wake, Some(Duration::from_millis(200)));
            while matches!(wake.read(&mut [0; 64]), Ok(1..)) {}
            self.hear_workers();
            server.serve(Instant::now(), |call, may_command| self.answer(call, may_command));
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
        self.keep();
    }
}

/// CPU time of this thread, which is the daemon.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or(Duration::ZERO)
}
