//! Begins and resumes runs. After a run, also a failed one, the report is written from the data that there
//! is.

use crate::clock;
use crate::command::Commands;
use crate::error::Error;
use crate::events::{self, Uncounted};
use crate::folder::{Folder, Run};
use crate::host::Host;
use crate::interrupt::Interrupt;
use crate::lab::Lab;
use crate::machine::{Description, Machine, Placement, Topology};
use crate::progress::Progress;
use crate::record::{Head, VERSION};
use crate::report;
use crate::scenario::Scenario;
use crate::sysbench::Sysbench;
use crate::timed;
use crate::whet::Whet;
use std::fs;
use std::path::{Path, PathBuf};

/// The end of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The run's folder, if it was created.
    pub folder: Option<PathBuf>,
    /// Whether the run succeeded.
    pub result: Result<(), Error>,
}

/// Begins a new run.
pub fn begin(scenario: &Scenario, interrupt: &Interrupt) -> Outcome {
    let mut scenario = scenario.clone();
    let (steps, pairs) = (scenario.steps(&Topology::here()), scenario.pairs());
    scenario.common_mut().fill_control(steps, pairs);
    let path = scenario
        .common()
        .out
        .clone()
        .unwrap_or_else(|| Path::new("lab-runs").join(format!("{}-{}", scenario.name(), clock::stamp())));
    match create(&scenario, &path, interrupt) {
        Ok((folder, head, commands)) => go(&scenario, folder, &head, commands),
        Err(e) => Outcome { folder: None, result: Err(e) },
    }
}

/// Resumes an earlier run. `dsn` replaces the recorded addresses, which have no passwords.
pub fn resume(path: &Path, dsn: &[String], interrupt: &Interrupt) -> Outcome {
    let again = || {
        // Servers and their programs have other working directories, so the path must be absolute.
        let path = &std::path::absolute(path).map_err(Error::file(path))?;
        let run = Run::read(path)?;
        let mut scenario = run.head.scenario.clone();
        if !dsn.is_empty() {
            let recorded = scenario.database().map_or(0, |d| d.dsn.len());
            if dsn.len() != recorded {
                return Err(Error::Usage(format!(
                    "the run has {recorded} addresses, given are {}",
                    dsn.len()
                )));
            }
            if let Some(database) = scenario.database_mut() {
                database.dsn = dsn.to_vec();
            }
        }
        // An older lab may have accepted more, and another host may have fewer CPUs.
        scenario.check()?;
        scenario.fits(&Topology::here())?;
        let folder = Folder::reopen(&run)?;
        let commands = Commands::new(path, interrupt.clone())?;
        commands.note("# resumed")?;
        Ok((scenario, folder, run.head, commands))
    };
    match again() {
        Ok((scenario, folder, head, commands)) => go(&scenario, folder, &head, commands),
        Err(e) => Outcome { folder: None, result: Err(e) },
    }
}

fn create(
    scenario: &Scenario,
    path: &Path,
    interrupt: &Interrupt,
) -> Result<(Folder, Head, Commands), Error> {
    // Missing programs are reported before anything is created.
    let shell = scenario.database().and_then(|d| d.shell.as_deref());
    let named = scenario.common().whet.clone();
    let whet = match shell {
        _ if scenario.common().null => None,
        Some(_) => Some(named.unwrap_or_else(|| PathBuf::from("whet"))),
        None => Some(Whet::locate(named.as_deref())?),
    };
    for recipe in scenario.recipes()? {
        recipe.locate()?;
    }
    scenario.check()?;
    scenario.fits(&Topology::here())?;
    let database = scenario.database();
    let sysbench = database.filter(|_| scenario.needs_sysbench());
    let sysbench = sysbench.map(|d| Sysbench::locate(d.sysbench.as_deref())).transpose()?;
    fs::create_dir_all(path).map_err(Error::file(path))?;
    let path = path.canonicalize().map_err(Error::file(path))?;
    if path.join("run.json").exists() {
        let path = path.display();
        return Err(Error::Usage(format!(
            "{path} holds a run already: `whet-lab resume {path}` goes on with it"
        )));
    }
    let commands = Commands::new(&path, interrupt.clone())?;
    let host = Host::new(&commands, shell);
    let version = match &whet {
        Some(binary) => Whet::new(binary, &host).version()?,
        None => "none".to_owned(),
    };
    let sysbench = sysbench.map(|binary| Sysbench::version(&binary, &commands)).transpose()?;
    let here = Description::here();
    let uncounted = match shell {
        Some(_) => Some(Uncounted::Elsewhere),
        None => events::probe(&commands, events::table(&here.identity, here.smt))?,
    };
    let mut kept = scenario.clone();
    if let Some(database) = kept.database_mut() {
        *database = database.without_passwords();
    }
    kept.common_mut().whet = whet;
    let drawn = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |d| u64::from(d.subsec_nanos()) ^ (d.as_secs() << 20))
    };
    let mut folders = vec![path.as_path()];
    folders.extend(database.iter().flat_map(|d| d.datadir.iter().map(PathBuf::as_path)));
    let server = shell.map(|shell| Ok((shell, Description::there(&host)?))).transpose()?;
    let machine = Machine::check(interrupt, here, &folders, sysbench, uncounted.as_ref(), server.as_ref())?;
    let head = Head {
        version: VERSION,
        lab: env!("CARGO_PKG_VERSION").to_owned(),
        whet: version,
        begun: clock::now(),
        seed: scenario.common().seed.unwrap_or_else(drawn),
        scenario: kept,
        machine,
    };
    let folder = Folder::create(&path, &head)?;
    Ok((folder, head, commands))
}

fn go(scenario: &Scenario, folder: Folder, head: &Head, commands: Commands) -> Outcome {
    let path = folder.path().to_owned();
    let whet = scenario.common().whet.as_ref().or(head.scenario.common().whet.as_ref());
    let topology = Topology::here();
    let steps = scenario.steps(&topology);
    let host = Host::new(&commands, scenario.database().and_then(|d| d.shell.as_deref()));
    let mut lab = Lab {
        folder,
        machine: head.machine.clone(),
        placement: Placement::default(),
        seed: head.seed,
        whet: whet.filter(|_| !scenario.common().null).map(|w| Whet::new(w, &host)),
        host,
        commands,
        progress: Progress::new(steps),
        topology,
    };
    lab.progress.say(&format!("raw data goes to {}", path.display()));
    for finding in &head.machine.findings {
        lab.progress.say(&format!("machine: {finding}"));
    }
    if let Some(warning) = scenario.common().warning(steps, scenario.pairs()) {
        lab.progress.say(&warning);
    }
    let result = scenario.run(&mut lab);
    if let Err(e) = &result {
        // The log alone then shows why the run ended.
        let _ = lab.commands.note(&format!("! {e}"));
    }
    if let (Ok(()), Ok(run)) = (&result, Run::read(&path)) {
        lab.progress.say(&report::verdict(&run));
    }
    drop(lab);
    // Remains of a server that was killed with an earlier lab.
    let _ = fs::remove_dir_all(path.join("work"));
    for file in ["sysbench.conf", timed::NAME] {
        let _ = fs::remove_file(path.join(file));
    }
    let drawn = Run::read(&path).and_then(|run| report::write(&run, None));
    let result = result.and_then(|()| drawn.map(|_| ()));
    Outcome { folder: Some(path), result }
}
