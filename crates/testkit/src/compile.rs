//! Programs that are compiled for a test.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles into the file `out` by the command `compiler` with `args`, which name the sources. Returns false,
/// and prints so, if this machine has no such compiler.
///
/// # Panics
/// Panics if the compiler fails.
#[must_use]
pub fn build<A: AsRef<OsStr>>(compiler: &str, args: impl IntoIterator<Item = A>, out: &Path) -> bool {
    let mut command = Command::new(compiler);
    command.args(args).arg("-o").arg(out);
    match command.output() {
        Ok(done) => {
            assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
            true
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            println!("skipped: this machine has no {compiler}");
            false
        }
        Err(e) => panic!("{command:?}: {e}"),
    }
}

/// Writes `text` to the file `name` in `dir`, and compiles it with `flags`. Compilers know the language by the
/// extension of `name`. Returns the program's path, which is that of the source without its extension.
///
/// # Panics
/// Panics if the compiler is missing or fails.
pub fn build_source(compiler: &str, flags: &[&str], dir: &Path, name: &str, text: &str) -> PathBuf {
    let source = dir.join(name);
    std::fs::write(&source, text).unwrap();
    let out = source.with_extension("");
    // Libraries are searched for what the sources in front of them name, so the flags come last.
    let args = std::iter::once(source.as_os_str()).chain(flags.iter().map(OsStr::new));
    assert!(build(compiler, args, &out), "this test needs {compiler}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> PathBuf {
        let dir = std::env::temp_dir().join(format!("whet-testkit-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_program_runs_and_a_missing_compiler_is_no_failure() {
        let dir = dir();
        let text = "#include <math.h>\nint main(int argc, char **argv) { return (int)sqrt(48.0 + argc); }";
        let program = build_source("gcc", &["-lm"], &dir, "seven.c", text);
        let status = Command::new(program).status().unwrap();
        assert!(!build("whet-no-such-compiler", ["x.c"], &dir.join("x")));
        std::fs::remove_dir_all(dir).unwrap();
        assert_eq!(status.code(), Some(7));
    }

    #[test]
    #[should_panic(expected = "error")]
    fn a_wrong_source_is_a_failure() {
        let dir = std::env::temp_dir();
        let _ =
            build("gcc", ["-x", "c", "-include", "/whet-no-such-file", "/dev/null"], &dir.join("whet-none"));
    }
}
