//! A run that goes on: its folder, its programs, its options, and the order in which servers are set up and steps taken.

use crate::clock;
use crate::command::Commands;
use crate::error::Error;
use crate::folder::Folder;
use crate::guard;
use crate::machine::Machine;
use crate::options::{Common, rows_that_fit};
use crate::program::Program;
use crate::progress::Progress;
use crate::record::{Event, Step};
use crate::server::{Home, Server, Settings, Source};
use crate::sysbench::Sysbench;
use crate::whet::Whet;
use std::fs;
use std::path::PathBuf;

/// What a scenario works with.
#[derive(Debug)]
pub struct Lab {
    /// Where raw data goes.
    pub folder: Folder,
    /// Runs programs.
    pub commands: Commands,
    /// This host.
    pub machine: Machine,
    /// Of all that is random.
    pub seed: u64,
    /// What all scenarios are asked.
    pub common: Common,
    /// None where nothing is to be compared with nothing.
    pub whet: Option<Whet>,
    /// For people.
    pub progress: Progress,
}

impl Lab {
    /// Keeps the lab itself, and all it starts, on the clients' CPUs.
    ///
    /// # Errors
    /// The system's.
    pub fn keep_apart(&self) -> Result<(), Error> {
        if self.machine.client_cpus.is_empty() {
            return Ok(());
        }
        let set = guard::set_of(&self.machine.client_cpus);
        rustix::thread::sched_setaffinity(None, &set).map_err(|e| Error::file("/proc/self")(e.into()))
    }

    /// sysbench with so many tables of so many rows each, or of as many as half the buffer pool holds.
    ///
    /// # Errors
    /// Where it is not installed.
    pub fn sysbench(&self, tables: usize, rows: Option<u64>) -> Result<Sysbench, Error> {
        let binary = Sysbench::locate(self.common.sysbench.as_deref())?;
        let pool = self.common.buffer_pool_mib(self.machine.memory_mib);
        let rows = rows.unwrap_or_else(|| rows_that_fit(pool, tables));
        Ok(Sysbench::new(&binary, &self.commands, self.folder.path(), tables, rows))
    }

    /// Fills a server with its tables.
    ///
    /// # Errors
    /// As [`Sysbench::prepare`]; what the server has to say of it.
    pub fn fill(&self, sysbench: &Sysbench, server: &mut Server) -> Result<(), Error> {
        self.progress.doing("filling tables");
        sysbench.prepare(&server.address).map_err(|e| server.explain(e))
    }

    /// Sets each server up in each storage folder, one after the other, and has `work` done on it.
    ///
    /// # Errors
    /// The first of anything.
    pub fn each_home(
        &mut self,
        settings: &Settings,
        mut work: impl FnMut(&mut Self, &Home, Option<String>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let run = self.folder.path().to_owned();
        let name = run.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Servers go to their data folder and would not find a relative path from there.
        let at = |d: &PathBuf| std::path::absolute(d).unwrap_or_else(|_| d.clone());
        let storages: Vec<_> = match self.common.datadir.as_slice() {
            [] => vec![(None, run.join("work"))],
            some => some
                .iter()
                .map(|d| (Some(d.display().to_string()), at(d).join(format!("whet-lab-{name}"))))
                .collect(),
        };
        let sources = self.common.sources();
        // What cannot be had is said before hours are spent on the others.
        for source in &sources {
            if let Source::Named(name) = source {
                self.progress.doing(&format!("fetching {name}"));
                Program::find(&self.commands, source)?;
            }
        }
        let mut taken: Vec<String> = Vec::new();
        for source in &sources {
            let mut name = None;
            for (storage, parent) in &storages {
                self.progress.doing("setting the server up");
                let home = match source {
                    Source::Running(url) => Home::running(&self.commands, url, &taken),
                    private => {
                        let cpus = &self.machine.server_cpus;
                        let places = [run.join("servers"), parent.clone()];
                        let [logs, data] = places.each_ref().map(PathBuf::as_path);
                        Home::private(&self.commands, private, &taken, [logs, data], cpus, settings)
                    }
                };
                let worked = home.and_then(|home| {
                    name = Some(home.name.clone());
                    work(self, &home, storage.clone())
                });
                // Empty by now, if it was made at all.
                let _ = fs::remove_dir(parent);
                worked?;
            }
            taken.extend(name);
        }
        Ok(())
    }

    /// Takes one step, if an earlier run has not taken it. `work` gives how many of its queries were tried again.
    ///
    /// # Errors
    /// What `work` says; where the server has ended, that.
    pub fn step(
        &mut self,
        step: &Step,
        server: &mut Server,
        work: impl FnOnce(&mut Self, &Server) -> Result<u64, Error>,
    ) -> Result<(), Error> {
        if self.folder.has(step) {
            self.progress.end(true);
            return Ok(());
        }
        self.progress.begin(&step.to_string());
        let begin =
            Event::Begin { at: clock::now(), server_version: server.version.clone(), exe: server.exe() };
        self.folder.add(step, begin)?;
        self.commands.note(&format!("# {step}"))?;
        match work(self, server) {
            Ok(retried) => {
                self.folder.done(step, retried)?;
                self.progress.end(false);
                Ok(())
            }
            Err(e) => {
                let e = server.explain(e);
                // On a full disk this is lost as well; the step then has an end of neither kind, which says the same.
                let _ = self.folder.add(step, Event::Broken { why: e.to_string() });
                Err(e)
            }
        }
    }
}
