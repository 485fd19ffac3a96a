//! Measures windows of a live target.

use crate::hardware::{self, Hardware};
use crate::window::HardwareCounts;
use crate::{Error, Side, Window, Work, cpu};
use engine::{Interrupt, Pid};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tracee::Process;

/// The longest sleep between two checks for an interrupt, so that Ctrl-C acts within this time.
const NAP: Duration = Duration::from_millis(50);

/// Sleeps, or returns an error as soon as the user interrupts.
pub fn sleep(time: Duration, interrupt: &Interrupt) -> Result<(), Error> {
    let end = Instant::now() + time;
    loop {
        interrupt.check()?;
        match end.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => std::thread::sleep(left.min(NAP)),
            _ => return Ok(()),
        }
    }
}

/// All counters, read at one moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Seconds since the gauge was created.
    seconds: f64,
    cpu: f64,
    work: f64,
    user: f64,
    host_idle: f64,
    hardware: Option<HardwareCounts>,
}

/// A reader of a target's counters.
pub struct Gauge<'a> {
    process: Process,
    work: &'a mut dyn Work,
    hardware: Option<Hardware>,
    begun: Instant,
    awake: BTreeMap<String, f64>,
}

impl std::fmt::Debug for Gauge<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gauge").field("process", &self.process).finish_non_exhaustive()
    }
}

impl<'a> Gauge<'a> {
    pub fn new(process: Process, work: &'a mut dyn Work) -> Self {
        let hardware = Hardware::open(process.pid());
        let awake = cpu::awake(process.pid());
        Self { process, work, hardware, begun: Instant::now(), awake }
    }

    /// Measures one window.
    pub fn window(
        &mut self,
        pair: u32,
        side: Side,
        length: Duration,
        interrupt: &Interrupt,
    ) -> Result<Window, Error> {
        let before = self.read(interrupt)?;
        sleep(length, interrupt)?;
        let after = self.read(interrupt)?;
        Ok(Window {
            pair,
            side,
            seconds: after.seconds - before.seconds,
            work: after.work - before.work,
            cpu: after.cpu - before.cpu,
            user: after.user - before.user,
            host_idle: after.host_idle - before.host_idle,
            hardware: before.hardware.zip(after.hardware).map(|(b, a)| hardware::between(b, a)),
        })
    }

    /// Returns the share of time since the gauge was created in which the target's busiest thread did not
    /// sleep. Returns 0 if the kernel does not report these times.
    pub fn busiest_thread(&self) -> f64 {
        let elapsed = self.begun.elapsed().as_secs_f64() * 1e9;
        let awake = cpu::awake(self.pid());
        let since = |(tid, now): (&String, &f64)| now - self.awake.get(tid).copied().unwrap_or(0.0);
        awake.iter().map(since).fold(0.0, f64::max) / elapsed
    }

    fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Reads all counters. Wall time and CPU time are those in the middle of the read of the work, which may
    /// take long.
    fn read(&mut self, interrupt: &Interrupt) -> Result<Reading, Error> {
        let hardware = self.hardware.as_mut().map(Hardware::read);
        let (user, host_idle) = (cpu::user_seconds(self.pid()), cpu::host_idle_seconds()?);
        let user = user.map_err(|e| if self.process.is_alive() { e } else { self.gone() })?;
        let before = self.clocks()?;
        let work = self.work.read();
        let after = self.clocks()?;
        let work = work.map_err(|source| match interrupt.check() {
            // A signal to the terminal's whole process group may have ended the process that counts.
            Err(wish) => wish.into(),
            Ok(()) => Error::Work { what: self.work.what(), source },
        })?;
        let middle = |a: f64, b: f64| f64::midpoint(a, b);
        Ok(Reading {
            seconds: middle(before.0, after.0),
            cpu: middle(before.1, after.1),
            work,
            user,
            host_idle,
            hardware,
        })
    }

    fn clocks(&self) -> Result<(f64, f64), Error> {
        let cpu = self.process.cpu_time_ns().map_err(engine::Error::from)?;
        Ok((self.begun.elapsed().as_secs_f64(), cpu as f64 / 1e9))
    }

    fn gone(&self) -> Error {
        engine::Error::from(tracee::Error::Gone(self.pid())).into()
    }
}
