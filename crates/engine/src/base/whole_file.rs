//! Files that are replaced whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Creates a new file at `beside`, fills it, and renames it to `path`: readers see the old file or the new
/// one.
///
/// Anything of either name (a link, for example) is replaced, not followed. `mode` is of the new file, less
/// the process's mask. `beside` is in the same folder, and concurrent writers must use different names.
///
/// # Errors
/// Returns the system's errors; then no unfinished file is left, and the file at `path` is unchanged.
pub fn replace(
    path: &Path,
    beside: &Path,
    mode: u32,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    // Left by a writer that was killed here.
    let _ = fs::remove_file(beside);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(beside)?;
    let done = fill(&mut file).and_then(|()| fs::rename(beside, path));
    if done.is_err() {
        let _ = fs::remove_file(beside);
    }
    done
}
