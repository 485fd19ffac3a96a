//! whet's own files, where no other user may write or read.

use crate::Error;
use crate::base::whole_file;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Returns a folder that only the user of whet may enter. For root it is in `/run`, otherwise in the
/// session's folder. Without these, it is a folder beside the temporary files.
///
/// # Errors
/// Returns [`Error::File`] if none of them can be used.
pub(crate) fn folder() -> Result<PathBuf, Error> {
    let user = fs::metadata("/proc/self").map_or(0, |m| m.uid());
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(|d| PathBuf::from(d).join("whet"));
    let other = std::env::temp_dir().join(format!("whet-{user}"));
    let mut failed = None;
    for path in [Some(PathBuf::from("/run/whet")), session, Some(other)].into_iter().flatten() {
        match own(&path, user) {
            Ok(()) => return Ok(path),
            Err(source) => failed = Some(Error::File { path, source }),
        }
    }
    Err(failed
        .unwrap_or_else(|| Error::File { path: "/run/whet".into(), source: io::ErrorKind::NotFound.into() }))
}

/// Creates a folder, or checks that the existing folder belongs to the user alone.
fn own(path: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let m = fs::symlink_metadata(path)?;
    let sound = m.is_dir() && m.uid() == user && m.mode() & 0o077 == 0;
    if sound { Ok(()) } else { Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is open to others")) }
}

/// Replaces the file at `path` in one step: programs that read the old file continue with its contents.
/// Anything else of that name (a link, for example) is replaced, not followed.
///
/// # Errors
/// Returns [`Error::File`].
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    replace(path, bytes, None).map_err(|source| Error::File { path: path.to_owned(), source })
}

/// Same as [`write_whole`], readable by its owner and a group only, because the file shows where code lies.
///
/// # Errors
/// Returns the system's errors; then no file is left.
pub(crate) fn replace(path: &Path, bytes: &[u8], group: Option<u32>) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(".unfinished");
    whole_file::replace(path, &path.with_file_name(name), 0o600, |file| {
        // A group that the file system does not map gets no access.
        if group.is_some() && fchown(&*file, None, group).is_ok() {
            file.set_permissions(fs::Permissions::from_mode(0o640))?;
        }
        file.write_all(bytes)
    })
}

/// Opens a file for reading, without following a link and without waiting for the writer of a pipe.
///
/// # Errors
/// Returns the system's errors.
pub(crate) fn open_file(path: &Path) -> io::Result<fs::File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Creates a folder for one test.
    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("whet-private-{}-{name}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        path
    }

    #[test]
    fn links_are_replaced_not_followed() {
        let folder = scratch("links");
        let (victim, link) = (folder.join("victim"), folder.join("link"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &link).unwrap();
        symlink(&victim, folder.join("link.unfinished")).unwrap();
        replace(&link, b"new", None).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(fs::read(&link).unwrap(), b"new");
        let meta = fs::symlink_metadata(&link).unwrap();
        assert!(meta.is_file() && meta.mode() & 0o777 == 0o600);
        replace(&link, b"newer", Some(meta.gid())).unwrap();
        assert_eq!(fs::symlink_metadata(&link).unwrap().mode() & 0o777, 0o640);
        // A failed write leaves no file.
        fs::create_dir(folder.join("full")).unwrap();
        assert!(replace(&folder.join("full"), b"new", None).is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn only_private_folders_of_the_user_are_accepted() {
        let folder = scratch("own");
        let user = fs::metadata("/proc/self").unwrap().uid();
        own(&folder, user).unwrap();
        assert!(own(&folder, user + 1).is_err());
        symlink(&folder, folder.join("link")).unwrap();
        assert!(own(&folder.join("link"), user).is_err());
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(own(&folder, user).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
