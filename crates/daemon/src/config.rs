//! The configuration: the content of `whet.toml`, checked.
//!
//! Unknown keys are errors: a misspelt limit must not silently mean no limit. Every error in the text names
//! file, line and column.

use crate::units::{Bytes, Hours, Span};
use engine::CodeCache;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The path of the configuration, unless another is given.
pub const CONFIG_FILE: &str = "/etc/whet.toml";
/// The environment variable that names another file.
pub const CONFIG_VARIABLE: &str = "WHET_CONFIG";

/// All settings. `packaging/whet.toml` describes each key.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The processes that are optimized.
    pub target: Vec<Rule>,
    /// When a target is optimized.
    pub take: Take,
    /// How a target is profiled.
    pub profile: Profiling,
    /// When a target is rebuilt.
    pub reoptimize: Reoptimize,
    /// When a rebuild is undone.
    pub harm: Harm,
    /// How carefully this host begins.
    pub rollout: Rollout,
    /// Exchange of profiles with other hosts.
    pub fleet: Fleet,
    /// The paths of files.
    pub paths: Paths,
    /// Never rebuild an optimized target, even if its load changes.
    pub optimize_once: bool,
}

/// A rule that selects targets. A process must match every key that is given.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// The program: its file name, or its whole path if the value begins with `/`.
    pub exe: Option<String>,
    /// The process's control group, or one above it: `/system.slice/mariadb.service`.
    pub cgroup: Option<String>,
}

/// When a target is optimized.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Take {
    /// Percent of one CPU that the process must use in user mode, in two scans in a row.
    pub cpu_percent: f64,
    /// The least age of the process.
    pub min_age: Span,
    /// The least age if a profile of the same build is kept, so that the process is started warm. `min_age`
    /// applies if it is shorter.
    pub warm_min_age: Span,
    /// The most targets that are worked on at the same time.
    pub at_once: u32,
    /// The most targets that are kept optimized.
    pub max_targets: u32,
    /// The times of day at which no new work begins. Local time.
    pub quiet_hours: Vec<Hours>,
    /// The interval between scans of the processes.
    pub every: Span,
}

/// How a target is profiled.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profiling {
    /// The sampling time.
    pub sampling: Span,
    /// The length of a round of counting; 0 estimates all counts from samples.
    pub counting: Span,
    /// The address space for all clones of one target. Bytes.
    pub memory_cap: Bytes,
    /// The memory of clones: `anonymous`, or `file`.
    pub code_cache: CodeCache,
}

/// When a target is rebuilt.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reoptimize {
    /// The interval between comparisons of the layout with the load.
    pub every: Span,
    /// The layout no longer fits if the share of samples in hot clones has fallen by more than this. Percent
    /// of all samples.
    pub share_drop_percent: f64,
    /// The layout no longer fits if more than this share of the samples lies in other functions than in the
    /// profile. Percent of all samples.
    pub drift_percent: f64,
    /// The least time from one rebuild to the next.
    pub min_interval: Span,
}

/// When a rebuild is undone because it does harm.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Harm {
    /// Whether work with and without clones is compared after each rebuild.
    pub judge: bool,
    /// The time for the comparison of work.
    pub within: Span,
    /// The least gain in work per CPU second. Percent. A rebuild is undone if the upper end of the gain's 95%
    /// interval is lower, and the gain itself is lower by at least 1 percentage point.
    pub min_gain_percent: f64,
}

/// How carefully this host begins. Optimized targets stay optimized, and undo works, with any of these
/// settings.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rollout {
    /// Optimize nothing; report what would be optimized.
    pub observe: bool,
    /// Begin nothing new: no rebuild, neither of new targets nor of optimized ones.
    pub freeze: bool,
    /// The share of targets that are optimized. Percent of all processes on the list.
    pub share_percent: f64,
    /// The longest time that is added to a target's least age; each target has a part of it.
    pub start_jitter: Span,
    /// The most stops of targets in a minute, on the whole host; `None` for no limit.
    pub stops_per_minute: Option<u32>,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            observe: false,
            freeze: false,
            share_percent: 100.0,
            start_jitter: seconds(0),
            stops_per_minute: None,
        }
    }
}

/// Exchange of profiles with other hosts, by a folder that `whet-fleet` empties and fills.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fleet {
    /// The spool folder; `None` for no exchange.
    pub spool: Option<PathBuf>,
    /// The public keys whose signatures are trusted. Without a key nothing is accepted.
    pub keys: Vec<String>,
    /// The operator's label for hosts that run a program in the same way.
    pub class: fleet::Class,
}

/// The paths of files.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Paths {
    /// The socket on which the daemon accepts calls.
    pub socket: PathBuf,
    /// The folder of files that outlive the daemon: profiles, and records of targets.
    pub state: PathBuf,
    /// While this file exists, nothing is optimized, and optimized targets are undone.
    pub kill_switch: PathBuf,
    /// The file for metrics, for a collector of text files.
    pub metrics: Option<PathBuf>,
}

const fn seconds(n: u64) -> Span {
    Span(Duration::from_secs(n))
}

impl Default for Config {
    fn default() -> Self {
        Self {
            target: ["mariadbd", "mysqld"]
                .map(|exe| Rule { exe: Some(exe.to_owned()), cgroup: None })
                .to_vec(),
            take: Take::default(),
            profile: Profiling::default(),
            reoptimize: Reoptimize::default(),
            harm: Harm::default(),
            rollout: Rollout::default(),
            fleet: Fleet::default(),
            paths: Paths::default(),
            optimize_once: false,
        }
    }
}

impl Default for Take {
    fn default() -> Self {
        Self {
            cpu_percent: 30.0,
            min_age: seconds(60),
            warm_min_age: seconds(5),
            at_once: 1,
            max_targets: 64,
            quiet_hours: Vec::new(),
            every: seconds(5),
        }
    }
}

impl Default for Profiling {
    fn default() -> Self {
        Self {
            sampling: seconds(6),
            counting: seconds(1),
            memory_cap: Bytes(128 << 20),
            code_cache: CodeCache::default(),
        }
    }
}

impl Default for Reoptimize {
    fn default() -> Self {
        Self { every: seconds(60), share_drop_percent: 15.0, drift_percent: 35.0, min_interval: seconds(600) }
    }
}

impl Default for Harm {
    fn default() -> Self {
        Self { judge: true, within: seconds(20), min_gain_percent: 0.0 }
    }
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            socket: "/run/whetd/socket".into(),
            state: "/var/lib/whet".into(),
            kill_switch: "/etc/whet.off".into(),
            metrics: None,
        }
    }
}

/// The reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The text is not a valid configuration.
    #[error("{}:{line}:{column}: {what}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// Its column, in characters, from 1.
        column: usize,
        /// What is wrong.
        what: String,
    },
}

impl Config {
    /// Returns the path of the file that applies if the command line names none.
    #[must_use]
    pub fn file() -> PathBuf {
        std::env::var_os(CONFIG_VARIABLE).map_or_else(|| CONFIG_FILE.into(), PathBuf::from)
    }

    /// Parses the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// [`ConfigError::Wrong`]
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let wrong = |at: usize, what: String| {
            let before = text.get(..at).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
            ConfigError::Wrong { path: path.to_owned(), line, column, what }
        };
        let config: Self = toml::from_str(text)
            .map_err(|e| wrong(e.span().map_or(0, |s| s.start), e.message().trim().replace('\n', "; ")))?;
        config.check().map_or(Ok(config), |(section, key, what)| {
            Err(wrong(place(text, section, key), format!("{key}: {what}")))
        })
    }

    /// Returns the first invalid value.
    fn check(&self) -> Option<Invalid> {
        let percent = |v: f64, most: f64| (0.0..=most).contains(&v);
        let second = Duration::from_secs(1);
        let Self { take, profile, reoptimize, harm, .. } = self;
        let is_target =
            "each needs an exe (a file name, or a path that begins with /) or a cgroup (that begins with /)";
        first("target", [("target", self.target.iter().all(Rule::is_valid), is_target)])
            .or_else(|| {
                let checks = [
                    ("cpu_percent", percent(take.cpu_percent, 100_000.0), "must be from 0 to 100000"),
                    ("at_once", (1..=64).contains(&take.at_once), "must be from 1 to 64"),
                    ("max_targets", (1..=4096).contains(&take.max_targets), "must be from 1 to 4096"),
                    ("every", take.every.0 >= second / 5, "must be 200ms or more"),
                ];
                first("take", checks)
            })
            .or_else(|| {
                let sampling = second / 2..=second * 600;
                let cap = 4 << 20..=engine::MEMORY_CAP;
                let checks = [
                    ("sampling", sampling.contains(&profile.sampling.0), "must be from 500ms to 10m"),
                    ("counting", profile.counting.0 <= second * 5, "must be 5s or less"),
                    ("memory_cap", cap.contains(&profile.memory_cap.0), "must be from 4 MiB to 128 MiB"),
                ];
                first("profile", checks)
            })
            .or_else(|| {
                let (drop, drift) = (reoptimize.share_drop_percent, reoptimize.drift_percent);
                let checks = [
                    ("every", reoptimize.every.0 >= second, "must be 1s or more"),
                    ("share_drop_percent", percent(drop, 100.0), PERCENT),
                    ("drift_percent", percent(drift, 100.0), PERCENT),
                ];
                first("reoptimize", checks)
            })
            .or_else(|| {
                let within = (second..=second * 600).contains(&harm.within.0);
                let checks = [
                    ("within", within, "must be from 1s to 10m"),
                    ("min_gain_percent", percent(harm.min_gain_percent, 100.0), PERCENT),
                ];
                first("harm", checks)
            })
            .or_else(|| {
                first("rollout", [("share_percent", percent(self.rollout.share_percent, 100.0), PERCENT)])
            })
            .or_else(|| self.fleet.check())
            .or_else(|| self.paths.check())
    }

    /// Returns whether the kill switch is on, so that nothing may be optimized.
    #[must_use]
    pub fn is_switched_off(&self) -> bool {
        // If the check fails, the file counts as present: the switch is for emergencies.
        !matches!(self.paths.kill_switch.try_exists(), Ok(false))
    }
}

/// An invalid value: its section, its key, and the reason.
type Invalid = (&'static str, &'static str, String);

/// The range of a percentage.
const PERCENT: &str = "must be from 0 to 100";

/// Returns the first invalid value of a section. `checks` has each key, whether its value is valid, and what
/// it must be.
fn first<const N: usize>(section: &'static str, checks: [(&'static str, bool, &str); N]) -> Option<Invalid> {
    checks.into_iter().find(|c| !c.1).map(|(key, _, what)| (section, key, what.to_owned()))
}

impl Rule {
    fn is_valid(&self) -> bool {
        let given = |t: &Option<String>| t.as_ref().is_some_and(|t| !t.is_empty());
        (given(&self.exe) || given(&self.cgroup))
            && self.exe.as_ref().is_none_or(|e| e.starts_with('/') || !e.contains('/'))
            && self.cgroup.as_ref().is_none_or(|c| c.starts_with('/'))
    }
}

impl Fleet {
    fn check(&self) -> Option<Invalid> {
        if let Err(e) = fleet::Keys::parse(&self.keys) {
            return Some(("fleet", "keys", e.to_string()));
        }
        let spool = self.spool.as_ref().is_none_or(|s| s.is_absolute());
        first("fleet", [("spool", spool, "must begin with /")])
    }
}

impl Paths {
    fn check(&self) -> Option<Invalid> {
        let absolute = |path: &Path| path.is_absolute();
        let metrics = self.metrics.as_deref().is_none_or(absolute);
        let what = "must begin with /";
        let checks = [
            ("socket", absolute(&self.socket), what),
            ("state", absolute(&self.state), what),
            ("kill_switch", absolute(&self.kill_switch), what),
            ("metrics", metrics, what),
        ];
        first("paths", checks)
    }
}

/// Returns the position of a key in the text, in bytes. The text contains every key whose value was parsed.
fn place(text: &str, section: &str, key: &str) -> usize {
    let (mut at, mut inside) = (0, false);
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if let Some(name) = trimmed.strip_prefix('[') {
            let name = name.trim_start_matches('[').split(']').next().unwrap_or_default().trim();
            inside = name == section;
            if inside && section == key {
                return at + indent;
            }
        }
        let word = trimmed.split(['=', ' ', '\t', '.']).next().unwrap_or_default();
        if (inside && word == key) || (trimmed.starts_with(section) && trimmed.contains(key)) {
            return at + indent;
        }
        at += line.len();
    }
    0
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
