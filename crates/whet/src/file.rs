//! Files that are there whole or not at all.

use engine::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// How many names for the new file are tried, should somebody take them before.
const TRIES: u32 = 100;

/// Puts a file in place, in one step: readers see the old one or the new one. What is there may be a regular file only: a
/// link, which in a folder that others can write to may be anybody's, is not followed, nor is a device written to.
///
/// # Errors
/// [`Error::File`]; then nothing was changed.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    put(path, bytes).map_err(|source| Error::File { path: path.to_owned(), source })
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => {
            return Err(io::Error::new(ErrorKind::InvalidInput, "what is there is no regular file"));
        }
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let (mut file, temporary) = beside(path)?;
    let done =
        file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&temporary, path));
    if done.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    done
}

/// A new file in the same folder.
fn beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let name =
        path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it has no file name"))?;
    for n in 0..TRIES {
        let mut own = std::ffi::OsString::from(".");
        own.push(name);
        own.push(format!(".{}-{n}", std::process::id()));
        let temporary = path.with_file_name(own);
        // Fails for whatever is there, links included.
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            opened => return opened.map(|file| (file, temporary)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}
