//! `capture`: from a process to a file with all that a rebuild reads of it.

use super::file::{self, Capture};
use super::inputs::{Inputs, Reason};
use super::rebuild;
use super::recorder::{FileRecorder, Recorder};
use crate::analyse::program::{FuncId, Program};
use crate::base::whole_file;
use crate::build::file_text;
use crate::build::lookup;
use crate::build::unwind_hooks;
use crate::count::prepare;
use crate::count::sampling;
use crate::family::kin::Kin;
use crate::plan::candidates;
use crate::plan::estimate;
use crate::plan::samples::Samples;
use crate::records::notes::Notes;
use crate::records::profile_store::{self, Taken};
use crate::session::lock::TargetLock;
use crate::{Error, Interrupt, OptimizeOptions, Progress, Target};
use addr::Avma;
use serde::Serialize;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracee::Pid;

/// The answer of `capture`.
#[derive(Clone, Debug, Serialize)]
pub struct CaptureReport {
    /// The process.
    pub pid: i32,
    /// Its program.
    pub exe: String,
    /// The file.
    pub file: PathBuf,
    /// The size of the file. Bytes.
    pub bytes: u64,
    /// The generation whose profile the capture holds; absent if whet sampled for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// Functions that a replay clones.
    pub functions: usize,
    /// Why a replay builds nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fails: Option<String>,
}

/// How a process is captured.
#[derive(Clone, Debug, Default)]
pub struct CaptureOptions {
    /// How long to sample a process that holds no clones.
    pub sampling: Duration,
    /// Leaves out pages of code without hot functions, and libraries without any. The file gets smaller. A
    /// replay may decide otherwise about some functions, because branches from other code are unknown.
    pub hot_code: bool,
    /// Ends the work early.
    pub interrupt: Interrupt,
}

/// Writes all that a rebuild reads of a process to a file. The process is not changed and not stopped. If
/// clones are in it, their profile is used; otherwise it is sampled.
///
/// # Errors
/// Returns [`Error`]. A process for which a rebuild fails is captured too.
pub fn capture(
    pid: Pid,
    path: &Path,
    how: &CaptureOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<CaptureReport, Error> {
    let (_, _lock) = TargetLock::open(pid)?;
    let target = Target::open(pid)?;
    let options = &OptimizeOptions {
        sampling: how.sampling,
        interrupt: how.interrupt.watching(&target.process),
        ..OptimizeOptions::default()
    };
    let basis = basis(&target, options, progress).map_err(|e| target.cause(e))?;
    // The process may have loaded and unloaded code while it was sampled.
    let target = Target::open(pid).map_err(|e| target.cause(e))?;
    let read = read(&target, how, options, basis, progress).map_err(|e| target.cause(e));
    let (generation, capture) = read?;
    let exe = capture.inputs.exe.clone();
    let replayed = capture.rebuild(&how.interrupt);
    how.interrupt.check()?;
    let bytes = save(&capture, path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    Ok(CaptureReport {
        pid: pid.0,
        exe,
        file: path.to_owned(),
        bytes,
        generation,
        functions: replayed.as_ref().map_or(0, |r| r.report.functions.cloned),
        fails: replayed.err().map(|e| e.to_string()),
    })
}

/// Reads the target as a rebuild does. Returns the generation whose profile was used, and the capture.
fn read(
    target: &Target,
    how: &CaptureOptions,
    options: &OptimizeOptions,
    basis: Basis,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Option<u32>, Capture), Error> {
    progress(Progress::Analysing);
    let found = inputs(target, options, basis)?;
    progress(Progress::Building);
    let (pristine, files) = (target.pristine(), target.files());
    let (memory, read) = (Recorder::new(&pristine), FileRecorder::new(&files));
    let rebuilt = rebuild::rebuild(&found.inputs, &memory, &read, &options.interrupt);
    options.interrupt.check()?;
    let image = rebuild::image(&found.inputs, &memory, &read)?;
    let hot = rebuilt.as_ref().ok().filter(|_| how.hot_code).map(|r| r.originals.as_slice());
    let memory = memory.finish(&image, &files, hot);
    // What could not be read of a process that ends is missing from the capture.
    if target.process.is_ending() {
        return Err(tracee::Error::Gone(target.process.pid()).into());
    }
    Ok((found.generation, Capture { inputs: found.inputs, memory, files: read.finish() }))
}

/// Writes the file, whole or not at all. Returns its size.
fn save(capture: &Capture, path: &Path) -> std::io::Result<u64> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    whole_file::replace(path, Path::new(&beside), 0o600, |f| file::write(capture, BufWriter::new(f)))?;
    Ok(std::fs::metadata(path)?.len())
}

/// The inputs of a process's next rebuild.
struct Found {
    inputs: Inputs,
    generation: Option<u32>,
}

/// The source for the choice of hot functions.
enum Basis {
    /// The newest generation of clones, by its notes.
    Clones(u32, Box<Notes>),
    /// Samples of a process that holds none.
    Samples(Samples),
}

fn basis(
    target: &Target,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Basis, Error> {
    progress(Progress::Reading);
    let process = &target.process;
    let notes = target.installed.as_ref().and_then(|i| Some((i.generation(), Notes::of(process, i)?)));
    Ok(match notes {
        Some((generation, notes)) => Basis::Clones(generation, Box::new(notes)),
        None => Basis::Samples(sampling::take(process, &Kin::default(), options, Vec::new(), progress)?),
    })
}

fn inputs(target: &Target, options: &OptimizeOptions, basis: Basis) -> Result<Found, Error> {
    let process = &target.process;
    let mut inputs = Inputs {
        whet: env!("CARGO_PKG_VERSION").to_owned(),
        pid: process.pid().0,
        exe: target.exe(),
        maps: process.maps_text()?,
        auxv: process.auxv()?.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect(),
        ..Inputs::default()
    };
    let pristine = target.pristine();
    let (generation, taken) = match basis {
        Basis::Clones(generation, notes) => {
            inputs.shuffle = notes.shuffle;
            inputs.without = notes.without;
            inputs.profile = notes.profile;
            let refused = notes.functions.iter().filter(|f| f.clone.is_none());
            inputs.refused = refused.map(|f| (f.at, f.samples)).collect();
            (Some(generation), None)
        }
        Basis::Samples(samples) => (None, Some(samples)),
    };
    let image = target.image()?;
    let lookup = lookup::find(target, &image);
    let files = prepare::file_texts(target, &image);
    let mut program = Program::new(image, &pristine);
    // A rebuild refuses a process without a way to inform its unwinders. Its code is captured all the same.
    if let Ok(lookup) = &lookup {
        inputs.kept = lookup.places.iter().map(|p| p.at.0).collect();
        let kept = unwind_hooks::kept(&program, lookup);
        inputs.originals.extend(kept.iter().map(|&f| (entry(&program, f), Reason::RuntimeInternal)));
    }
    program.keep(inputs.kept.iter().map(|&at| Avma(at)));
    if let Some(samples) = taken {
        let chosen = candidates::choose(&program, &samples, options, None)?;
        let chosen = profile_store::counted(estimate::infer(chosen, &samples), &samples);
        inputs.refused = chosen.refused.iter().map(|r| (entry(&program, r.0), r.1)).collect();
        let taken = Taken { exe: target.exe(), samples: &samples, counted: Duration::ZERO };
        inputs.profile = profile_store::take_down(&program, &chosen.chosen, options, &taken);
    }
    let changed = file_text::changed_functions(&program, &files);
    inputs.originals.extend(changed.into_iter().map(|f| (entry(&program, f), Reason::ForeignChange)));
    inputs.originals.sort_unstable_by_key(|o| o.0);
    Ok(Found { inputs, generation })
}

fn entry(program: &Program<'_>, f: FuncId) -> u64 {
    program.extent(f).entry.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExitCode;
    use std::process::{Command, Stdio};

    #[test]
    fn the_end_of_the_process_at_any_step() {
        let file = std::env::temp_dir().join(format!("whet-capture-of-none-{}", std::process::id()));
        let how = CaptureOptions { sampling: Duration::from_secs(2), ..CaptureOptions::default() };
        for step in ["reading", "sampling", "analysing", "building"] {
            let mut child =
                Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
            let pid = Pid(child.id().cast_signed());
            let outcome = capture(pid, &file, &how, &mut |p| {
                if p.phase() == step {
                    child.kill().unwrap();
                }
            });
            // Otherwise a capture that failed earlier would leave the test waiting.
            child.kill().unwrap();
            child.wait().unwrap();
            let error = outcome.unwrap_err();
            assert_eq!(error.exit_code(), ExitCode::Gone, "{step}: {error}");
            assert!(!file.exists());
        }
    }
}
