//! The spool folder, which this program shares with the daemon.
//!
//! `out` is written by the daemon: `host.json` ([`fleet::HostReport`]) and `BUILD.profile`. `in` is written by
//! this program: `BUILD.signed`, a signed aggregate, and `BUILD.former`, one of another build of the program.

use crate::{Error, files};
use fleet::{Build, Digest, HostReport, Program, Signed, Slot};
use std::path::{Path, PathBuf};

/// What the host's part needs of a spool folder.
pub trait Spool {
    /// Returns the daemon's report; an empty one if there is none.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Refused`]
    fn report(&self) -> Result<HostReport, Error>;

    /// Returns the host's own profile of a build, as the daemon exported it.
    ///
    /// # Errors
    /// [`Error::File`]
    fn profile(&self, build: &Build) -> Result<Option<Vec<u8>>, Error>;

    /// Returns the digest of the aggregate in the inbox that serves a build.
    ///
    /// # Errors
    /// [`Error::File`]
    fn inbox(&self, build: &Build, slot: Slot) -> Result<Option<Digest>, Error>;

    /// Puts a signed aggregate into the inbox, for a build.
    ///
    /// # Errors
    /// [`Error::File`]
    fn put(&mut self, build: &Build, slot: Slot, bytes: &[u8]) -> Result<(), Error>;

    /// Removes the aggregate that serves a build from the inbox.
    ///
    /// # Errors
    /// [`Error::File`]
    fn remove(&mut self, build: &Build, slot: Slot) -> Result<(), Error>;
}

/// The spool folder on disk.
#[derive(Clone, Debug)]
pub struct FolderSpool {
    folder: PathBuf,
}

impl FolderSpool {
    /// Uses a folder.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn signed(&self, build: &Build, slot: Slot) -> PathBuf {
        self.folder.join("in").join(slot.file(&build.to_string()))
    }

    /// Returns the program of which the aggregate of another build in the inbox says to be, and its digest.
    pub(crate) fn former(&self, build: &Build) -> Result<Option<(Option<Program>, Digest)>, Error> {
        let bytes = files::read(&self.signed(build, Slot::Former))?;
        let signed = bytes.as_deref().and_then(|b| Signed::parse(b).ok());
        Ok(signed.map(|s| (s.aggregate_of(), Digest::of(s.content))))
    }
}

impl Spool for FolderSpool {
    fn report(&self) -> Result<HostReport, Error> {
        let path = self.folder.join("out/host.json");
        let refused = |why| Error::Refused { object: path.display().to_string(), why };
        let bytes = files::read(&path)?;
        bytes.map_or(Ok(HostReport::default()), |b| HostReport::parse(&b).map_err(refused))
    }

    fn profile(&self, build: &Build) -> Result<Option<Vec<u8>>, Error> {
        files::read(&self.folder.join(format!("out/{build}.profile")))
    }

    fn inbox(&self, build: &Build, slot: Slot) -> Result<Option<Digest>, Error> {
        let bytes = files::read(&self.signed(build, slot))?;
        // A damaged file has no digest, so it is replaced.
        Ok(bytes.and_then(|b| Signed::parse(&b).ok().map(|s| Digest::of(s.content))))
    }

    fn put(&mut self, build: &Build, slot: Slot, bytes: &[u8]) -> Result<(), Error> {
        files::write(&self.signed(build, slot), bytes, 0o644)
    }

    fn remove(&mut self, build: &Build, slot: Slot) -> Result<(), Error> {
        files::remove(&self.signed(build, slot))
    }
}
