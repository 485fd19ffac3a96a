//! A run in progress: its folder, programs and options, and the order in which servers are set up and steps
//! run.

use crate::clock;
use crate::command::Commands;
use crate::error::Error;
use crate::folder::Folder;
use crate::guard;
use crate::host::Host;
use crate::machine::{self, Machine, Placement, Topology};
use crate::options::{Common, Database, rows_that_fit};
use crate::program::Program;
use crate::program::{Settings, Source};
use crate::progress::Progress;
use crate::record::{Event, FamilyChange, Place, Side, Step};
use crate::server::{Installation, Server, Whereabouts};
use crate::service::{Recipe, Service};
use crate::stats;
use crate::sysbench::Sysbench;
use crate::target::Target;
use crate::whet::{Sides, Whet};
use std::fs;
use std::path::{Path, PathBuf};

/// A step while it is measured.
#[derive(Debug)]
pub struct ActiveStep<'a, T> {
    /// The run.
    pub lab: &'a mut Lab,
    /// The step.
    pub step: &'a Step,
    /// The server.
    pub server: &'a T,
    /// The side that the server is on, and how to change it.
    pub sides: &'a mut Sides,
}

impl<T> ActiveStep<'_, T> {
    /// Records an event of the step.
    ///
    /// # Errors
    /// An error of the folder.
    pub fn add(&mut self, event: Event) -> Result<(), Error> {
        self.lab.folder.add(self.step, event)
    }

    /// Rebuilds the server under the present load, as [`Sides::optimize`], and records what whet did. Returns
    /// false if the server was not rebuilt.
    ///
    /// # Errors
    /// whet's error; an error of the folder.
    pub fn optimize(&mut self, seconds: Option<f64>) -> Result<bool, Error> {
        let Some((answer, change)) = self.sides.optimize(seconds)? else { return Ok(false) };
        self.add(Event::Optimize { answer })?;
        self.add_change(change)?;
        Ok(true)
    }

    /// Brings the server to a side, as [`Sides::go`], and records what whet did with a family.
    ///
    /// # Errors
    /// whet's error; an error of the folder.
    pub fn go(&mut self, side: Side) -> Result<(), Error> {
        let change = self.sides.go(side)?;
        self.add_change(change)
    }

    fn add_change(&mut self, change: Option<FamilyChange>) -> Result<(), Error> {
        change.map_or(Ok(()), |change| self.add(Event::Family(change)))
    }

    /// Records the events that whet models for the step, if the hardware counts none. The server must have clones
    /// and be under load.
    ///
    /// # Errors
    /// whet's error; an error of the folder.
    pub fn model(&mut self) -> Result<(), Error> {
        if self.lab.machine.pmu {
            return Ok(());
        }
        self.lab.progress.doing("modelling events");
        match self.sides.modelled()? {
            Some(answer) => self.add(Event::Modelled { answer }),
            None => Ok(()),
        }
    }
}

/// The state that a scenario works with.
#[derive(Debug)]
pub struct Lab {
    /// The run's folder, which takes the raw data.
    pub folder: Folder,
    /// Starts programs and logs them.
    pub commands: Commands,
    /// The host when the run began.
    pub machine: Machine,
    /// The CPUs of the host.
    pub topology: Topology,
    /// The CPUs of the present server and of its clients.
    pub placement: Placement,
    /// The host of the servers, as far as the lab reaches it.
    pub host: Host,
    /// The seed of everything random.
    pub seed: u64,
    /// whet, or `None` for an A/A control.
    pub whet: Option<Whet>,
    /// Shows progress to the user.
    pub progress: Progress,
}

impl Lab {
    /// Divides the CPUs as a place requires. If the server is on another host, the clients get all CPUs. Binds the lab, and so every program that it starts, to the
    /// clients' CPUs.
    ///
    /// # Errors
    /// [`Error::Usage`] if the host has no such place; the error of `sched_setaffinity`.
    pub fn settle(&mut self, place: &Place) -> Result<(), Error> {
        self.placement = machine::place(&self.topology, place.wanted()).map_err(Error::Usage)?;
        if !self.host.is_here() {
            let Placement { server, clients } = &mut self.placement;
            clients.append(server);
            clients.sort_unstable();
            clients.dedup();
        }
        let set = guard::set_of(&self.placement.clients);
        rustix::thread::sched_setaffinity(None, &set).map_err(|e| Error::file("/proc/self")(e.into()))
    }

    /// Returns sysbench with `tables` tables of `rows` rows each. If `rows` is not given, the tables fill
    /// half the buffer pool, within the limits of [`rows_that_fit`].
    ///
    /// # Errors
    /// [`Error::Missing`] if sysbench is not installed.
    pub fn sysbench(&self, database: &Database, tables: usize, rows: Option<u64>) -> Result<Sysbench, Error> {
        let binary = Sysbench::locate(database.sysbench.as_deref())?;
        let pool = database.buffer_pool_mib(self.machine.host.memory_mib);
        let rows = rows.unwrap_or_else(|| rows_that_fit(pool, tables));
        Ok(Sysbench::new(&binary, &self.commands, self.folder.path(), tables, rows))
    }

    /// Fills a server with the tables of `sysbench`.
    ///
    /// # Errors
    /// As [`Sysbench::prepare`]; [`Error::ServerGone`] if the server has ended.
    pub fn fill(&self, sysbench: &Sysbench, server: &mut Server) -> Result<(), Error> {
        self.progress.doing("filling tables");
        sysbench.prepare(&server.address).map_err(|e| server.explain(e))
    }

    /// Sets up each server in each place, one after the other, and runs `work` on it.
    ///
    /// # Errors
    /// The first error of a setup or of `work`.
    pub fn each_server(
        &mut self,
        database: &Database,
        settings: &Settings,
        mut work: impl FnMut(&mut Self, &Installation, &Place) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let places = database.places();
        for place in &places {
            // A place that the host does not have is reported before hours are spent on the others.
            self.settle(place)?;
        }
        let sources = database.sources();
        // All named servers are fetched first, so that a missing server is reported before hours are spent on
        // the others.
        for source in &sources {
            if let Source::Named(name) = source {
                self.progress.doing(&format!("fetching {name}"));
                Program::find(&self.commands, source)?;
            }
        }
        let mut taken: Vec<String> = Vec::new();
        for (number, source) in sources.iter().enumerate() {
            let mut named = None;
            for place in &places {
                self.settle(place)?;
                let parent = self.data_folder(database, place);
                self.progress.doing("setting the server up");
                let installation = match source {
                    Source::Running(url) => Installation::running(&self.commands, &self.host, url, &taken),
                    private => {
                        let logs = self.folder.path().join("servers");
                        let settings = Settings {
                            more: database.options_of(number),
                            flush_log: place.flush_log.unwrap_or(settings.flush_log),
                            ..settings.clone()
                        };
                        let at = Whereabouts { logs: &logs, data: &parent, cpus: &self.placement.server };
                        Installation::private(&self.commands, private, &taken, &at, &settings)
                    }
                };
                let worked = installation.and_then(|installation| {
                    named = Some(installation.name.clone());
                    work(self, &installation, place)
                });
                // The folder is empty now, if it was created.
                let _ = fs::remove_dir(&parent);
                worked?;
            }
            taken.extend(named);
        }
        Ok(())
    }

    /// Returns the folder below which a private server's data is created in a place.
    fn data_folder(&self, database: &Database, place: &Place) -> PathBuf {
        let run = self.folder.path();
        let chosen = match &place.storage {
            Some(folder) => Some(Path::new(folder)),
            None => database.datadir.first().map(PathBuf::as_path),
        };
        let Some(folder) = chosen else { return self.work() };
        // Servers change to their data folder, so a relative path would be wrong there.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        folder.join(data_name(run))
    }

    /// Returns the folder of what servers need while they run. It ends with the run.
    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Starts a program in each place, on the server's CPUs, and runs `work` on it. `more` are arguments
    /// behind those of the recipe.
    ///
    /// # Errors
    /// The first error of a start or of `work`.
    pub fn each_service(
        &mut self,
        common: &Common,
        recipe: &Recipe,
        more: &[String],
        mut work: impl FnMut(&mut Self, &mut Service, &Place) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.each_place(common, |lab, place| {
            let mut service = lab.service(recipe, more)?;
            work(lab, &mut service, place)
        })
    }

    /// Divides the CPUs as each place requires, and runs `work` there.
    ///
    /// # Errors
    /// The first error of [`Self::settle`] or of `work`.
    pub fn each_place(
        &mut self,
        common: &Common,
        mut work: impl FnMut(&mut Self, &Place) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for place in common.places() {
            self.settle(&place)?;
            work(self, &place)?;
        }
        Ok(())
    }

    /// Starts a program on the server's CPUs. `more` are arguments behind those of the recipe.
    ///
    /// # Errors
    /// As [`Service::start`].
    pub fn service(&self, recipe: &Recipe, more: &[String]) -> Result<Service, Error> {
        self.progress.doing("starting the server");
        Service::start(&self.commands, recipe, more, self.folder.path(), &self.placement.server)
    }

    /// Runs one step, unless an earlier run has finished it. `work` returns how many queries were retried.
    ///
    /// # Errors
    /// The error of `work`, or [`Error::ServerGone`] if the server has ended. Errors of the folder and the
    /// log.
    pub fn step<T: Target>(
        &mut self,
        step: &Step,
        server: &mut T,
        sides: &mut Sides,
        work: impl FnOnce(ActiveStep<'_, T>) -> Result<u64, Error>,
    ) -> Result<(), Error> {
        if self.folder.has(step) {
            self.progress.end(true);
            return Ok(());
        }
        self.progress.begin(&step.to_string());
        let begin = Event::Begin {
            at: clock::now(),
            server_version: server.version().to_owned(),
            exe: server.exe(),
            options: server.options().to_vec(),
            placement: self.placement.clone(),
        };
        self.folder.add(step, begin)?;
        self.commands.note(&format!("# {step}"))?;
        match work(ActiveStep { lab: &mut *self, step, server, sides }) {
            Ok(retried) => {
                self.folder.done(step, retried)?;
                self.progress.end(false);
                Ok(())
            }
            Err(e) => {
                let e = server.explain(e);
                // On a full disk this record is lost as well. The step then has neither record of its end,
                // which also counts as unfinished.
                let _ = self.folder.add(step, Event::Broken { why: e.to_string() });
                Err(e)
            }
        }
    }
}

/// Returns the name of the folder for the data of a run's servers, where several runs may share its parent. It
/// depends on the run folder's real path alone, so that `resume` finds what a killed lab left, and has a hash of
/// this path, since the last names of two runs may be equal.
fn data_name(run: &Path) -> String {
    let run = run.canonicalize().unwrap_or_else(|_| run.to_owned());
    let name = run.file_name().unwrap_or_default().to_string_lossy();
    format!("whet-lab-{name}-{:016x}", stats::hash(run.as_os_str().as_encoded_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_the_same_last_name_have_data_folders_of_their_own() {
        let names = ["/no/a/r", "/no/b/r", "/no/a/r"].map(|run| data_name(Path::new(run)));
        assert!(names[0] != names[1] && names[0] == names[2], "{names:?}");
        // Another lab must find this folder as well, so the name never changes.
        assert_eq!(names[0], "whet-lab-r-71b67b02ff73f9e4");
    }

    #[test]
    fn all_paths_of_a_run_give_the_same_data_folder() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().canonicalize().unwrap().join("r");
        let link = run.with_file_name("link");
        fs::create_dir(&run).unwrap();
        std::os::unix::fs::symlink(&run, &link).unwrap();
        let name = data_name(&run);
        assert!(name.starts_with("whet-lab-r-"), "{name}");
        for other in [run.join("."), run.join("../r"), link] {
            assert_eq!(data_name(&other), name, "{}", other.display());
        }
    }
}
