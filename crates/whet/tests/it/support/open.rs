//! Programs that users other than root are to start.

use super::copy;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder that every user may enter, with a whet: other users may not enter the folder where whet was
/// built.
pub struct OpenFolder(PathBuf);

impl OpenFolder {
    /// Makes a folder with whet alone.
    pub fn new() -> Self {
        static USED: AtomicUsize = AtomicUsize::new(0);
        let n = USED.fetch_add(1, Ordering::Relaxed);
        let folder = Self(std::env::temp_dir().join(format!("whet-open-{}-{n}", std::process::id())));
        std::fs::create_dir(&folder.0).unwrap();
        folder.add(Path::new(env!("CARGO_BIN_EXE_whet")), "whet");
        folder
    }

    /// Copies a program into the folder.
    pub fn add(&self, program: &Path, name: &str) {
        copy(program, &self.file(name));
    }

    /// Returns the path of a program in the folder.
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
