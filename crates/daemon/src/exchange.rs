//! The daemon's side of the spool folder: exports its profiles, and accepts signed aggregates that fit.
//!
//! The daemon has no network. `whet-fleet`, another user without rights, moves files between this folder and
//! the fleet's store. So everything in `in` is foreign. A file is used on three conditions: it is a plain
//! file of limited size; a key of the configuration has signed it for this build and class; it parses as a
//! profile with functions of the build. It is then copied, and the copy is used. `crate::warm` has the order
//! in which profiles are used.
//!
//! An aggregate of another build of the program, in a place of its own, is checked in the same way. It also
//! states the program's name, as a hash.

use crate::config::Fleet;
use crate::store::{Store, WriteErrors, write_lightly, write_whole};
use fleet::{
    Build, BuildReport, Class, Digest, HostReport, Keys, Name, Program, Purpose, Refused, Slot, Taken, Vote,
};
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

/// The identity of a file's content: inode, size, time of the last change.
type Stamp = (u64, u64, i64, i64);

/// The exchange of profiles with other hosts.
#[derive(Debug)]
pub(crate) struct Exchange {
    spool: Option<PathBuf>,
    keys: Keys,
    class: Class,
    pub(crate) store: Store,
    /// The files in the inbox, by place and build, as they were read last.
    read: HashMap<(Slot, String), Stamp>,
    /// The host's own profiles as they were exported last.
    exported: HashMap<String, Stamp>,
    taken: BTreeMap<(Slot, String), Taken>,
    votes: Vec<Vote>,
    written: Vec<u8>,
    errors: WriteErrors,
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

fn title(slot: Slot) -> &'static str {
    match slot {
        Slot::Own => "a profile of the fleet",
        Slot::Former => "a profile of the fleet, of another build,",
    }
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
            errors: WriteErrors::default(),
        }
    }

    /// Returns the aggregate that targets of a build may be started by: its file and its digest. An aggregate that
    /// did harm to this build on this host is not used.
    pub(crate) fn usable(&self, build: &str, slot: Slot) -> Option<(PathBuf, Digest)> {
        let Some(Taken::Taken(digest)) = self.taken.get(&(slot, build.to_owned())) else { return None };
        let did_harm = self.votes.iter().any(|v| v.harm && v.build == build && v.digest == *digest);
        (!did_harm).then(|| (self.store.aggregate(build, slot), *digest))
    }

    /// Checks a file of the inbox. Returns the digest of the aggregate, and the profile to keep.
    fn accept(&self, build: &str, exe: &str, slot: Slot, bytes: &[u8]) -> Result<(Digest, Vec<u8>), Refused> {
        let name = || Refused::Name(build.to_owned(), "build-id");
        let program = Program { build: Build::parse(build).ok_or_else(name)?, class: self.class.clone() };
        match slot {
            Slot::Own => {
                let text = self.keys.open(bytes, &Purpose::Aggregate(program.clone()))?;
                let digest = Digest::of(text);
                fleet::read(text, &digest, &program.build)?;
                Ok((digest, text.to_vec()))
            }
            Slot::Former => {
                let (former, text) = self.keys.open_former(bytes, &program)?;
                let digest = Digest::of(text);
                let name = Name::of(exe).ok_or(Refused::OtherProgram)?;
                let mut profile = fleet::read_former(text, &digest, &former, name)?;
                // The functions of another build are found by the module's file name, which no aggregate has.
                if let Some(module) = profile.modules.get_mut(&former) {
                    module.name = exe.rsplit('/').next().unwrap_or_default().to_owned();
                }
                Ok((digest, profile.to_string().into_bytes()))
            }
        }
    }

    /// Takes an aggregate for a build from the inbox, if it has changed.
    fn take(&mut self, spool: &Path, build: &str, exe: &str, slot: Slot) {
        let path = spool.join("in").join(slot.file(build));
        let key = (slot, build.to_owned());
        let now = stamp(&path);
        if now == self.read.get(&key).copied() {
            return;
        }
        let Some(now) = now else {
            // It was withdrawn.
            self.read.remove(&key);
            self.taken.remove(&key);
            let _ = fs::remove_file(self.store.aggregate(build, slot));
            info!(build, "{} was withdrawn", title(slot));
            return;
        };
        self.read.insert(key.clone(), now);
        let accepted = read_plain(&path).map_err(|e| e.to_string()).and_then(|bytes| {
            let (digest, text) = self.accept(build, exe, slot, &bytes).map_err(|e| e.to_string())?;
            write_whole(&self.store.aggregate(build, slot), &text).map_err(|e| e.to_string())?;
            Ok(digest)
        });
        let taken = match accepted {
            Ok(digest) => {
                info!(build, %digest, "{} was taken", title(slot));
                Taken::Taken(digest)
            }
            // One that was taken before stays in use: the file says nothing against it.
            Err(why) => {
                warn!(build, "{} is refused: {why}", path.display());
                if let Some(Taken::Taken(_)) = self.taken.get(&key) {
                    return;
                }
                Taken::Refused(why)
            }
        };
        self.taken.insert(key, taken);
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

    /// Records a vote on an aggregate. There is one vote for each build and aggregate; harm on one target of the
    /// host is harm.
    pub(crate) fn vote(&mut self, new: Vote) {
        let is_same = |v: &&mut Vote| v.build == new.build && v.digest == new.digest;
        if let Some(vote) = self.votes.iter_mut().find(is_same) {
            vote.harm |= new.harm;
        } else {
            self.votes.push(new);
            let more = self.votes.len().saturating_sub(VOTES);
            self.votes.drain(..more);
        }
    }

    /// Exchanges files for the builds of the targets; each with a program's path. Returns whether a file could
    /// not be written.
    pub(crate) fn exchange(&mut self, builds: &BTreeMap<String, String>) -> bool {
        let done = self.run(builds);
        self.errors.note(done)
    }

    fn run(&mut self, builds: &BTreeMap<String, String>) -> Result<(), String> {
        let Some(spool) = self.spool.clone() else { return Ok(()) };
        let mut result = Ok(());
        for (build, exe) in builds {
            for slot in Slot::ALL {
                self.take(&spool, build, exe, slot);
            }
            result = result.and(self.export(&spool, build));
        }
        let report = |(build, exe): (&String, &String)| BuildReport {
            build: build.clone(),
            exe: exe.clone(),
            inbox: self.taken.get(&(Slot::Own, build.clone())).cloned(),
            former: self.taken.get(&(Slot::Former, build.clone())).cloned(),
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

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
