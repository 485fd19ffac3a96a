//! One comparison at a time on a target; any other command ends it.

use crate::Error;
use crate::session::sign::{self, Sign};
use crate::session::state::TargetState;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use tracee::Process;

/// The kind of the claim's file.
const KIND: &str = "claim";

/// Replaces the lock during a comparison, which switches the target for a minute.
///
/// A claim excludes other comparisons. Undo, redo and optimize remove the claim, and the comparison ends. The
/// file is the claim: the claim stands as long as the file exists.
#[derive(Debug)]
pub struct Claim {
    file: File,
    path: PathBuf,
    /// The lock against other comparisons; its drop removes the file.
    held: Option<Sign>,
}

impl Claim {
    /// Creates the claim.
    ///
    /// # Errors
    /// Returns [`Error::Locked`] during another comparison, [`Error::LockFile`] if no file can be created.
    pub fn stake(process: &Process) -> Result<Self, Error> {
        let held = Sign::put(process, KIND)?;
        let path = held.path().to_owned();
        let file =
            held.file().try_clone().map_err(|source| Error::LockFile { path: path.clone(), source })?;
        Ok(Self { file, path, held: Some(held) })
    }

    /// Writes into the file, for `status`, which state the comparison found and restores.
    pub fn show_state(&mut self, found: TargetState) {
        if let Some(held) = &mut self.held {
            held.show_state(found);
        }
    }

    /// Opens the claim of another process, on whose behalf this one gives it up after the other one's death.
    ///
    /// # Errors
    /// Returns [`Error::Changed`] if there is no claim.
    pub fn witness(process: &Process) -> Result<Self, Error> {
        let name = sign::file_name(process, KIND)?;
        let found =
            sign::folders().into_iter().map(|f| f.join(&name)).find_map(|p| Some((File::open(&p).ok()?, p)));
        let (file, path) = found.ok_or(Error::Changed { pid: process.pid() })?;
        Ok(Self { file, path, held: None })
    }

    /// Returns whether the claim still stands.
    pub fn stands(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.nlink() > 0)
    }

    /// Ends the claim, whichever process created it.
    pub fn give_up(mut self) {
        if self.held.take().is_none() && self.stands() {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Removes any claim on a target whose lock is held.
    pub fn overrule(process: &Process) {
        let Ok(name) = sign::file_name(process, KIND) else { return };
        for folder in sign::folders() {
            let _ = std::fs::remove_file(folder.join(&name));
        }
    }
}
