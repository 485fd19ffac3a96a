//! One process: its files in /proc and its memory.

use crate::huge_pages;
use crate::remote::Gadgets;
use crate::shared::Strangers;
use crate::shelter;
use crate::slots::{self, Areas};
use crate::{Error, MappedFile, Pid, Status, Tid};
use addr::{Addr, Avma, AvmaRange, ReadMemory, Unreadable};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A process, held by handles that stay valid for this process even if its id is used again.
#[derive(Debug, Clone)]
pub struct Process {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pid: Pid,
    /// The directory /proc/PID; every file is opened through it.
    dir: File,
    mem: File,
    pidfd: OwnedFd,
    /// The routines found in its code by the last search.
    gadgets: Mutex<Option<Gadgets>>,
    shelter: Mutex<Option<AvmaRange>>,
    /// `None` until the mappings have been searched.
    slot_areas: Mutex<Option<Areas>>,
    strangers: Mutex<Strangers>,
}

/// How often a torn text of the mappings is read again. For a process that does nothing but change its
/// mappings, one text in a thousand was torn (Linux 6.18).
const READ_ANEW: u32 = 20;
/// The unit of times in `/proc/PID/stat`. The kernel shows it to user space, whatever its own clock.
pub(crate) const TICKS_PER_SECOND: u64 = 100;

impl Process {
    /// Opens a process for reading and writing its memory. [`crate::preflight()`] checks whether it can be
    /// traced.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`], [`Error::NotAProcess`] for a thread's id, [`Error::NoPermission`];
    /// [`Error::ProcFile`] if this process may open no more files.
    pub fn open(pid: Pid) -> Result<Self, Error> {
        let failed = |source: io::Error| match is_out_of_descriptors(&source) {
            true => Error::ProcFile { path: format!("/proc/{pid}"), source },
            false => Error::NoSuchProcess(pid),
        };
        let dir = File::open(format!("/proc/{}", pid.0)).map_err(failed)?;
        // A name need not be UTF-8.
        let text = fs::read(under(&dir, "status")).map_err(failed)?;
        let status = Status::parse(&String::from_utf8_lossy(&text))?;
        if status.tgid != pid.0 {
            return Err(Error::NotAProcess(pid, status.process()));
        }
        let raw = pid.raw().ok_or(Error::NoSuchProcess(pid))?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|e| failed(e.into()))?;
        // The id may have been used again between the two calls; then the directory is that of a dead
        // process.
        if !under(&dir, "stat").exists() {
            return Err(Error::NoSuchProcess(pid));
        }
        let open = || File::options().read(true).write(true).open(with_memory(&dir, "mem"));
        // The first thread may have ended between the choice of the directory and the open.
        let mem = open().or_else(|e| if is_gone(&e) { open() } else { Err(e) });
        let mem = mem.map_err(|source| match is_gone(&source) || is_out_of_descriptors(&source) {
            true => failed(source),
            false => {
                Error::NoPermission { pid, what: "read and write the memory of", hint: String::new(), source }
            }
        })?;
        Ok(Self {
            inner: Arc::new(Inner {
                pid,
                dir,
                mem,
                pidfd,
                gadgets: Mutex::new(None),
                shelter: Mutex::new(None),
                slot_areas: Mutex::new(None),
                strangers: Mutex::default(),
            }),
        })
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.inner.pid
    }

    /// Returns whether the process lives. After its last thread has ended it does not, even before its parent
    /// reaps it.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.inner.pidfd, PollFlags::IN)], Some(&at_once)) == Ok(0)
    }

    /// Returns whether the process has ended or is about to: each of its threads has ended, or has a SIGKILL
    /// pending.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        const KILL: u64 = 1 << (libc::SIGKILL - 1);
        /// `PF_POSTCOREDUMP`, `PF_SIGNALED`.
        const ENDING: u64 = EXITING | 0x8 | 0x400;
        let killed = |s: Status| s.is_ending() || (s.sig_pnd | s.shd_pnd) & KILL != 0;
        let ended = |task: &Path| {
            let text = |name| fs::read(task.join(name)).map(|b| String::from_utf8_lossy(&b).into_owned());
            match text("status").and_then(|status| Ok((status, text("stat")?))) {
                Ok((status, stat)) => Status::parse(&status).is_ok_and(killed) || flags(&stat) & ENDING != 0,
                Err(e) => is_gone(&e),
            }
        };
        if !self.is_alive() {
            return true;
        }
        match fs::read_dir(self.file("task")) {
            Ok(list) => list.flatten().all(|task| ended(&task.path())),
            Err(e) => is_gone(&e),
        }
    }

    /// Returns the cause of a failure: the end of the process if it has ended, else `e`.
    #[must_use]
    pub fn cause(&self, e: Error) -> Error {
        // A kill of all threads takes a moment to reach each of them.
        const MOMENT: Duration = Duration::from_millis(20);
        let limit = match &e {
            Error::Gone(_) | Error::TracerLost => return e,
            Error::ThreadGone(_) | Error::NoPermission { .. } => MOMENT,
            Error::Os { source, .. } if source.raw_os_error() == Some(libc::ESRCH) => MOMENT,
            _ => Duration::ZERO,
        };
        let since = Instant::now();
        while !self.is_ending() {
            if since.elapsed() >= limit {
                return e;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Error::Gone(self.pid())
    }

    /// Returns the path of one of its files in /proc, through the open directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        under(&self.inner.dir, name)
    }

    /// Returns the path of a file in /proc that describes its memory, its program or its descriptors.
    pub(crate) fn memory_file(&self, name: &str) -> PathBuf {
        with_memory(&self.inner.dir, name)
    }

    /// Returns the path of its root folder, through the open directory: never the folder of a later process
    /// with its id.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.memory_file("root")
    }

    /// Returns whether it has the same mount namespace as this program; true if that cannot be determined.
    #[must_use]
    pub fn shares_mounts(&self) -> bool {
        let own = fs::read_link("/proc/self/ns/mnt");
        match (fs::read_link(self.memory_file("ns/mnt")), own) {
            (Ok(its), Ok(own)) => its == own,
            _ => true,
        }
    }

    pub(crate) fn text(&self, name: &str) -> Result<String, Error> {
        let bytes = fs::read(self.file(name)).map_err(|source| self.file_error(name, source))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn memory_text(&self, name: &str) -> Result<String, Error> {
        // Paths are bytes, not always UTF-8.
        self.memory_bytes(name).map(|b| String::from_utf8_lossy(&b).into_owned())
    }

    fn memory_bytes(&self, name: &str) -> Result<Vec<u8>, Error> {
        fs::read(self.memory_file(name)).map_err(|source| self.file_error(name, source))
    }

    pub(crate) fn file_error(&self, name: &str, source: io::Error) -> Error {
        match source.raw_os_error() {
            Some(libc::ESRCH) => Error::Gone(self.pid()),
            _ if self.is_ending() => Error::Gone(self.pid()),
            Some(libc::EACCES | libc::EPERM) => {
                Error::NoPermission { pid: self.pid(), what: "inspect", hint: String::new(), source }
            }
            _ => Error::ProcFile { path: format!("/proc/{}/{name}", self.pid()), source },
        }
    }

    /// Returns the text of `/proc/PID/maps`, with each address in one mapping only.
    ///
    /// The kernel writes a page of this text at a time. A mapping that is merged with earlier ones meanwhile
    /// is listed with its new start, which overlaps ranges already listed. Linux's
    /// `Documentation/filesystems/proc.rst` promises otherwise
    /// (`tools/testing/selftests/proc/proc-maps-race.c` tests for it). Such a text is read again.
    ///
    /// # Errors [`Error::Gone`], [`Error::NoPermission`], [`Error::ProcFile`], as in all functions that read
    /// files of /proc.
    pub fn maps_text(&self) -> Result<String, Error> {
        let text = anew_while_torn(|| self.memory_text("maps"))?;
        // Some kernels return an empty text for a process that has no memory any more.
        if text.is_empty() && self.is_ending() { Err(Error::Gone(self.pid())) } else { Ok(text) }
    }

    /// Returns the bytes of `/proc/PID/auxv`: pairs of 64-bit words.
    ///
    /// # Errors
    /// As [`Process::maps_text`].
    pub fn auxv(&self) -> Result<Vec<u8>, Error> {
        self.memory_bytes("auxv")
    }

    /// Returns the path of its program; it ends in ` (deleted)` if the file has been removed.
    ///
    /// # Errors
    /// As [`Process::maps_text`].
    pub fn exe(&self) -> Result<PathBuf, Error> {
        fs::read_link(self.memory_file("exe")).map_err(|e| self.file_error("exe", e))
    }

    /// Returns the state of the process (of its first thread if threads differ).
    ///
    /// # Errors
    /// As [`Process::maps_text`].
    pub fn status(&self) -> Result<Status, Error> {
        Status::parse(&self.text("status")?)
    }

    /// Returns the state of one thread.
    ///
    /// # Errors
    /// As [`Process::maps_text`]; [`Error::ThreadGone`].
    pub fn thread_status(&self, tid: Tid) -> Result<Status, Error> {
        match fs::read(self.file(&format!("task/{tid}/status"))) {
            Ok(text) => Status::parse(&String::from_utf8_lossy(&text)),
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                Err(if self.is_ending() { Error::Gone(self.pid()) } else { Error::ThreadGone(tid) })
            }
            Err(e) => Err(self.file_error("task", e)),
        }
    }

    /// Returns the number of the system call in which a thread sleeps.
    pub(crate) fn sleeps_in(&self, tid: Tid) -> Option<i64> {
        self.text(&format!("task/{tid}/syscall")).ok()?.split(' ').next()?.parse().ok()
    }

    /// Returns its threads at this moment, in ascending order. Threads that have ended but are not reaped are
    /// included.
    ///
    /// # Errors
    /// As [`Process::maps_text`].
    pub fn threads(&self) -> Result<Vec<Tid>, Error> {
        let list = fs::read_dir(self.file("task")).map_err(|e| self.file_error("task", e))?;
        let mut tids = Vec::new();
        for entry in list {
            let entry = entry.map_err(|e| self.file_error("task", e))?;
            tids.extend(entry.file_name().to_str().and_then(|n| n.parse().ok()).map(Tid));
        }
        if tids.is_empty() {
            return Err(Error::Gone(self.pid()));
        }
        tids.sort_unstable();
        Ok(tids)
    }

    /// Returns its threads that run code of the program, as [`Process::threads`]. Threads that the kernel
    /// keeps in the process for itself (io_uring's workers) are left out. They can be traced, but never
    /// return to user mode, so a wait for their return never ends. Their registers hold no state of the
    /// program.
    pub(crate) fn user_threads(&self) -> Result<Vec<Tid>, Error> {
        let mut tids = self.threads()?;
        tids.retain(|&tid| !self.is_worker(tid));
        Ok(tids)
    }

    /// Returns whether the kernel keeps a thread in the process for itself.
    pub(crate) fn is_worker(&self, tid: Tid) -> bool {
        let stat = fs::read(self.file(&format!("task/{tid}/stat"))).unwrap_or_default();
        is_kernel_worker(&String::from_utf8_lossy(&stat))
    }

    /// Returns when the process started, in clock ticks (`sysconf(_SC_CLK_TCK)`) since boot. Together with
    /// the id, this time identifies a process for ever.
    ///
    /// # Errors
    /// As [`Process::maps_text`]; [`Error::ProcFormat`].
    pub fn start_time(&self) -> Result<u64, Error> {
        let text = self.text("stat")?;
        stat_field(&text, 22).ok_or_else(|| Error::ProcFormat {
            path: format!("/proc/{}/stat", self.pid()),
            what: "the start time",
        })
    }

    /// Returns the CPU time used so far by all its threads, ended ones included, in nanoseconds.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn cpu_time_ns(&self) -> Result<u64, Error> {
        let pid = self.pid();
        // The clock is addressed by number: check that the number still means this process.
        cpu_time_ns(pid).filter(|_| self.is_alive()).ok_or(Error::Gone(pid))
    }

    /// Reads many ranges as [`Process::read_each`] does, where all must be readable: in a stop, or in memory that
    /// only whet maps.
    ///
    /// # Errors
    /// [`Unreadable`] for the first range that cannot be read in full.
    pub fn read_many(&self, ranges: &[AvmaRange]) -> Result<Vec<Vec<u8>>, Unreadable> {
        let unreadable = |r: &AvmaRange| Unreadable { at: r.start, len: r.len() };
        let found = self.read_each(ranges).into_iter();
        found.zip(ranges).map(|(bytes, range)| bytes.ok_or_else(|| unreadable(range))).collect()
    }

    /// Reads many ranges at once: one system call for about a thousand, where [`ReadMemory::bytes`] needs one
    /// for each. Returns `None` for a range that cannot be read in full: while threads run, a library may be
    /// unloaded at any time.
    #[must_use]
    pub fn read_each(&self, ranges: &[AvmaRange]) -> Vec<Option<Vec<u8>>> {
        ranges.chunks(IOV_MAX).flat_map(|ranges| self.read_chunk(ranges)).collect()
    }

    /// Reads at most [`IOV_MAX`] ranges.
    fn read_chunk(&self, ranges: &[AvmaRange]) -> Vec<Option<Vec<u8>>> {
        let mut bufs: Vec<Vec<u8>> =
            ranges.iter().map(|r| vec![0; usize::try_from(r.len()).unwrap_or(0)]).collect();
        let wanted: usize = bufs.iter().map(Vec::len).sum();
        let local: Vec<libc::iovec> = bufs
            .iter_mut()
            .map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() })
            .collect();
        let remote: Vec<libc::iovec> = ranges
            .iter()
            .zip(&local)
            .map(|(r, l)| libc::iovec {
                iov_base: std::ptr::without_provenance_mut(address(r.start)),
                iov_len: l.iov_len,
            })
            .collect();
        let (pid, n) = (self.pid().0, local.len() as libc::c_ulong);
        // SAFETY: the local vectors name buffers of this function, alive and not borrowed elsewhere until
        // the call has returned; the remote vectors are only numbers here.
        let got = unsafe { libc::process_vm_readv(pid, local.as_ptr(), n, remote.as_ptr(), n, 0) };
        if usize::try_from(got) == Ok(wanted) {
            return bufs.into_iter().map(Some).collect();
        }
        // The kernel lacks the call, or a range is unreadable.
        ranges.iter().map(|&range| self.bytes(range).ok()).collect()
    }

    /// Writes into the process, whatever the protection of its pages (private file pages are copied first, as
    /// for a debugger). The threads may be running: only an aligned 8-byte word is written atomically.
    ///
    /// # Errors
    /// [`Error::Unwritable`], with as much written as the kernel reached. If the kernel forbids writes to
    /// protected pages, see [`crate::Stopped::write_text`].
    pub fn write(&self, at: Avma, bytes: &[u8]) -> Result<(), Error> {
        let fail = |source| Error::Unwritable { at, len: bytes.len(), source };
        match self.inner.mem.write_all_at(bytes, at.0) {
            Ok(()) => Ok(()),
            Err(e) => Err(self.cause(fail(e))),
        }
    }

    /// Opens the file mapped at `range`. If the kernel allows it, this is the mapped file itself, even if it
    /// was deleted or replaced since. Else it is the file at `path` in the process's view. The caller checks
    /// that it is the right file.
    #[must_use]
    pub fn mapped_file(&self, path: &str, range: AvmaRange) -> Option<MappedFile> {
        let mapped = self.file(&map_file(range));
        if let Some(file) = MappedFile::open(&mapped) {
            return Some(file);
        }
        let path = path.strip_prefix('/').filter(|p| !p.ends_with(" (deleted)"))?;
        MappedFile::open(&self.memory_file("root").join(path))
    }

    /// Returns the parts of `range` that are in huge pages. The ends of `range` are page boundaries.
    ///
    /// # Errors
    /// As [`Process::maps_text`].
    pub fn huge_pages(&self, range: AvmaRange) -> Result<Vec<AvmaRange>, Error> {
        let scanned = File::open(self.memory_file("pagemap")).and_then(|f| huge_pages::scan(&f, range));
        match scanned {
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => {
                Ok(huge_pages::from_smaps(&self.memory_text("smaps")?, range))
            }
            scanned => scanned.map_err(|e| self.file_error("pagemap", e)),
        }
    }

    /// Returns for each page whether the process has its own copy of it, made by a write to a private
    /// mapping. The kernel sets `PM_FILE` only for pages of files and of shared memory (Linux's
    /// `Documentation/admin-guide/mm/pagemap.rst`).
    ///
    /// # Errors
    /// As [`Process::maps_text`].
    pub fn own_copies(&self, pages: &[Avma]) -> Result<Vec<bool>, Error> {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const FILE: u64 = 1 << 61;
        let fail = |e| self.file_error("pagemap", e);
        let file = File::open(self.memory_file("pagemap")).map_err(fail)?;
        let is_own = |word: &[u8; 8]| {
            let word = u64::from_le_bytes(*word);
            word & (PRESENT | SWAPPED) != 0 && word & FILE == 0
        };
        let mut own = Vec::with_capacity(pages.len());
        for run in pages.chunk_by(|a, b| b.since(*a) == Some(4096)) {
            let mut words = vec![0; run.len() * 8];
            let mut read = 0;
            while let Some(rest) = words.get_mut(read..).filter(|rest| !rest.is_empty()) {
                let at = run.first().map_or(0, |page| page.0 / 4096 * 8) + read as u64;
                match file.read_at(rest, at) {
                    // The addresses are beyond any process's address space; no page is there.
                    Ok(0) => break,
                    Ok(n) => read += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(fail(e)),
                }
            }
            own.extend(words.as_chunks::<8>().0.iter().map(is_own));
        }
        Ok(own)
    }

    /// Returns the descriptor that becomes readable when the process ends.
    #[must_use]
    pub fn pidfd(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.inner.pidfd)
    }

    pub(crate) fn gadgets(&self) -> Option<Gadgets> {
        *self.inner.gadgets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whet's memory in the target for the return of threads whose stacks have no room for a frame.
    /// It may be the shelter of an earlier whet.
    pub(crate) fn shelter(&self, maps: &str) -> Option<AvmaRange> {
        let mut known = self.inner.shelter.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() {
            *known = shelter::find(self, maps);
        }
        *known
    }

    pub(crate) fn set_shelter(&self, range: AvmaRange) {
        *self.inner.shelter.lock().unwrap_or_else(PoisonError::into_inner) = Some(range);
    }

    /// Returns the areas of slots in the target, those of earlier whets included.
    pub(crate) fn slot_areas(&self) -> Areas {
        self.change_slot_areas(|areas| areas.clone())
    }

    /// Returns whether stops through this handle can send threads into slots, to finish their calls.
    pub(crate) fn can_finish(&self) -> bool {
        self.change_slot_areas(|areas| areas.can_be_used())
    }

    pub(crate) fn change_slot_areas<R>(&self, change: impl FnOnce(&mut Areas) -> R) -> R {
        let mut known = self.inner.slot_areas.lock().unwrap_or_else(PoisonError::into_inner);
        let found = || self.maps_text().map(|maps| slots::find(self, &maps)).unwrap_or_default();
        change(known.get_or_insert_with(found))
    }

    /// Returns the processes that are known not to share the memory.
    pub(crate) fn strangers(&self) -> MutexGuard<'_, Strangers> {
        self.inner.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_gadgets(&self, found: Gadgets) {
        *self.inner.gadgets.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
    }

    /// Reads as much as is readable from `at`, up to the length of `buf`. Returns the number of bytes read.
    pub(crate) fn read_some(&self, at: Avma, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
            match self.inner.mem.read_at(rest, at.0.wrapping_add(done as u64)) {
                Ok(n) if n > 0 => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        done
    }
}

impl ReadMemory for Process {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        self.inner.mem.read_exact_at(buf, at.0).map_err(|_| Unreadable { at, len: buf.len() as u64 })
    }
}

/// Returns whether a thread's `stat` has a flag of threads that never run user code: `PF_IO_WORKER` (Linux
/// 5.12), `PF_USER_WORKER` (6.4), `PF_KTHREAD`.
pub(crate) fn is_kernel_worker(stat: &str) -> bool {
    const WORKER: u64 = 0x10 | 0x4000 | 0x20_0000;
    flags(stat) & WORKER != 0
}

/// Returns whether a `stat` belongs to a thread that never had memory of its own: `PF_KTHREAD`.
pub(crate) fn is_kernel_thread(stat: &str) -> bool {
    const KERNEL: u64 = 0x20_0000;
    flags(stat) & KERNEL != 0
}

/// Returns whether a `stat` belongs to a thread in the kernel's exit code: `PF_EXITING`.
pub(crate) fn is_exiting(stat: &str) -> bool {
    flags(stat) & EXITING != 0
}

fn flags(stat: &str) -> u64 {
    stat_field(stat, FLAGS).unwrap_or(0)
}

/// Returns a numeric field of a `stat`, by its number in proc(5), from 4 on. Fields are counted from behind
/// the name, which may contain any character.
#[must_use]
pub fn stat_field(stat: &str, number: usize) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

/// Returns the name of the link to the file of a whole mapping, within the folder of the process.
pub(crate) fn map_file(range: AvmaRange) -> String {
    format!("map_files/{:x}-{:x}", range.start.0, range.end.0)
}

/// How many ranges one call accepts (Linux: `UIO_MAXIOV`).
const IOV_MAX: usize = 1024;

fn address(at: Avma) -> usize {
    usize::try_from(at.0).unwrap_or(usize::MAX)
}

fn under(dir: &File, name: &str) -> PathBuf {
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name)
}

/// The field of a `stat` that holds a thread's flags.
const FLAGS: usize = 9;

/// Returns a file of a process as text, empty if there is none.
pub(crate) fn proc_text(pid: i32, name: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the state letter in a `stat`; `?` for an empty text.
pub(crate) fn state(stat: &str) -> char {
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?')
}

/// `PF_EXITING`: the thread is about to give up its memory, or has. It becomes a zombie later and keeps the
/// flag.
const EXITING: u64 = 0x4;

/// Returns whether a `stat` belongs to a thread that has all its memory; an empty text belongs to none.
pub(crate) fn has_memory(stat: &str) -> bool {
    stat_field(stat, FLAGS).is_some_and(|flags| flags & EXITING == 0)
}

/// Returns the CPU time that all threads of a process have used so far, ended ones included, in nanoseconds.
/// `None` if there is no process of this id. The id may have been used again; [`Process::cpu_time_ns`] checks that.
#[must_use]
pub fn cpu_time_ns(pid: Pid) -> Option<u64> {
    // MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel's posix-timers, as clock_getcpuclockid
    // returns it.
    let clock: libc::clockid_t = (!pid.0 << 3) | 2;
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place for one timespec.
    let rc = unsafe { libc::clock_gettime(clock, &raw mut t) };
    let (s, ns) = (u64::try_from(t.tv_sec).unwrap_or(0), u64::try_from(t.tv_nsec).unwrap_or(0));
    (rc == 0).then_some(s.saturating_mul(1_000_000_000).saturating_add(ns))
}

/// Returns the present time in the unit of [`Process::start_time`]. It is read from the clock that the kernel uses
/// there. /proc/uptime may tell another time: lxcfs shows that of the container.
#[must_use]
pub fn start_time_now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let (s, ns) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    s * TICKS_PER_SECOND + ns / (1_000_000_000 / TICKS_PER_SECOND)
}

fn is_out_of_descriptors(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Returns whether a file in /proc could not be read because its process or thread has ended.
fn is_gone(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// As [`under`], for files that describe memory. A first thread that has ended has no memory, while its
/// process may live on in other threads. Then the file of another thread is used.
fn with_memory(dir: &File, name: &str) -> PathBuf {
    let ended = |task: &Path| {
        let stat = fs::read(task.join("stat")).unwrap_or_default();
        !has_memory(&String::from_utf8_lossy(&stat))
    };
    let own = under(dir, "");
    let living =
        || fs::read_dir(own.join("task")).ok()?.flatten().map(|e| e.path()).find(|task| !ended(task));
    match ended(&own).then(living).flatten() {
        Some(task) => task.join(name),
        None => own.join(name),
    }
}

/// Returns the first text of maps that is not torn, or the last text that was read.
fn anew_while_torn(mut read: impl FnMut() -> Result<String, Error>) -> Result<String, Error> {
    let mut text = read()?;
    for _ in 0..READ_ANEW {
        if !is_torn(&text) {
            break;
        }
        text = read()?;
    }
    Ok(text)
}

/// Returns whether a line of maps overlaps the range of the line before.
fn is_torn(maps: &str) -> bool {
    let ranges = || maps.lines().filter_map(mapping_range);
    ranges().zip(ranges().skip(1)).any(|(one, next)| next.start < one.end)
}

/// Parses the range at the start of a line of maps; `None` for other lines.
pub(crate) fn mapping_range(line: &str) -> Option<AvmaRange> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    let hex = |s| u64::from_str_radix(s, 16).ok().map(Avma);
    Some(AvmaRange::new(hex(start)?, hex(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::Addr;

    #[test]
    fn io_workers_are_recognized_by_their_flags() {
        let stat = |flags: u32| format!("77 (iou-wrk) 1) S 1 1 1 0 -1 {flags} 0 0");
        assert!(is_kernel_worker(&stat(0x40_4050)));
        assert!(is_kernel_worker(&stat(0x4040)));
        assert!(!is_kernel_worker(&stat(0x40_0040)));
        assert!(is_kernel_thread(&stat(0x20_8040)));
        assert!(!is_kernel_thread(&stat(0x40_0044)), "one that is ending has no memory either");
        assert!(!is_kernel_worker(""));
    }

    #[test]
    fn many_ranges_are_read_at_once_and_the_unreadable_ones_are_told_apart() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let process = Process::open(Pid(i32::try_from(child.id()).unwrap())).unwrap();
        let start = loop {
            let maps = process.maps_text().unwrap();
            if let Some(line) = maps.lines().find(|l| l.contains("r-xp") && l.contains("libc")) {
                break mapping_range(line).unwrap().start;
            }
        };
        let ranges: Vec<AvmaRange> =
            (0..2500u64).map(|i| AvmaRange::with_len(start.add(i * 37), 1 + i % 50)).collect();
        let got = process.read_many(&ranges).unwrap();
        for (range, bytes) in ranges.iter().zip(&got) {
            assert_eq!(*bytes, process.bytes(*range).unwrap());
        }
        let nowhere = AvmaRange::with_len(Avma(0x10), 8);
        assert_eq!(process.read_many(&[ranges[0], nowhere]).unwrap_err().at, nowhere.start);
        let each = process.read_each(&[ranges[0], nowhere, ranges[1]]);
        assert_eq!(each, [Some(got[0].clone()), None, Some(got[1].clone())]);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Of four pages, the first and the third are written to; another is no page at all.
    #[test]
    fn own_copies_of_pages() {
        let me = Process::open(Pid(i32::try_from(std::process::id()).unwrap())).unwrap();
        let mut memory = vec![0u8; 6 * 4096];
        let at = Avma((memory.as_ptr().addr() as u64).next_multiple_of(4096));
        // The pages of a large new vector are not there before they are written to.
        let first = usize::try_from(at.0).unwrap() - memory.as_ptr().addr();
        memory[first] = 1;
        memory[first + 2 * 4096] = 1;
        std::hint::black_box(&memory);
        let page = |n: u64| at.add(n * 4096);
        let beyond = Avma(1 << 62);
        let own = me.own_copies(&[page(0), page(1), page(2), beyond, beyond.add(4096)]).unwrap();
        assert_eq!((own[0], own[2], own[3], own[4], own.len()), (true, true, false, false, 5));
        let text = me.maps_text().unwrap();
        let code = text.lines().find(|l| l.contains("r-xp") && l.contains("libc")).unwrap();
        assert_eq!(me.own_copies(&[mapping_range(code).unwrap().start]).unwrap(), [false]);
    }

    #[test]
    fn own_process_can_be_read() {
        let me = Process::open(Pid(i32::try_from(std::process::id()).unwrap())).unwrap();
        assert!(me.is_alive());
        assert!(me.maps_text().unwrap().contains("[stack]"));
        assert!(me.threads().unwrap().contains(&Tid(me.pid().0)));
        assert_eq!(me.status().unwrap().process(), me.pid());
        assert_eq!(me.exe().unwrap(), std::env::current_exe().unwrap());
        assert!(me.start_time().unwrap() > 0);
        assert!(me.auxv().unwrap().len().is_multiple_of(16));
        let word = 0x1122_3344_5566_7788_u64;
        let at = Avma((&raw const word).addr() as u64);
        assert_eq!(ReadMemory::u64(&me, at).unwrap(), word);
        assert!(me.read(Avma(8), &mut [0; 4]).is_err());
        assert!(me.write(Avma(8), &[0; 4]).is_err());
        let before = me.cpu_time_ns().unwrap();
        while me.cpu_time_ns().unwrap() <= before {}
    }

    #[test]
    fn torn_maps_are_read_again() {
        let whole = "1000-3000 r-xp a\n3000-4000 rw-p b\n";
        let torn = "1000-3000 r-xp a\n2000-4000 rw-p b\n";
        let mut texts = [torn, torn, whole, torn].into_iter();
        let read = || Ok(texts.next().unwrap().to_owned());
        assert_eq!(anew_while_torn(read).unwrap(), whole);
        // The number of attempts is limited.
        assert_eq!(anew_while_torn(|| Ok(torn.to_owned())).unwrap(), torn);
    }

    #[test]
    fn mapped_file_opens_the_right_file() {
        let me = Process::open(Pid(i32::try_from(std::process::id()).unwrap())).unwrap();
        let exe = me.exe().unwrap();
        let exe = exe.to_str().unwrap();
        let maps = me.maps_text().unwrap();
        let range = maps.lines().find(|l| l.ends_with(exe)).and_then(mapping_range).unwrap();
        let file = me.mapped_file(exe, range).unwrap();
        assert_eq!(file.part(0, 4).unwrap(), b"\x7fELF");
        assert_eq!(file.part(1, 3).unwrap(), b"ELF");
        // Without the mapping, the file is opened by path. A path to something other than a file gives
        // `None`.
        let none = AvmaRange::new(Avma(0), Avma(1));
        assert_eq!(me.mapped_file(exe, none).unwrap().size(), file.size());
        assert!(file.part(file.size() - 1, 1).is_some() && file.part(file.size() - 1, 2).is_none());
        assert!(file.part(u64::MAX, 2).is_none());
        assert!(me.mapped_file("/dev/zero", none).is_none());
        assert!(me.mapped_file("[heap]", none).is_none());
    }

    #[test]
    fn a_name_need_not_be_utf_8() {
        use std::os::unix::ffi::OsStrExt;
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
        fs::copy("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("100").spawn().unwrap();
        let process = Process::open(Pid(child.id().cast_signed()));
        let opened = process.map(|p| p.pid().0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(opened.unwrap(), child.id().cast_signed());
    }

    #[test]
    fn no_such_process() {
        // The highest id the kernel can assign is 2^22 - 1.
        assert!(matches!(Process::open(Pid(1 << 23)), Err(Error::NoSuchProcess(_))));
    }
}
