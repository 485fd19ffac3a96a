//! The daemon's only loop: waits for signals, callers, workers and the next look, and handles each.

use crate::config::{Config, ConfigError};
use crate::exchange::Exchange;
use crate::families::{self, Members, Unit};
use crate::machine::{Policy, Target};
use crate::metrics::Counted;
use crate::pace::{self, Pace};
use crate::rollout::Stops;
use crate::server::Server;
use crate::signals::Signals;
use crate::states::{By, Event, Memory, Moment, State};
use crate::store::{Store, WriteErrors, write_lightly};
use crate::target_metrics::Held;
use crate::warm::Origin;
use crate::watch::{Identity, Seen, Watch};
use crate::worker::Worker;
use engine::{Pid, Tally};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use sd_notify::NotifyState;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The interval at which a target's journal is read for changes by other commands.
const JOURNAL_EVERY: Duration = Duration::from_secs(10);
/// The most journals that are read in one look. The journals of new targets are always read.
const JOURNALS_AT_ONCE: usize = 16;
/// The most journals of members of families that are read in one look.
const MEMBERS_AT_ONCE: usize = 64;
/// The shortest and the longest pause between two lists of all processes. These lists have a limit of their own.
const ALL: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(600)];
/// The interval of checks for the kill-switch file. The checks do not wait for a look at the host.
const SWITCH_EVERY: Duration = Duration::from_millis(250);
/// How long a target that has ended is still reported.
const REMEMBERED: Duration = Duration::from_secs(300);
/// The most ended targets that are reported.
const REMEMBERED_AT_MOST: usize = 64;
/// How long the daemon waits for its workers when it ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// The reason why the daemon cannot run.
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
    /// The system refused something that the daemon needs.
    #[error("cannot {what}: {source}")]
    System {
        /// The action that failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// One target, and the daemon's data about it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: Identity,
    pub(crate) exe: String,
    pub(crate) life: Target,
    /// Its family, of which it is the parent.
    pub(crate) members: Members,
    pub(crate) build_id: Option<String>,
    /// The profile of another build of its program that was kept when it was first seen.
    pub(crate) other_build: Option<PathBuf>,
    /// The origin of the profile from which it was started warm.
    pub(crate) warm: Option<Origin>,
    /// The content of its journal at the last reading; `None` without a journal.
    pub(crate) held: Option<Held>,
    /// Its stops by this daemon.
    pub(crate) stops: Tally,
    /// When its journal was last read; `None` if it is to be read with the next look.
    pub(crate) journal_at: Option<Moment>,
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
    pub(crate) exchange: Exchange,
    pub(crate) stops: Stops,
    pub(crate) program: PathBuf,
    pub(crate) is_stopping: bool,
    pub(crate) bad_layout: bool,
    watch: Watch,
    known: HashMap<Identity, Memory>,
    kept: Vec<(Identity, Memory)>,
    errors: WriteErrors,
    started: Instant,
    pace: Pace,
    next_look: Moment,
    /// Before this moment, only the journals of new targets are read.
    next_journals: Moment,
    pub(crate) next_switch: Moment,
}

/// Runs until a signal or a call stops the daemon.
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
        if signals.take_reload_request() {
            daemon.reload();
        }
        daemon.is_stopping |= signals.is_stop_requested();
        if watchdog.is_some() {
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    }
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    daemon.finish(&mut server, &mut wake);
    info!("whet stops; targets stay as they are");
    Ok(())
}

/// Locks the socket for this daemon, for as long as the returned file is open.
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
        let exchange = Exchange::new(&config.fleet, &store);
        Self {
            exchange,
            stops: Stops::default(),
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
            errors: WriteErrors::default(),
            started: Instant::now(),
            pace: Pace::default(),
            next_look: Moment::ZERO,
            next_journals: Moment::ZERO,
            next_switch: Moment::ZERO,
            store,
            config,
        }
    }

    /// Returns the daemon's clock: the time since its start.
    pub(crate) fn now(&self) -> Moment {
        self.started.elapsed()
    }

    /// Returns the conditions that hold for all targets, and the targets.
    pub(crate) fn split(&mut self) -> (Policy<'_>, &mut BTreeMap<i32, Entry>) {
        let optimized =
            self.targets.values().filter(|e| e.life.is_optimized() || e.life.job.is_some()).count();
        let most = usize::try_from(self.config.take.max_targets).unwrap_or(usize::MAX);
        let policy =
            Policy { config: &self.config, off: self.off, quiet: self.quiet, full: optimized >= most };
        (policy, &mut self.targets)
    }

    /// Waits for an event, and handles it.
    fn turn(&mut self, server: &mut Server, wake: &mut UnixStream, watchdog: Option<Duration>) {
        self.wait(server, wake, watchdog);
        while matches!(wake.read(&mut [0; 64]), Ok(1..)) {}
        self.poll_workers();
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
        // The timeout is rounded up: if the wait ended a moment too early, the loop would only wait again,
        // many times.
        let timeout = Timespec::try_from(timeout + Duration::from_millis(1)).ok();
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        fds.extend(self.workers.iter().map(|w| PollFd::from_borrowed_fd(w.fd(), PollFlags::IN)));
        fds.extend(server.fds().map(|(fd, writes)| {
            PollFd::from_borrowed_fd(fd, if writes { PollFlags::OUT } else { PollFlags::IN })
        }));
        // If the wait was interrupted or failed, the loop looks for work all the same.
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
        warn!(file = %self.config.paths.kill_switch.display(), "the kill-switch file {}", if self.off { "exists: all targets are undone" } else { "is removed" });
        self.start_jobs();
        // Targets that another command has optimized meanwhile are found by their journals.
        for entry in self.targets.values_mut() {
            entry.journal_at = None;
            entry.members.read_again();
        }
        self.next_look = now;
    }

    /// Looks at the processes once, reads journals that are due, and writes the metrics file.
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
        self.counted.looked_at = jiff::Timestamp::now().as_second();
        // The cost of a list of all processes delays only the next such list, if new processes can be listed
        // alone in between.
        let is_apart = all && self.watch.list_all_at(now + pace::after(cost).clamp(ALL[0], ALL[1]));
        let cost = if is_apart { Duration::ZERO } else { cost };
        let urgent = self.targets.values().any(|e| e.life.is_undecided());
        let pause = self.pace.pause(cost, self.config.take.every.0, urgent);
        // A look that was requested meanwhile keeps its time.
        if self.next_look == wanted_at {
            self.next_look = now + pause;
        }
        self.exchange_profiles();
        if let Some(path) = self.config.paths.metrics.clone() {
            let text = crate::exposition::prometheus(&self.metrics());
            let written = write_lightly(&path, text.as_bytes());
            self.count_file_errors(written.map_err(|e| format!("cannot write {}: {e}", path.display())));
        }
    }

    /// Updates the targets: adds new processes, and removes processes that have ended or become other
    /// programs.
    fn take_in(&mut self, seen: Vec<Seen>) {
        let now = self.now();
        let still: HashMap<Identity, String> = seen.iter().map(|s| (s.id, s.exe.clone())).collect();
        // A process that a worker changes joins its parent's family afterwards.
        let is_apart = |pid| self.targets.get(&pid).is_some_and(|e| e.life.job.is_some());
        let units = families::group(seen, |pid| engine::kind(Pid(pid)), is_apart);
        // A former member was undone with its family.
        let mut former: HashMap<Identity, Memory> = HashMap::new();
        for entry in self.targets.values() {
            let memory = Memory { refused: false, ..entry.life.memory() };
            former.extend(entry.members.ids().map(|id| (id, memory.clone())));
        }
        let heads: HashSet<i32> = units.iter().map(|u| u.head.id.pid).collect();
        let is_there = |e: &Entry| still.get(&e.id) == Some(&e.exe);
        let gone: Vec<i32> = self
            .targets
            .iter()
            .filter(|(pid, e)| !is_there(e) || !heads.contains(*pid))
            .map(|(pid, _)| *pid)
            .collect();
        for pid in gone {
            if self.targets.get(&pid).is_some_and(is_there) {
                info!(pid, "it belongs to the family of its parent");
                self.targets.remove(&pid);
                continue;
            }
            self.apply(pid, Event::Gone);
            self.lost.extend(self.targets.remove(&pid));
            self.counted.ended += 1;
        }
        for unit in units {
            self.take_in_one(&unit, &mut former, now);
        }
        // Recorded processes that were not seen have ended and do not come back.
        self.known.clear();
    }

    fn take_in_one(&mut self, unit: &Unit, former: &mut HashMap<Identity, Memory>, now: Moment) {
        let s = &unit.head;
        let pid = s.id.pid;
        if !self.targets.contains_key(&pid) {
            // A child that was forked while a worker changed its parent has the parent's state of that
            // moment.
            let parent = self.targets.get(&s.parent).is_some_and(|p| p.life.is_being_changed(now));
            let inherited = || parent.then(|| Memory { undone_by: Some(By::Whet), ..Memory::default() });
            let memory = self.known.remove(&s.id).or_else(|| former.remove(&s.id)).or_else(inherited);
            let build_id = engine::build_id(Pid(pid));
            let mut life = Target::new(now, memory);
            life.lot = crate::rollout::lot(s.id);
            let mut entry = Entry {
                id: s.id,
                exe: s.exe.clone(),
                life,
                members: Members::default(),
                build_id,
                other_build: self.store.profile_of_program(&s.exe),
                warm: None,
                held: None,
                stops: Tally::default(),
                journal_at: None,
            };
            entry.life.has_profile = self.warm_profile(&entry).is_some();
            self.targets.insert(pid, entry);
        }
        let cpu_percent =
            self.targets.get_mut(&pid).map_or(s.cpu_percent, |entry| entry.members.see(unit, now));
        self.apply(pid, Event::Seen { cpu_percent, age: s.age });
    }

    /// Reads journals, to notice what other commands have done to targets.
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
            // The kill switch does not wait for many journals, or for a journal that takes long to read.
            self.heed_switch();
            if let Some(entry) = self.targets.get_mut(&pid) {
                entry.journal_at = Some(now);
            }
            // A journal that cannot be read now may be readable later. A journal says little while another
            // whet is at work on the target.
            let Ok(report) = engine::status(Some(Pid(pid))) else { continue };
            let target = report.targets.first();
            if let Some(entry) = self.targets.get_mut(&pid) {
                entry.held = target.map(Held::of);
            }
            if target.is_none_or(|t| t.worked_on_by.is_none()) {
                self.apply(pid, Event::Journal(target.map(|t| t.state)));
            }
        }
        self.read_members();
        if any {
            let pause = pace::limited(cpu_time().saturating_sub(began));
            self.next_journals = self.now() + pause;
        }
    }

    /// Reads the journals of members that may differ from their parents.
    fn read_members(&mut self) {
        let idle = self.targets.iter().filter(|(_, e)| e.life.job.is_none());
        let due = idle.flat_map(|(pid, e)| e.members.to_read().map(move |id| (*pid, id)));
        let due: Vec<(i32, Identity)> = due.take(MEMBERS_AT_ONCE).collect();
        for (pid, member) in due {
            self.heed_switch();
            let read = engine::journal_state(Pid(member.pid));
            if matches!(read, Err(engine::Error::Locked { .. })) {
                continue;
            }
            if let Some(entry) = self.targets.get_mut(&pid) {
                entry.members.was_read(member);
            }
            if let Ok(state) = read {
                self.apply(pid, Event::Member(state));
            }
        }
    }

    /// Applies an event to a target, and logs a change of its state or of its verdict.
    pub(crate) fn apply(&mut self, pid: i32, event: Event) {
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

    /// Writes the records for a later daemon to disk, if they have changed.
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
            self.count_file_errors(written.map_err(|e| format!("cannot keep what is known of targets: {e}")));
        }
    }

    fn count_file_errors(&mut self, written: Result<(), String>) {
        self.counted.unwritten += u64::from(self.errors.note(written));
    }

    /// Reads the configuration again. A wrong configuration changes nothing.
    pub(crate) fn reload(&mut self) {
        match Config::read_or_default(&self.config_file) {
            Ok(config) => {
                if config.paths.socket != self.config.paths.socket
                    || config.paths.state != self.config.paths.state
                {
                    warn!("the new socket or state folder is used only after a restart of the daemon");
                }
                let paths = crate::config::Paths {
                    socket: self.config.paths.socket.clone(),
                    state: self.config.paths.state.clone(),
                    ..config.paths
                };
                if config.fleet != self.config.fleet {
                    self.exchange = Exchange::new(&config.fleet, &self.store);
                }
                self.config = Config { paths, ..config };
                self.config_error = None;
                self.watch.look_again();
                self.next_look = self.now();
                info!("the configuration was read again");
            }
            Err(e) => {
                warn!("{e}; the configuration before stays in force");
                self.config_error = Some(e.to_string());
            }
        }
    }

    /// Interrupts the workers, and waits for them to bring their targets in order.
    fn finish(&mut self, server: &mut Server, wake: &mut UnixStream) {
        let until = Instant::now() + PATIENCE;
        for worker in &mut self.workers {
            worker.interrupt();
        }
        while !self.workers.is_empty() && Instant::now() < until {
            self.wait(server, wake, Some(Duration::from_millis(200)));
            while matches!(wake.read(&mut [0; 64]), Ok(1..)) {}
            self.poll_workers();
            server.serve(Instant::now(), |call, may_command| self.answer(call, may_command));
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
        self.keep();
    }
}

/// Returns the CPU time of this thread, which is the daemon's only one.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or(Duration::ZERO)
}
