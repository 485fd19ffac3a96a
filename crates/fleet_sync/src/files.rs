//! Files of this host: read with a limit, written whole.

use crate::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The most bytes of a file that is read.
pub(crate) const LIMIT: u64 = 16 << 20;

pub(crate) fn failed(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::File { path: path.to_owned(), why: why.to_string() }
}

/// Reads a regular file; returns `None` if there is none. Links are not followed.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let no_follow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK).bits());
    let flags = no_follow.unwrap_or(0);
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(path, &e)),
    };
    let meta = file.metadata().map_err(|e| failed(path, &e))?;
    if !meta.is_file() || meta.len() > LIMIT {
        return Err(failed(path, &format!("it is no plain file of at most {LIMIT} bytes")));
    }
    let mut bytes = Vec::new();
    file.take(LIMIT).read_to_end(&mut bytes).map_err(|e| failed(path, &e))?;
    Ok(Some(bytes))
}

/// Writes a file whole, or leaves the earlier one.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = Path::new(&beside);
    let written = || {
        // A file of a run that was killed.
        let _ = fs::remove_file(beside);
        let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(beside)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(beside, path)
    };
    written().map_err(|e| {
        let _ = fs::remove_file(beside);
        failed(path, &e)
    })
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(failed(path, &e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_and_written_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        assert_eq!(read(&path).unwrap(), None);
        write(&path, b"one", 0o600).unwrap();
        write(&path, b"two", 0o600).unwrap();
        assert_eq!(read(&path).unwrap(), Some(b"two".to_vec()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(read(&link).is_err() && read(folder.path()).is_err());
        assert!(write(&folder.path().join("none/x"), b"", 0o600).is_err());
        remove(&path).unwrap();
        remove(&path).unwrap();
    }
}
