//! Programs that others than root are to start.

use super::copy;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder that everyone may enter, with a whet: where that was built, others may not go.
pub struct OpenFolder(PathBuf);

impl OpenFolder {
    /// With whet alone.
    pub fn new() -> Self {
        static USED: AtomicUsize = AtomicUsize::new(0);
        let n = USED.fetch_add(1, Ordering::Relaxed);
        let folder = Self(std::env::temp_dir().join(format!("whet-open-{}-{n}", std::process::id())));
        std::fs::create_dir(&folder.0).unwrap();
        folder.add(Path::new(env!("CARGO_BIN_EXE_whet")), "whet");
        folder
    }

    /// Puts a copy of a program in.
    pub fn add(&self, program: &Path, name: &str) {
        copy(program, &self.file(name));
    }

    /// Where a program is.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for OpenFolder {
    fn drop(&mut self) {
        // What is left lies among temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
