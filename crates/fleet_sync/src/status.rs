//! `whet-fleet status`: what this host gave, took and refused, and why.

use crate::{Config, Error, FolderSpool, Memory, Spool, Synced, files};
use fleet::{Build, Digest, Taken};
use serde::{Deserialize, Serialize};

/// The record of the last run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LastRun {
    /// When it ended: seconds of the Unix epoch, by this host's clock.
    pub(crate) when: u64,
    /// What it did.
    #[serde(flatten)]
    pub(crate) done: Synced,
    /// Its error.
    pub(crate) error: Option<String>,
}

/// The state of the fleet on this host.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Status {
    host: String,
    class: String,
    store: String,
    paused: bool,
    last_run: Option<LastRun>,
    builds: Vec<BuildStatus>,
}

/// The state of one build.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct BuildStatus {
    build: String,
    exe: String,
    /// The profile that this host gave last.
    gave: Option<Digest>,
    /// The aggregate in the inbox.
    inbox: Option<Digest>,
    /// What the daemon made of it.
    daemon: Option<Taken>,
    /// The aggregate for all hosts.
    current: Option<Digest>,
    /// The aggregate that is offered in waves.
    offered: Option<Digest>,
    /// Aggregates that did harm on this host.
    harmful: Vec<Digest>,
}

impl Status {
    pub(crate) fn read(config: &Config) -> Result<Self, Error> {
        let memory = Memory::read(&config.memory_file())?;
        let spool = FolderSpool::new(&config.spool);
        let last = files::read(&config.last_run_file())?;
        let mut builds = Vec::new();
        for report in spool.report()?.builds {
            let known = memory.programs.get(&report.build).cloned().unwrap_or_default();
            let head = known.head.map(|(head, _)| head);
            builds.push(BuildStatus {
                inbox: Build::parse(&report.build).map(|b| spool.inbox(&b)).transpose()?.flatten(),
                build: report.build,
                exe: report.exe,
                gave: known.given,
                daemon: report.inbox,
                current: head.as_ref().and_then(|h| h.current),
                offered: head.and_then(|h| h.offer).map(|o| o.digest),
                harmful: known.harmful,
            });
        }
        Ok(Self {
            host: config.host_id()?.to_string(),
            class: config.class.to_string(),
            store: config.store.clone(),
            paused: memory.policy.is_some_and(|(p, _)| p.pause),
            last_run: last.and_then(|b| serde_json::from_slice(&b).ok()),
            builds,
        })
    }

    /// Returns the text for people.
    pub(crate) fn text(&self) -> String {
        let mut lines = vec![format!("host {} (class {}), store {}", self.host, self.class, self.store)];
        match &self.last_run {
            None => lines.push("whet-fleet sync has not run yet".to_owned()),
            Some(run) => {
                let when = i64::try_from(run.when).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
                let when = when.map_or("at an unknown time".to_owned(), |t| t.to_string());
                let how = run.error.as_ref().map_or("ok".to_owned(), |e| format!("failed: {e}"));
                lines.push(format!("last run {when}: {how}"));
                for (word, list) in [
                    ("gave", &run.done.gave),
                    ("took", &run.done.took),
                    ("refused", &run.done.refused),
                    ("kept back", &run.done.kept_back),
                ] {
                    lines.extend(list.iter().map(|l| format!("  {word}: {l}")));
                }
            }
        }
        if self.paused {
            lines.push("the policy says pause: nothing new is taken".to_owned());
        }
        let short =
            |d: Option<Digest>| d.map_or("none".to_owned(), |d| d.to_string().chars().take(12).collect());
        for b in &self.builds {
            lines.push(format!("{} {}", b.exe, b.build));
            lines.push(format!("  in force {}, offered {}", short(b.current), short(b.offered)));
            let daemon = match &b.daemon {
                None => "the daemon has not seen it".to_owned(),
                Some(Taken::Taken(d)) => format!("the daemon took {}", short(Some(*d))),
                Some(Taken::Refused(why)) => format!("the daemon refused it: {why}"),
            };
            match b.inbox {
                None => lines.push("  nothing in the inbox".to_owned()),
                Some(d) => lines.push(format!("  in the inbox {}; {daemon}", short(Some(d)))),
            }
            lines.push(format!("  this host gave {}", short(b.gave)));
            lines.extend(b.harmful.iter().map(|d| format!("  did harm here: {d}")));
        }
        lines.join("\n") + "\n"
    }
}
