//! The daemon's side of the spool folder: exports its profiles, and accepts signed aggregates that fit.
//!
//! The daemon has no network. `whet-fleet`, another user without rights, moves files between this folder and
//! the fleet's store. So everything in `in` is foreign. A file is used on three conditions: it is a plain
//! file of limited size; a key of the configuration has signed it for this build and class; it parses as a
//! profile with functions of the build. It is then copied, and the copy is used. The host's own profile has
//! priority.

use crate::config::Fleet;
use crate::store::{Store, write_lightly, write_whole};
use crate::supervisor::{Daemon, Entry};
use crate::watch::Identity;
use fleet::{Build, BuildReport, Class, Digest, HostReport, Keys, Program, Purpose, Refused, Taken, Vote};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tracing::{info, warn};

/// The most bytes of a signed aggregate.
const LIMIT: u64 = (fleet::CONTRIBUTION_LIMIT + 4096) as u64;
/// The most votes that are kept.
const VOTES: usize = 256;

/// What shows that a file has changed: inode, size, time of its content.
type Stamp = (u64, u64, i64, i64);

/// The exchange of profiles with other hosts.
#[derive(Debug)]
pub(crate) struct Exchange {
    spool: Option<PathBuf>,
    keys: Keys,
    class: Class,
    store: Store,
    /// The files in the inbox, by build, as they were read last.
    read: HashMap<String, Stamp>,
    /// The host's own profiles as they were exported last.
    exported: HashMap<String, Stamp>,
    taken: BTreeMap<String, Taken>,
    votes: Vec<Vote>,
    written: Vec<u8>,
    fails: bool,
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = fs::symlink_metadata(path).ok()?;
    Some((meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
}

/// Reads a plain file of limited size; follows no link, and does not wait for a pipe.
fn read_plain(path: &Path) -> io::Result<Vec<u8>> {
    let flags = rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK).bits();
    let flags = i32::try_from(flags).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() > LIMIT {
        let why = format!("it is no plain file of at most {LIMIT} bytes");
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    let mut bytes = Vec::new();
    file.take(LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Exchange {
    pub(crate) fn new(config: &Fleet, store: &Store) -> Self {
        let spool = config.spool.clone();
        let before = spool.as_ref().and_then(|s| read_plain(&s.join("out/host.json")).ok());
        let votes = before.and_then(|b| HostReport::parse(&b).ok()).map(|r| r.votes).unwrap_or_default();
        Self {
            spool,
            // The configuration was checked.
            keys: Keys::parse(&config.keys).unwrap_or_default(),
            class: config.class.clone(),
            store: store.clone(),
            read: HashMap::new(),
            exported: HashMap::new(),
            taken: BTreeMap::new(),
            votes,
            written: Vec::new(),
            fails: false,
        }
    }

    /// Returns the aggregate of a build that targets may be started by: its file and its digest. An aggregate that
    /// did harm on this host is not used.
    pub(crate) fn usable(&self, build: &str) -> Option<(PathBuf, Digest)> {
        let Some(Taken::Taken(digest)) = self.taken.get(build) else { return None };
        let did_harm = self.votes.iter().any(|v| v.harm && v.digest == *digest);
        (!did_harm).then(|| (self.store.aggregate(build), *digest))
    }

    fn accept(&self, build: &str, bytes: &[u8]) -> Result<Digest, Refused> {
        let name = || Refused::Name(build.to_owned(), "build-id");
        let program = Program { build: Build::parse(build).ok_or_else(name)?, class: self.class.clone() };
        let text = self.keys.open(bytes, &Purpose::Aggregate(program.clone()))?;
        let digest = Digest::of(text);
        fleet::read(text, &digest, &program.build)?;
        Ok(digest)
    }

    /// Takes the aggregate of a build from the inbox, if it has changed.
    fn take(&mut self, spool: &Path, build: &str) {
        let path = spool.join("in").join(format!("{build}.signed"));
        let now = stamp(&path);
        if now == self.read.get(build).copied() {
            return;
        }
        let Some(now) = now else {
            // It was withdrawn.
            self.read.remove(build);
            self.taken.remove(build);
            let _ = fs::remove_file(self.store.aggregate(build));
            info!(build, "the fleet's profile was withdrawn");
            return;
        };
        self.read.insert(build.to_owned(), now);
        let accepted = read_plain(&path).map_err(|e| e.to_string()).and_then(|bytes| {
            let digest = self.accept(build, &bytes).map_err(|e| e.to_string())?;
            let text = fleet::Signed::parse(&bytes).map_err(|e| e.to_string())?.content;
            write_whole(&self.store.aggregate(build), text).map_err(|e| e.to_string())?;
            Ok(digest)
        });
        let taken = match accepted {
            Ok(digest) => {
                info!(build, %digest, "a profile of the fleet was taken");
                Taken::Taken(digest)
            }
            // One that was taken before stays in use: the file says nothing against it.
            Err(why) => {
                warn!(build, "{} is refused: {why}", path.display());
                if let Some(Taken::Taken(_)) = self.taken.get(build) {
                    return;
                }
                Taken::Refused(why)
            }
        };
        self.taken.insert(build.to_owned(), taken);
    }

    /// Exports the host's own profile of a build, if it has changed.
    fn export(&mut self, spool: &Path, build: &str) -> Result<(), String> {
        let own = self.store.profile(build);
        let now = stamp(&own);
        if now.is_none() || now == self.exported.get(build).copied() {
            return Ok(());
        }
        let to = spool.join("out").join(format!("{build}.profile"));
        let bytes = read_plain(&own).map_err(|e| format!("cannot read {}: {e}", own.display()))?;
        write_lightly(&to, &bytes).map_err(|e| format!("cannot write {}: {e}", to.display()))?;
        self.exported.extend(now.map(|n| (build.to_owned(), n)));
        Ok(())
    }

    /// Exchanges files for the builds of the targets; each with a program's path.
    fn run(&mut self, builds: &BTreeMap<String, String>) -> Result<(), String> {
        let Some(spool) = self.spool.clone() else { return Ok(()) };
        let mut result = Ok(());
        for build in builds.keys() {
            self.take(&spool, build);
            result = result.and(self.export(&spool, build));
        }
        let report = |(build, exe): (&String, &String)| BuildReport {
            build: build.clone(),
            exe: exe.clone(),
            inbox: self.taken.get(build).cloned(),
        };
        let builds = builds.iter().map(report).collect();
        let report = HostReport { builds, votes: self.votes.clone(), ..HostReport::default() };
        let bytes = serde_json::to_vec_pretty(&report).unwrap_or_default();
        if bytes != self.written {
            let path = spool.join("out/host.json");
            let written = write_lightly(&path, &bytes);
            result = result.and(written.map_err(|e| format!("cannot write {}: {e}", path.display())));
            // If it failed, the next change is soon enough; the log has it once.
            self.written = bytes;
        }
        result
    }
}

impl Daemon {
    /// Returns the profile that a target would be started warm from, and its digest if it is an aggregate: the
    /// host's own profile of the build, else the fleet's, else one of another build of the program.
    pub(crate) fn warm_profile(&self, entry: &Entry) -> Option<(PathBuf, Option<Digest>)> {
        let build = entry.build_id.as_deref()?;
        let own = Some(self.store.profile(build)).filter(|path| path.exists());
        let fleets = || self.exchange.usable(build).map(|(path, digest)| (path, Some(digest)));
        own.map(|path| (path, None)).or_else(fleets).or_else(|| Some((entry.other_build.clone()?, None)))
    }

    /// Exchanges profiles with the spool folder. A file that cannot be written is logged once; nothing else
    /// depends on it.
    pub(crate) fn exchange_profiles(&mut self) {
        if self.config.fleet.spool.is_none() {
            return;
        }
        let builds: BTreeMap<String, String> =
            self.targets.values().filter_map(|e| Some((e.build_id.clone()?, e.exe.clone()))).collect();
        let done = self.exchange.run(&builds);
        let failed = std::mem::replace(&mut self.exchange.fails, done.is_err());
        if let Err(why) = done {
            self.counted.unwritten += 1;
            if !failed {
                warn!("{why}; the work goes on without");
            }
        }
        let has: Vec<bool> = self.targets.values().map(|e| self.warm_profile(e).is_some()).collect();
        for (entry, has) in self.targets.values_mut().zip(has) {
            entry.life.has_profile = has;
        }
    }

    /// Votes on the aggregate that a target was started by, if its comparison showed something. `fell_back`: the
    /// rebuild did not use it after all.
    pub(crate) fn vote(&mut self, id: Identity, fell_back: bool, judged: bool) {
        let Some(entry) = self.targets.get_mut(&id.pid) else { return };
        if fell_back {
            entry.aggregate = None;
        }
        let (Some(digest), Some(build), Some(verdict)) =
            (entry.aggregate.filter(|_| judged), entry.build_id.clone(), entry.life.verdict)
        else {
            return;
        };
        let harm = entry.life.is_harmful();
        let factor = [verdict.factor, verdict.low, verdict.high];
        let votes = &mut self.exchange.votes;
        // One vote for each aggregate; harm on one target of the host is harm.
        if let Some(vote) = votes.iter_mut().find(|v| v.digest == digest) {
            vote.harm |= harm;
        } else {
            votes.push(Vote { build, digest, harm, factor });
            let more = votes.len().saturating_sub(VOTES);
            votes.drain(..more);
        }
    }
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
