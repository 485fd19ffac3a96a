//! Writes files in one step.

use engine::{Error, whole_file};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Writes a file in one step: readers see the old file or the new one. What is already there must be a
/// regular file. A link is not followed: in a folder that other users can write to, any user may have made
/// it. A device is not written to.
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
    let name =
        path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it has no file name"))?;
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}", std::process::id()));
    whole_file::replace(path, &path.with_file_name(beside), 0o666, |file| {
        file.write_all(bytes)?;
        file.sync_all()
    })
}
