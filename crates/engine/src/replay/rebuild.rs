//! A rebuild from its inputs, without a process: choose, lay out, emit, verify.

use super::captured_memory::CapturedFiles;
use super::file::Capture;
use super::inputs::Inputs;
use super::report::{self, ReplayReport};
use crate::analyse::program::{FuncId, Program};
use crate::base::passes::{Passes, Style};
use crate::base::phases::Spans;
use crate::build::caches::{self, Bounds};
use crate::build::clones::Clones;
use crate::build::places;
use crate::plan::candidate::Counted;
use crate::plan::candidates::{self, Candidates};
use crate::plan::estimate;
use crate::plan::lay_out::lay_out;
use crate::plan::samples::Samples;
use crate::records::profile_store;
use crate::session::target::check_program;
use crate::{Error, Interrupt, OptimizeOptions};
use addr::{Avma, AvmaRange, ReadMemory};
use image::{Files, Image};
use profile::Profile;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tracee::Pid;

/// Returns the modules of the inputs' process.
///
/// # Errors
/// [`Error::Image`].
pub(super) fn image(inputs: &Inputs, memory: &dyn ReadMemory, files: &dyn Files) -> Result<Image, Error> {
    let auxv: Vec<u8> = inputs.auxv.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut hint = image::auxv::parse(&auxv);
    hint.exe_path = Some(inputs.exe.clone());
    Ok(Image::load(&image::maps::parse(&inputs.maps)?, memory, files, &hint)?)
}

/// A rebuild.
#[derive(Debug, Default)]
pub(super) struct Rebuilt {
    /// The facts about it.
    pub(super) report: ReplayReport,
    /// The code of the originals of its clones.
    pub(super) originals: Vec<AvmaRange>,
}

impl Capture {
    /// Builds the clones of the captured process. The result depends on the capture alone.
    ///
    /// # Errors
    /// Same as [`rebuild`].
    pub(super) fn rebuild(&self, interrupt: &Interrupt) -> Result<Rebuilt, Error> {
        rebuild(&self.inputs, &self.memory, &CapturedFiles::new(&self.files), interrupt)
    }
}

/// Builds the clones of the inputs' process in its state then. The result depends on the arguments alone.
///
/// # Errors
/// Returns the errors of [`crate::optimize`] that do not depend on a live process.
pub(super) fn rebuild(
    inputs: &Inputs,
    memory: &(dyn ReadMemory + Sync),
    files: &dyn Files,
    interrupt: &Interrupt,
) -> Result<Rebuilt, Error> {
    let pid = Pid(inputs.pid);
    let image = image(inputs, memory, files)?;
    check_program(pid, &image, memory)?;
    let maps = image.maps().to_vec();
    let mut program = Program::new(image, memory);
    program.keep(inputs.kept.iter().map(|&at| Avma(at)));
    let style = Style { shuffle: inputs.shuffle, passes: passes(inputs) };
    let counted = choose(&program, inputs, style, interrupt)?;
    let candidates = counted.map(|counted| lay_out(&program, counted, style));
    let bounds = Bounds { notes: 0, head: 0, interrupt, spans: &Spans::default() };
    let built =
        caches::build(&program, Clones::ToRun(&candidates.chosen), places::limits(&maps), style, &bounds)?;
    let parts = candidates.chosen.iter().flat_map(|c| c.analysed.text.iter().map(|(range, _)| *range));
    let originals = parts.collect();
    Ok(Rebuilt { report: report::report(inputs, &program, &candidates, &built), originals })
}

/// Returns the passes of the inputs. A pass that this whet does not have is not left out.
fn passes(inputs: &Inputs) -> Passes {
    Passes::without(&inputs.without.iter().filter_map(|p| p.parse().ok()).collect::<Vec<_>>())
}

/// Returns the functions to be cloned, and those that are left alone.
fn choose(
    program: &Program<'_>,
    inputs: &Inputs,
    style: Style,
    interrupt: &Interrupt,
) -> Result<Candidates<Counted>, Error> {
    let pid = Pid(inputs.pid);
    let options = OptimizeOptions {
        interrupt: interrupt.clone(),
        shuffle: style.shuffle,
        passes: style.passes,
        ..OptimizeOptions::default()
    };
    let mut chosen = match style.shuffle {
        Some(_) => {
            let samples = Samples::default();
            let chosen = candidates::choose(program, &samples, &options, None)?;
            profile_store::counted(estimate::unknown(chosen), &samples)
        }
        None => {
            let why = |e| Error::ProfileUnfit { pid, why: format!("it is malformed: {e}") };
            let profile: Profile = inputs.profile.parse().map_err(why)?;
            let options = OptimizeOptions { profile: Some(Arc::new(profile.clone())), ..options };
            profile_store::candidates(program, pid, &profile_store::adapt(program, &profile), &options, None)?
        }
    };
    let entry = |at: u64| program.entered_at(Avma(at));
    let originals: FxHashMap<FuncId, _> =
        inputs.originals.iter().filter_map(|&(at, why)| Some((entry(at)?, why))).collect();
    chosen.refuse(|c| originals.get(&c.id).map(|why| why.refusal()));
    for (f, samples) in inputs.refused.iter().filter_map(|&(at, n)| Some((entry(at)?, n))) {
        let is_known = chosen.refused.iter().any(|r| r.0 == f) || chosen.chosen.iter().any(|c| c.id == f);
        if !is_known && let Err(reason) = program.analyse(f) {
            chosen.refused.push((f, samples, reason));
        }
    }
    Ok(chosen)
}
