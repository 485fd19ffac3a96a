//! One comparison at a time on a target, until somebody else has a hand in it.

use crate::Error;
use crate::session::sign::{self, Sign};
use crate::session::state::TargetState;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use tracee::Process;

/// The kind of its file.
const KIND: &str = "claim";

/// What a comparison, which goes back and forth for a minute, holds instead of the lock: it keeps other comparisons out, but
/// whoever undoes, redoes or optimizes takes it away, and the comparison ends. The file is the claim: it stands while that
/// exists.
#[derive(Debug)]
pub struct Claim {
    file: File,
    path: PathBuf,
    /// Locked against other comparisons; its drop removes the file.
    held: Option<Sign>,
}

impl Claim {
    /// Stakes it.
    ///
    /// # Errors
    /// [`Error::Locked`] where another comparison is being made, [`Error::LockFile`] where no file can be made.
    pub fn stake(process: &Process) -> Result<Self, Error> {
        let held = Sign::put(process, KIND)?;
        let path = held.path().to_owned();
        let file =
            held.file().try_clone().map_err(|source| Error::LockFile { path: path.clone(), source })?;
        Ok(Self { file, path, held: Some(held) })
    }

    /// Says for `status` which state the comparison found, and restores.
    pub fn say(&mut self, found: TargetState) {
        if let Some(held) = &mut self.held {
            held.say(found);
        }
    }

    /// The claim that another process has staked on behalf of this one, to give it up after that process's death.
    ///
    /// # Errors
    /// [`Error::Changed`] where none stands.
    pub fn witness(process: &Process) -> Result<Self, Error> {
        let name = sign::file_name(process, KIND)?;
        let found =
            sign::folders().into_iter().map(|f| f.join(&name)).find_map(|p| Some((File::open(&p).ok()?, p)));
        let (file, path) = found.ok_or(Error::Changed { pid: process.pid() })?;
        Ok(Self { file, path, held: None })
    }

    /// Whether nobody has taken it away.
    pub fn stands(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.nlink() > 0)
    }

    /// Ends it, whoever staked it.
    pub fn give_up(mut self) {
        if self.held.take().is_none() && self.stands() {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Takes away whatever claim there is on a target whose lock is held.
    pub fn overrule(process: &Process) {
        let Ok(name) = sign::file_name(process, KIND) else { return };
        for folder in sign::folders() {
            let _ = std::fs::remove_file(folder.join(&name));
        }
    }
}
