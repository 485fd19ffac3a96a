//! `gdb`: the symbol file of clones for debuggers, of a live process or of a core.

use crate::base::private;
use crate::debuggers::clone_symbols;
use crate::debuggers::core_file::CoreFile;
use crate::{Error, Target};
use addr::ReadMemory;
use serde::Serialize;
use splice::Installed;
use std::path::{Path, PathBuf};
use tracee::Pid;

/// The answer of `gdb`.
#[derive(Clone, Debug, Serialize)]
pub struct GdbReport {
    /// The process; absent for a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The core; absent for a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<String>,
    /// Its program.
    pub exe: String,
    /// The symbol file.
    pub file: String,
    /// Names in it.
    pub symbols: usize,
    /// Functions and fragments with unwind information in it.
    pub frames: usize,
    /// Functions and fragments without it; 0 unless another program changed the target's memory.
    pub unknown_frames: usize,
    /// The command to type first if breakpoints must stop in rebuilt functions, for a shell: breakpoints are
    /// in originals, and clones bypass them. Absent for a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_breakpoints: Option<String>,
    /// The command to type, for a shell.
    pub command: String,
    /// The command to type in a running debugger.
    pub add: String,
}

/// Writes the symbol file of a process.
///
/// # Errors
/// [`Error::NotInstalled`] for a process that whet has not touched, [`Error::Tracee`], [`Error::File`].
pub fn gdb(pid: Pid, output: Option<&Path>) -> Result<GdbReport, Error> {
    let target = Target::open(pid)?;
    let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
    let written = write(&target.process, installed, output, &format!("{pid}.debug"));
    let (file, counts) = written.map_err(|e| target.cause(e))?;
    let add = add_command(&file);
    Ok(GdbReport {
        pid: Some(pid.0),
        core: None,
        exe: target.exe(),
        command: format!("gdb -p {pid} {}", quiet(&add)),
        before_breakpoints: Some(format!("whet undo {pid}")),
        add,
        ..counts.report(&file)
    })
}

/// Writes the symbol file of a core. `exe` is its program, if the core has the wrong path.
///
/// # Errors
/// Returns [`Error::Core`] for a file that is no core or lacks clones' memory, [`Error::NotInCore`] if whet
/// had not touched the process.
pub fn gdb_core(core: &Path, exe: Option<&Path>, output: Option<&Path>) -> Result<GdbReport, Error> {
    let core = CoreFile::open(core)?;
    let lacking = |e| match e {
        Error::Splice(splice::Error::Unreadable(_)) => Error::Core {
            path: core.path().to_owned(),
            what: "it lacks the memory of clones: it is cut off, or bit 0 of /proc/PID/coredump_filter was not set",
        },
        e => e,
    };
    let installed = splice::discover(&core, &core.journal_candidates()).map_err(|e| lacking(e.into()))?;
    let installed = installed.ok_or_else(|| Error::NotInCore { path: core.path().to_owned() })?;
    let name = core.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (file, counts) = write(&core, &installed, output, &format!("{name}.debug")).map_err(lacking)?;
    let add = add_command(&file);
    let exe = exe.map(|e| e.display().to_string()).or_else(|| core.exe()).unwrap_or_default();
    let core = core.path().display().to_string();
    let program = if exe.is_empty() { String::new() } else { format!("{} ", shell(&exe)) };
    Ok(GdbReport {
        pid: None,
        command: format!("gdb {program}{} {}", shell(&core), quiet(&add)),
        core: Some(core),
        exe,
        add,
        ..counts.report(&file)
    })
}

/// Numbers of items in a symbol file.
struct Counts {
    symbols: usize,
    frames: usize,
    unknown: usize,
}

impl Counts {
    fn report(&self, file: &Path) -> GdbReport {
        GdbReport {
            pid: None,
            core: None,
            exe: String::new(),
            file: file.display().to_string(),
            symbols: self.symbols,
            frames: self.frames,
            unknown_frames: self.unknown,
            before_breakpoints: None,
            command: String::new(),
            add: String::new(),
        }
    }
}

fn write(
    mem: &dyn ReadMemory,
    installed: &Installed,
    output: Option<&Path>,
    name: &str,
) -> Result<(PathBuf, Counts), Error> {
    let fragments = clone_symbols::fragments(mem, installed)?;
    let known = clone_symbols::frames(mem, installed)?;
    let debug_frame = unwind::write_debug_frame(&known.frames).map_err(splice::Error::from)?;
    let bytes = symbols::symbol_file(&known.texts, &fragments, &debug_frame);
    let path = match output {
        // The command must work from any folder.
        Some(path) => {
            std::path::absolute(path).map_err(|source| Error::File { path: path.to_owned(), source })?
        }
        None => private::folder()?.join(name),
    };
    private::write_whole(&path, &bytes)?;
    let counts = Counts { symbols: fragments.len(), frames: known.frames.len(), unknown: known.skipped };
    Ok((path, counts))
}

/// Returns gdb's own command. gdb splits words as a shell does.
fn add_command(file: &Path) -> String {
    let quoted: String = file
        .display()
        .to_string()
        .chars()
        .flat_map(|c| ['"', '\\'].contains(&c).then_some('\\').into_iter().chain([c]))
        .collect();
    format!("add-symbol-file \"{quoted}\"")
}

/// Returns the arguments that make a debugger add the file without a question.
fn quiet(add: &str) -> String {
    format!("-ex 'set confirm off' -ex {} -ex 'set confirm on'", shell(add))
}

/// Quotes a word for a shell.
fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_keeps_words_whole() {
        assert_eq!(shell("/run/whet/7.debug"), "/run/whet/7.debug");
        assert_eq!(shell("it's"), "'it'\\''s'");
        assert_eq!(shell(""), "''");
        assert_eq!(add_command(Path::new("/a b\"c")), "add-symbol-file \"/a b\\\"c\"");
    }
}
