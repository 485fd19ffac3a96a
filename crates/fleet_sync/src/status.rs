//! `whet-fleet status`: what this host contributed, accepted and refused, and why.

use crate::{Config, Error, FolderSpool, Memory, Spool, Synced, files};
use fleet::{Build, Digest, Slot, Taken};
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
    /// The profile that this host contributed last.
    contributed: Option<Digest>,
    /// The aggregate in the inbox.
    inbox: Option<Digest>,
    /// The daemon's decision on it.
    daemon: Option<Taken>,
    /// The aggregate of another build in the inbox, which serves this one.
    former: Option<FormerStatus>,
    /// The aggregate for all hosts.
    current: Option<Digest>,
    /// The aggregate that is offered in waves.
    offered: Option<Digest>,
    /// Aggregates that did harm on this host.
    harmful: Vec<Digest>,
}

/// The aggregate of another build that serves a build.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct FormerStatus {
    /// The other build; `None` if the file is damaged.
    build: Option<String>,
    digest: Digest,
    /// The daemon's decision on it.
    daemon: Option<Taken>,
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
            let build = Build::parse(&report.build);
            let former = build.as_ref().map(|b| spool.former(b)).transpose()?.flatten();
            builds.push(BuildStatus {
                inbox: build.map(|b| spool.inbox(&b, Slot::Own)).transpose()?.flatten(),
                former: former.map(|(of, digest)| FormerStatus {
                    build: of.map(|p| p.build.to_string()),
                    digest,
                    daemon: report.former,
                }),
                build: report.build,
                exe: report.exe,
                contributed: known.given,
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
                    ("contributed", &run.done.contributed),
                    ("accepted", &run.done.accepted),
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
            let daemon = |taken: &Option<Taken>| match taken {
                None => "the daemon has not seen it".to_owned(),
                Some(Taken::Taken(d)) => format!("the daemon accepted {}", short(Some(*d))),
                Some(Taken::Refused(why)) => format!("the daemon refused it: {why}"),
            };
            match b.inbox {
                None => lines.push("  nothing of this build in the inbox".to_owned()),
                Some(d) => lines.push(format!("  in the inbox {}; {}", short(Some(d)), daemon(&b.daemon))),
            }
            if let Some(f) = &b.former {
                let (of, said) = (f.build.as_deref().unwrap_or("unknown"), daemon(&f.daemon));
                lines.push(format!("  in the inbox, of build {of}: {}; {said}", short(Some(f.digest))));
            }
            lines.push(format!("  this host contributed {}", short(b.contributed)));
            lines.extend(b.harmful.iter().map(|d| format!("  did harm here: {d}")));
        }
        lines.join("\n") + "\n"
    }
}
