//! All threads stopped at once: seized, stopped, released.

use crate::group::Group;
use crate::priority::Raised;
use crate::process::mapping_range;
use crate::remote::Gadgets;
use crate::tracer::Tracer;
use crate::{Error, Process, Regs, StopError, Tid};
use addr::{Addr, Avma, AvmaRange};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::time::Duration;

/// Every thread is seized: under our eyes, running. Go on to [`Seized::stop`] at once; signals and newborn threads
/// wait until then. Dropped, it lets go of everything.
#[derive(Debug)]
#[must_use]
pub struct Seized<'p> {
    process: &'p Process,
    tracer: Tracer,
    raised: Raised,
}

/// Every thread stands still, in user code or in a system call that will go on unharmed. Dropped, all go on as by
/// [`Stopped::release`].
///
/// The calling thread has real-time priority (or the best it may have) as long as this value lives.
#[derive(Debug)]
#[must_use]
pub struct Stopped<'p> {
    process: &'p Process,
    threads: BTreeMap<Tid, Regs>,
    tracer: Tracer,
    maps: OnceCell<Vec<AvmaRange>>,
    _raised: Raised,
}

/// What a stop came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopReport {
    /// From the first thread's interruption to the last one's release.
    pub stopped: Duration,
    /// How many threads were stopped.
    pub threads: usize,
    /// How many waiting calls were kept from failing with EINTR.
    pub cured: usize,
}

impl<'p> Seized<'p> {
    /// Seizes every thread of a process, without stopping any, until no new one turns up.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::AlreadyTraced`], [`Error::NoPermission`]; by then everything is let go.
    pub fn seize(process: &'p Process) -> Result<Self, Error> {
        let raised = Raised::own();
        let tracer = Tracer::start(Group::new(process))?;
        tracer.run(Group::seize_all)?;
        Ok(Self { process, tracer, raised })
    }

    /// Stops every thread, those born meanwhile included.
    ///
    /// # Errors
    /// [`StopError::Busy`] where some thread does not stop within `deadline` (a vfork parent, a wait for a dead disk);
    /// [`StopError::Failed`] with [`Error::Gone`] or [`Error::Exec`]. By then everything is let go.
    pub fn stop(self, deadline: Duration) -> Result<Stopped<'p>, StopError> {
        let threads = self.tracer.ask(move |group| group.stop_all(deadline))??;
        Ok(Stopped {
            process: self.process,
            threads: threads.into_iter().collect(),
            tracer: self.tracer,
            maps: OnceCell::new(),
            _raised: self.raised,
        })
    }
}

/// The part of the stack below the stack pointer that leaf functions use (System V ABI).
const RED_ZONE: u64 = 128;

impl<'p> Stopped<'p> {
    /// The stopped threads, in ascending order: all there are (but for a first thread that has ended).
    #[must_use]
    pub fn threads(&self) -> Vec<Tid> {
        self.threads.keys().copied().collect()
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &'p Process {
        self.process
    }

    /// A thread's registers.
    ///
    /// # Errors
    /// [`Error::NotStopped`].
    pub fn regs(&self, tid: Tid) -> Result<Regs, Error> {
        self.threads.get(&tid).copied().ok_or(Error::NotStopped(tid))
    }

    /// Moves the instruction pointer of a thread that is in user code.
    ///
    /// # Errors
    /// [`Error::InSyscall`] for a thread inside a system call, [`Error::NotStopped`], [`Error::ThreadGone`].
    pub fn set_ip(&mut self, tid: Tid, to: Avma) -> Result<(), Error> {
        let mut regs = self.regs(tid)?;
        if regs.syscall().is_some() {
            return Err(Error::InSyscall(tid));
        }
        regs.0.rip = to.0;
        self.set_regs(tid, regs)
    }

    /// Changes a thread's registers. Those of a thread inside a system call are the kernel's in part (`rax`, `orig_rax`,
    /// `rip`): leave them alone.
    ///
    /// # Errors
    /// [`Error::NotStopped`], [`Error::ThreadGone`].
    pub fn set_regs(&mut self, tid: Tid, regs: Regs) -> Result<(), Error> {
        self.tracer.run(move |group| group.set_regs(tid, &regs))?;
        self.threads.insert(tid, regs);
        Ok(())
    }

    /// The words of a thread's stack from the red zone up (the first one 8-byte aligned, at or just below
    /// `sp - 128`), to the end of the mapping, but not more than `max` bytes. Less where less is readable, nothing
    /// where the stack pointer points nowhere.
    ///
    /// # Errors
    /// [`Error::NotStopped`]; those of [`Process::maps_text`].
    pub fn stack(&self, tid: Tid, max: usize) -> Result<Vec<u64>, Error> {
        let sp = self.regs(tid)?.sp();
        let maps = match self.maps.get() {
            Some(maps) => maps,
            None => {
                let maps = self.process.maps_text()?.lines().filter_map(mapping_range).collect();
                self.maps.get_or_init(|| maps)
            }
        };
        let Some(stack) = maps.iter().find(|m| m.contains(sp)) else { return Ok(Vec::new()) };
        let from = sp.sub(RED_ZONE).align_down(8).max(stack.start);
        let len = usize::try_from(AvmaRange::new(from, stack.end).len()).unwrap_or(usize::MAX).min(max);
        let mut bytes = vec![0; len];
        let read = self.process.read_some(from, &mut bytes);
        bytes.truncate(read);
        Ok(bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect())
    }

    /// Writes over any protection, also where the kernel keeps `/proc/PID/mem` from doing so.
    ///
    /// # Errors
    /// [`Error::Unwritable`].
    pub fn write_text(&mut self, at: Avma, bytes: &[u8]) -> Result<(), Error> {
        write_text(self.process, &self.tracer, at, bytes)
    }

    /// Runs one system call in the target, on one of its threads, whose state is put back whole. Give no call that
    /// may wait, nor one that makes or ends threads or programs.
    ///
    /// # Errors
    /// [`Error::Remote`] where the call fails; else that it could not be made.
    pub fn syscall(&mut self, nr: i64, args: [u64; 6]) -> Result<i64, Error> {
        let gadgets = Gadgets::of(self.process)?;
        let tid = self.tracer.run(move |group| {
            let tid = group.worker()?;
            Ok((tid, group.syscall(tid, gadgets, nr, args)?))
        });
        // The mappings may be others now.
        self.maps = OnceCell::new();
        tid.map(|(_, result)| result)
    }

    /// Lets every thread go on.
    ///
    /// # Errors
    /// [`Error::TracerLost`]; all go on even then.
    pub fn release(self) -> Result<StopReport, Error> {
        self.tracer.ask(Group::release)
    }
}

pub(crate) fn write_text(process: &Process, tracer: &Tracer, at: Avma, bytes: &[u8]) -> Result<(), Error> {
    let Err(first) = process.write(at, bytes) else { return Ok(()) };
    let bytes = bytes.to_vec();
    tracer.run(move |group| group.poke(at, &bytes)).map_err(|_| first)
}
