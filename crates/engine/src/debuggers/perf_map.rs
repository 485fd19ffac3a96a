//! The perf map: `/tmp/perf-PID.map`, from which `perf` and similar tools take names of code in anonymous
//! memory.

use crate::Target;
use crate::debuggers::clone_symbols;
use crate::debuggers::perf_place::Place;
use serde::{Deserialize, Serialize};
use splice::Installed;
use std::io;
use symbols::{Fragment, Part};
use tracee::{Pid, Process};

/// The result of writing the perf map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerfMap {
    /// Its path in the target's view; empty if the path could not be determined.
    pub file: String,
    /// Names in it.
    pub symbols: usize,
    /// Why it was not written; absent if it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// Writes the map of a process in its present state. A failure is part of the answer, not an error: the
/// target runs as well without the map.
#[must_use]
pub(crate) fn refresh(pid: Pid) -> PerfMap {
    match Target::open(pid) {
        Err(e) => PerfMap { left_out: Some(e.to_string()), ..PerfMap::default() },
        Ok(Target { process, installed: Some(installed), .. }) => of(&process, &installed),
        Ok(_) => PerfMap::default(),
    }
}

/// Writes the map of an opened process.
#[must_use]
pub(crate) fn of(process: &Process, installed: &Installed) -> PerfMap {
    let mut answer = PerfMap::default();
    answer.left_out = write(process, installed, &mut answer).err().map(|e| e.to_string());
    answer
}

fn write(process: &Process, installed: &Installed, answer: &mut PerfMap) -> io::Result<()> {
    let fragments =
        clone_symbols::fragments(process, installed).map_err(|e| io::Error::other(e.to_string()))?;
    answer.symbols = fragments.len();
    let place = Place::open(process)?;
    let name = format!("perf-{}.map", place.pid);
    answer.file = format!("/tmp/{name}");
    place.put(&name, symbols::perf_map(&fragments).as_bytes(), &own_lines(&fragments))
}

/// Returns the lines of whet's own routines: all maps of one process have them, and no map of another
/// process.
fn own_lines(fragments: &[Fragment]) -> Vec<Vec<u8>> {
    let own = fragments.iter().filter(|f| f.part == Part::Routine);
    own.map(|f| symbols::perf_map(std::slice::from_ref(f)).into_bytes()).collect()
}
