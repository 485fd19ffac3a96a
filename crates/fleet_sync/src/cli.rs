//! The command line of `whet-fleet`.

use crate::status::{LastRun, Status};
use crate::{Config, Error, Exit, FolderSpool, Memory, SigningKey, Synced, files, operator, sync};
use clap::{Parser, Subcommand};
use fleet::Class;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Shares profiles between the hosts of a fleet, through an object store.
#[derive(Debug, Parser)]
#[command(
    name = "whet-fleet",
    version,
    after_help = "Exit codes: 0 done, 2 usage or configuration, 3 the store cannot be reached, 4 the store denies access, \
5 something was refused, 6 a file on this host, 7 the store is full, read-only or wrong. After any of them, the next run \
does what is left."
)]
pub struct Cli {
    /// The configuration [default: /etc/whet-fleet.toml, or $WHET_FLEET_CONFIG].
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Contribute this host's profiles and votes, and accept aggregates.
    Sync,
    /// Show what this host contributed, accepted and refused, and why.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Make a signing key: FILE, and the public key FILE.pub.
    Keygen {
        /// The file of the secret key. It must not exist.
        file: PathBuf,
    },
    /// Sign a profile as an aggregate, in the form that the daemon's inbox accepts.
    Sign {
        /// The secret key.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The build-id of the program.
        #[arg(long)]
        build: String,
        /// The class of the hosts.
        #[arg(long, default_value = "default")]
        class: Class,
        /// The profile.
        profile: PathBuf,
        /// The signed aggregate.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Fold contributions, sign, and advance the waves: one step for each program.
    Merge {
        /// The secret key.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Only the program with this build-id.
        #[arg(long)]
        build: Option<String>,
    },
    /// Show the policy in the store, or replace it.
    Policy {
        /// Sign this policy and put it into the store. Its serial number must be greater than before.
        #[arg(long, value_name = "FILE", requires = "key")]
        set: Option<PathBuf>,
        /// The secret key.
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
    },
}

/// Runs the command line, and returns the exit code.
#[must_use]
pub fn run(cli: &Cli) -> Exit {
    match cli.carry_out() {
        Ok(text) => {
            let mut out = std::io::stdout().lock();
            // A reader that went away does not make the work fail.
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            Exit::Ok
        }
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "whet-fleet: {e}");
            e.exit()
        }
    }
}

/// Returns this host's time, in seconds of the Unix epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

fn wait<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| Error::Usage(format!("cannot start: {e}")))?.block_on(work)
}

fn lines(list: &[String]) -> String {
    list.iter().map(|l| format!("{l}\n")).collect()
}

impl Cli {
    fn carry_out(&self) -> Result<String, Error> {
        let config = || Config::read(&self.config.clone().unwrap_or_else(Config::file));
        match &self.command {
            Command::Sync => sync_once(&config()?),
            Command::Status { json } => {
                let status = Status::read(&config()?)?;
                if *json {
                    let text = serde_json::to_string_pretty(&status).unwrap_or_default();
                    Ok(text + "\n")
                } else {
                    Ok(status.text())
                }
            }
            Command::Keygen { file } => keygen(file),
            Command::Sign { key, build, class, profile, output } => {
                operator::sign(key, build, class, profile, output)?;
                Ok(String::new())
            }
            Command::Merge { key, build } => {
                wait(operator::merge_all(&config()?, key, build.as_deref())).map(|l| lines(&l))
            }
            Command::Policy { set: Some(file), key: Some(key) } => {
                wait(operator::set_policy(&config()?, key, file)).map(|p| p.text())
            }
            Command::Policy { .. } => wait(operator::policy(&config()?)).map(|p| p.text()),
        }
    }
}

fn keygen(file: &Path) -> Result<String, Error> {
    let key = SigningKey::generate()?;
    let public = key.write(file)?;
    Ok(format!(
        "keys = [{:?}]    # {}; for whet.toml ([fleet]) and whet-fleet.toml\n",
        key.public(),
        public.display()
    ))
}

fn sync_once(config: &Config) -> Result<String, Error> {
    let (remote, host) = (config.remote()?, config.host()?);
    let mut spool = FolderSpool::new(&config.spool);
    let mut memory = Memory::read(&config.memory_file())?;
    let mut done = Synced::default();
    let result = wait(sync(&remote, &host, &mut spool, &mut memory, now(), &mut done));
    let kept = memory.write(&config.memory_file());
    let run = LastRun { when: now(), done, error: result.as_ref().err().map(ToString::to_string) };
    let text = serde_json::to_vec_pretty(&run).unwrap_or_default();
    let noted = files::write(&config.last_run_file(), &text, 0o644);
    result?;
    kept?;
    noted?;
    let said = [
        ("contributed", &run.done.contributed),
        ("accepted", &run.done.accepted),
        ("kept back", &run.done.kept_back),
    ];
    Ok(said.iter().flat_map(|(w, l)| l.iter().map(move |l| format!("{w}: {l}\n"))).collect())
}
