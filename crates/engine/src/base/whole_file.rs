//! Files that are there whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Makes a new file at `beside`, has it filled, and gives it the name `path` in one step: readers see the old one or the new
/// one. What already has either name (a link, say) is replaced, not followed; `mode` is of the new file, less what the
/// process's mask takes away. `beside` lies in the same folder, and no two that write at once use the same.
///
/// # Errors
/// The system's; nothing half written is left, and what was at `path` still is.
pub fn replace(
    path: &Path,
    beside: &Path,
    mode: u32,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    // Of one that was killed just here.
    let _ = fs::remove_file(beside);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(beside)?;
    let done = fill(&mut file).and_then(|()| fs::rename(beside, path));
    if done.is_err() {
        let _ = fs::remove_file(beside);
    }
    done
}
