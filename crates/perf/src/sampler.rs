//! Sampling of all threads of one process, or of a family of processes.
//!
//! There is one event per thread and CPU, inherited by threads created later, and one buffer per CPU. The
//! kernel refuses buffers for inherited events that follow a thread over CPUs, so there is an event for each
//! pair.
//!
//! A thread that is created while events are being opened may be sampled twice. It has the event inherited
//! from its parent, and its own if a later listing finds it. Samples name the *opened* event, so samples of
//! the inherited copy are recognized and dropped.

use crate::capability::{self, paranoid};
use crate::error::Error;
use crate::event::{self, Source};
use crate::limit::RaisedFileLimit;
use crate::record::{Branches, Fields, Record, Records, field};
use crate::ring::{PAGE, Ring};
use addr::Avma;
use perf_event_open_sys::bindings::perf_event_attr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

const SAMPLE_TYPE: u64 = field::IP | field::TID | field::TIME | field::ID;

/// Options of a sampling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Samples per second of a thread's CPU time, 1 to 100,000.
    pub hz: u32,
    /// Pages of 4 KiB of each CPU's buffer, rounded up to a power of two. Fewer are used if the kernel does
    /// not allow as many. 128 hold 13,000 samples, or 600 with branch stacks.
    pub pages: usize,
    /// Whether samples should include the last taken branches of user code, if the CPU records them. If it
    /// does not ([`Sampler::has_branches`]), samples come without.
    pub branches: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { hz: 3000, pages: 128, branches: false }
    }
}

/// The position of a thread in user code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample<'a> {
    /// The instruction.
    pub ip: Avma,
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// CLOCK_MONOTONIC, nanoseconds. Samples of one CPU are in order, samples of several CPUs are not.
    pub time_ns: u64,
    /// The last taken branches, newest first, as the CPU recorded them. They include branches that it undid,
    /// and addresses of the kernel if the CPU cannot leave them out.
    pub branches: Branches<'a>,
}

/// A running sampling of one process, or of several with the children they fork. It ends when dropped.
#[derive(Debug)]
pub struct Sampler {
    // Declared before the events: buffers are unmapped first.
    rings: Vec<CpuRing>,
    events: Vec<OwnedFd>,
    /// The process whose samples are kept; `None` keeps those of all processes.
    only: Option<i32>,
    source: Source,
    fields: Fields,
    doubled: Doubled,
    threads: usize,
    lost: u64,
    throttled: u64,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct CpuRing {
    cpu: i32,
    /// Index of the event that owns the buffer.
    owner: usize,
    ring: Ring,
    /// The owner's thread has ended: its descriptor would report only that.
    hung_up: bool,
}

/// The events of each thread: one for each CPU.
#[derive(Clone, Copy)]
struct Events<'a> {
    cpus: &'a [i32],
    attr: &'a perf_event_attr,
    /// The size of each CPU's buffer. Pages.
    pages: usize,
}

/// Threads with their own event and perhaps an inherited one, with the ids of their own events.
#[derive(Debug, Default)]
struct Doubled(BTreeMap<i32, Vec<u64>>);

impl Doubled {
    fn is_duplicate(&self, tid: i32, id: u64) -> bool {
        self.0.get(&tid).is_some_and(|own| !own.contains(&id))
    }
}

impl Sampler {
    /// Starts sampling the user code of all threads of process `pid`, present and future. The kernel passes
    /// events on to child processes as well; their samples are dropped when read.
    ///
    /// # Errors
    /// Any of [`Error`]; no event stays open then.
    pub fn open(pid: i32, options: &Options) -> Result<Self, Error> {
        Self::open_each(&[pid], Some(pid), options)
    }

    /// Starts sampling the user code of several processes, and of all children that they fork from now on. A
    /// child may have executed another program; its samples come as well. A process that has ended is left
    /// out.
    ///
    /// # Errors
    /// As [`Sampler::open`]; [`Error::Gone`] if all processes have ended.
    pub fn open_family(pids: &[i32], options: &Options) -> Result<Self, Error> {
        Self::open_each(pids, None, options)
    }

    fn open_each(pids: &[i32], only: Option<i32>, options: &Options) -> Result<Self, Error> {
        if !(1..=100_000).contains(&options.hz) {
            return Err(Error::BadRate { hz: options.hz });
        }
        let cpus = online_cpus()?;
        let limit = RaisedFileLimit::raise()
            .map_err(|source| Error::Control { action: "raise the file limit for", source })?;
        let pages = options.pages.clamp(1, 1 << 16).next_power_of_two();
        let watermark = u32::try_from(pages * PAGE / 2).unwrap_or(u32::MAX);
        let attributes = |source| event::attributes(source, options.hz, SAMPLE_TYPE, watermark);
        let with_branches = if options.branches { capability::with_branches(attributes) } else { None };
        let source = match (with_branches, event::open(&attributes(Source::Cycles), 0, -1)) {
            (Some(source), _) => source,
            (None, Ok(_)) => Source::Cycles,
            (None, Err(_)) => Source::CpuClock,
        };
        let attributes = match with_branches {
            Some(_) => event::with_branches(attributes(source)),
            None => attributes(source),
        };
        let mut sampler = Self {
            rings: Vec::new(),
            events: Vec::new(),
            only,
            source,
            fields: Fields::new(attributes.sample_type, false)?,
            doubled: Doubled::default(),
            threads: 0,
            lost: 0,
            throttled: 0,
            bytes: Vec::new(),
        };
        let events = Events { cpus: &cpus, attr: &attributes, pages };
        for &pid in pids {
            match sampler.open_all(pid, events, &limit) {
                Err(Error::Gone { .. }) if only.is_none() => {}
                outcome => outcome?,
            }
        }
        if sampler.events.is_empty() {
            return Err(Error::Gone { pid: pids.first().copied().unwrap_or_default() });
        }
        for event in &sampler.events {
            event::enable(event).map_err(|source| Error::Control { action: "enable", source })?;
        }
        Ok(sampler)
    }

    /// Opens events for all threads, until a listing shows no new thread.
    fn open_all(&mut self, pid: i32, events: Events<'_>, limit: &RaisedFileLimit) -> Result<(), Error> {
        let mut known = BTreeSet::new();
        loop {
            let first = known.is_empty();
            let fresh: Vec<i32> = threads(pid)?.into_iter().filter(|&tid| known.insert(tid)).collect();
            if fresh.is_empty() {
                break;
            }
            for tid in fresh {
                let needed = (self.threads + known.len()).saturating_mul(events.cpus.len());
                self.open_thread(tid, events, !first).map_err(|e| match e {
                    Error::Open { source, .. } if source.raw_os_error() == Some(libc::EMFILE) => {
                        Error::TooManyFiles { needed, limit: limit.hard() }
                    }
                    other => other,
                })?;
            }
        }
        Ok(())
    }

    /// Opens a thread's events. A thread that has ended meanwhile is no error.
    fn open_thread(&mut self, tid: i32, events: Events<'_>, late: bool) -> Result<(), Error> {
        let Events { cpus, attr, pages } = events;
        let mut opened = false;
        for &cpu in cpus {
            let fd = match event::open(attr, tid, cpu) {
                Ok(fd) => fd,
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => break,
                Err(source) => return Err(open_error(tid, cpu, source)),
            };
            match self.rings.iter().find(|r| r.cpu == cpu) {
                Some(ring) => match event::write_to(&fd, &self.events[ring.owner]) {
                    Ok(()) => {}
                    Err(source) => return Err(Error::Control { action: "redirect", source }),
                },
                None => {
                    let ring = map_what_is_allowed(&fd, pages)?;
                    self.rings.push(CpuRing { cpu, owner: self.events.len(), ring, hung_up: false });
                }
            }
            if late {
                let id = event::id(&fd).map_err(|source| Error::Control { action: "identify", source })?;
                self.doubled.0.entry(tid).or_default().push(id);
            }
            self.events.push(fd);
            opened = true;
        }
        self.threads += usize::from(opened);
        Ok(())
    }

    /// Waits until a buffer is half full, or for `timeout`; returns whether one is. Buffers may hold samples
    /// in either case.
    ///
    /// # Errors
    /// [`Error::Control`] if the kernel refuses to wait.
    pub fn poll(&mut self, timeout: Duration) -> Result<bool, Error> {
        let live = self.rings.iter_mut().filter(|r| !r.hung_up);
        let (rings, mut waiting): (Vec<_>, Vec<_>) = live
            .map(|ring| {
                let polled = PollFd::new(&self.events[ring.owner], PollFlags::IN);
                (ring, polled)
            })
            .unzip();
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(false),
            Err(e) => return Err(Error::Control { action: "wait for", source: e.into() }),
        }
        let mut ready = false;
        for (ring, polled) in rings.into_iter().zip(&waiting) {
            ring.hung_up |= polled.revents().intersects(PollFlags::HUP | PollFlags::ERR);
            ready |= polled.revents().contains(PollFlags::IN);
        }
        Ok(ready)
    }

    /// Passes all available samples to `take`; returns their number.
    ///
    /// # Errors
    /// [`Error::BadRecord`]; the rest of that CPU's records is dropped.
    pub fn drain(&mut self, mut take: impl FnMut(Sample<'_>)) -> Result<u64, Error> {
        let mut taken = 0;
        for i in 0..self.rings.len() {
            let mut bytes = std::mem::take(&mut self.bytes);
            bytes.clear();
            self.rings[i].ring.take(&mut bytes);
            let result = self.read(&bytes, &mut take);
            self.bytes = bytes;
            taken += result?;
        }
        Ok(taken)
    }

    fn read(&mut self, bytes: &[u8], take: &mut impl FnMut(Sample<'_>)) -> Result<u64, Error> {
        let mut taken = 0;
        for record in Records::new(bytes, self.fields) {
            match record? {
                Record::Sample(s) if !self.is_kept(s.pid) || self.doubled.is_duplicate(s.tid, s.id) => {}
                Record::Sample(s) => {
                    take(Sample { ip: s.ip, pid: s.pid, tid: s.tid, time_ns: s.time, branches: s.branches });
                    taken += 1;
                }
                Record::Lost(n) | Record::LostSamples(n) => self.lost = self.lost.saturating_add(n),
                Record::Throttle => self.throttled = self.throttled.saturating_add(1),
                _ => {}
            }
        }
        Ok(taken)
    }

    fn is_kept(&self, pid: i32) -> bool {
        self.only.is_none_or(|only| only == pid)
    }

    /// Returns how many samples found no room, as reported so far: the kernel reports them with the next
    /// sample that does.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns how often the kernel paused a thread's sampling because its rate was too high.
    #[must_use]
    pub fn throttled(&self) -> u64 {
        self.throttled
    }

    /// Returns the event that triggers samples.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns whether samples include the last taken branches.
    #[must_use]
    pub fn has_branches(&self) -> bool {
        self.fields.has(field::BRANCH_STACK)
    }

    /// Returns the number of threads at the start.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Ends sampling. The contents of the buffers can still be drained.
    ///
    /// # Errors
    /// [`Error::Control`] if the kernel refuses; all events have been tried.
    pub fn stop(&mut self) -> Result<(), Error> {
        let failed = self.events.iter().fold(None, |failed, e| event::disable(e).err().or(failed));
        failed.map_or(Ok(()), |source| Err(Error::Control { action: "disable", source }))
    }
}

/// Maps as many pages as the limit on locked memory allows.
fn map_what_is_allowed(event: &OwnedFd, pages: usize) -> Result<Ring, Error> {
    let mut pages = pages;
    loop {
        match Ring::map(event, pages) {
            Ok(ring) => return Ok(ring),
            Err(e) if pages == 1 => return Err(Error::Map(e)),
            Err(_) => pages /= 2,
        }
    }
}

pub(crate) fn open_error(tid: i32, cpu: i32, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Error::Denied { paranoid: paranoid(), source },
        Some(libc::ENOSYS | libc::ENOENT | libc::EOPNOTSUPP) => Error::Unavailable(source),
        _ => Error::Open { tid, cpu, source },
    }
}

/// Returns the present threads of a process.
pub(crate) fn threads(pid: i32) -> Result<Vec<i32>, Error> {
    let path = PathBuf::from(format!("/proc/{pid}/task"));
    let list = fs::read_dir(&path).and_then(|entries| {
        entries
            .map(|e| e.map(|e| e.file_name().to_str().and_then(|name| name.parse().ok())))
            .filter_map(Result::transpose)
            .collect()
    });
    list.map_err(|source| match (source.kind(), source.raw_os_error()) {
        (io::ErrorKind::NotFound, _) | (_, Some(libc::ESRCH)) => Error::Gone { pid },
        _ => Error::Read { path, source },
    })
}

/// Returns the CPUs that are online.
fn online_cpus() -> Result<Vec<i32>, Error> {
    let path = PathBuf::from("/sys/devices/system/cpu/online");
    let text = fs::read_to_string(&path);
    text.and_then(|t| parse_cpus(&t).ok_or(io::ErrorKind::InvalidData.into()))
        .map_err(|source| Error::Read { path, source })
}

/// Parses a list like `0-3,8`.
fn parse_cpus(text: &str) -> Option<Vec<i32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        cpus.extend((first..=last).map(i32::from));
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpus("0-1\n"), Some(vec![0, 1]));
        assert_eq!(parse_cpus("0,2-4,9"), Some(vec![0, 2, 3, 4, 9]));
        assert_eq!(parse_cpus(""), None);
        assert_eq!(parse_cpus("0-"), None);
    }

    #[test]
    fn only_the_inherited_copy_is_a_duplicate() {
        let doubled = Doubled(BTreeMap::from([(7, vec![100, 101])]));
        assert!(!doubled.is_duplicate(7, 100) && !doubled.is_duplicate(7, 101));
        assert!(doubled.is_duplicate(7, 5));
        assert!(!doubled.is_duplicate(8, 5));
    }

    #[test]
    fn bad_requests_give_named_errors() {
        let bad = Options { hz: 0, ..Options::default() };
        assert!(matches!(Sampler::open(1, &bad), Err(Error::BadRate { hz: 0 })));
        assert!(matches!(Sampler::open(i32::MAX, &Options::default()), Err(Error::Gone { .. })));
    }
}
