//! Builds the programs, each once.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns a path that nothing else uses.
pub fn scratch(name: &str) -> PathBuf {
    static USED: AtomicUsize = AtomicUsize::new(0);
    let n = USED.fetch_add(1, Ordering::Relaxed);
    folder().join(format!("{name}-{}-{n}", std::process::id()))
}

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("command-line");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Copies a program by another process. If this process wrote it, a child that another test starts at that
/// moment would hold the copy open for writing. A file that is open for writing cannot be executed.
pub fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

/// Returns whether a command can be found.
pub fn have(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(command).is_file())
}

/// Builds a source of this folder by gcc or g++, with its symbols.
pub fn build(source: &str) -> PathBuf {
    build_with(source, &[]).unwrap()
}

/// Does the same as [`build`] with more arguments. Returns an error if the compiler fails.
pub fn build_with(source: &str, more: &[&str]) -> Result<PathBuf, String> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock();
    let support = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support");
    let compiler = if source.ends_with(".cc") { "g++" } else { "gcc" };
    let mut hasher = DefaultHasher::new();
    for file in [source, "page.h"] {
        std::fs::read(support.join(file)).unwrap().hash(&mut hasher);
    }
    more.hash(&mut hasher);
    let program = folder().join(format!("{source}-{:016x}", hasher.finish()));
    if program.is_file() {
        return Ok(program);
    }
    // It gets its name when it is complete.
    let unfinished = scratch("unfinished");
    let mut command = Command::new(compiler);
    command
        .args(["-O2", "-Wall", "-pthread"])
        .args(more)
        .arg(support.join(source))
        .arg("-o")
        .arg(&unfinished);
    let out = command.stdin(Stdio::null()).output().map_err(|e| format!("{command:?}: {e}"))?;
    if !out.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&out.stderr)));
    }
    std::fs::rename(&unfinished, &program).unwrap();
    Ok(program)
}
