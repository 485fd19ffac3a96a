//! Counts in a member of the target's family. The parent of a family often does little itself, and counters
//! lie in the memory of the process in which they count. So counts are taken in one busy member.

use crate::build::installer::Installer;
use crate::count::counting::{self, ToCount};
use crate::count::rounds::{self, CountingReport};
use crate::family::fit::{Fitting, Head};
use crate::family::kin::Kin;
use crate::plan::candidate::Measured;
use crate::plan::candidates::Candidates;
use crate::session::restore;
use crate::{Error, OptimizeOptions, Progress, Target};

/// How many members are tried: they may end while they count.
const TRIES: usize = 4;

/// The functions, with counts as far as they are known, and what was done.
type Outcome = Result<(Candidates<Measured>, CountingReport), Error>;

/// Counts functions: in the busiest process of the family, or in the target if it is
/// optimized alone.
///
/// # Errors
/// Returns the errors of [`counting::count`] in the target itself, [`tracee::Error::Gone`] if the target ends while
/// a member counts, and [`Error::Changed`] if another command changes the member meanwhile. If no other member can
/// be counted in, the report says why.
pub(crate) fn count(
    installer: &Installer<'_, '_>,
    kin: &Kin,
    functions: ToCount<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Outcome {
    let own = installer.target.process.pid();
    if kin.sampled().is_none() {
        return count_in(installer, functions, progress);
    }
    let mut why = "no process of the family was busy".to_owned();
    let mut head: Option<Head<'_>> = None;
    for pid in kin.busiest().into_iter().take(TRIES) {
        if pid == own {
            return count_in(installer, functions, progress);
        }
        let fitting = match &head {
            Some(head) => head.join(pid),
            None => self::head(installer).and_then(|made| head.insert(made).join(pid)),
        };
        let counted = fitting.and_then(|member| in_member(installer, &member, functions.clone(), progress));
        match counted {
            Ok((counted, report)) => {
                return Ok((counted, CountingReport { counted_in: Some(pid.0), ..report }));
            }
            Err(e @ (Error::Changed { .. } | Error::Interrupted { .. })) => return Err(e),
            // It could not be restored. No further member may come into that state.
            Err(e) if Target::open(pid).is_ok_and(|t| t.installed.is_some_and(|i| i.is_counting())) => {
                return Err(e);
            }
            Err(e) => {
                functions.options.interrupt.check()?;
                why = crate::with_causes(&e);
            }
        }
    }
    Ok((functions.candidates, CountingReport { left_out: Some(why), ..CountingReport::default() }))
}

/// Counts in the installer's process.
fn count_in(
    installer: &Installer<'_, '_>,
    functions: ToCount<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Outcome {
    let ToCount { time, options, .. } = functions;
    let mut run = |look: &mut rounds::Look<'_>| {
        rounds::wait(time, &options.interrupt, look);
    };
    counting::count(installer, functions, &mut run, progress)
}

/// Returns what members are compared with.
fn head<'a>(installer: &'a Installer<'_, '_>) -> Result<Head<'a>, Error> {
    let image = installer.program.image();
    let unloadable = image.modules().iter().filter(|m| !m.nodelete);
    let marks = unloadable.map(|m| m.extent.start).collect();
    Head::new(installer.target, image, &installer.lookup, marks)
}

/// Counts in a member, and restores it to its state before.
fn in_member(
    installer: &Installer<'_, '_>,
    member: &Fitting,
    functions: ToCount<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Outcome {
    let process = &member.target.process;
    let was_optimized = restore::is_optimized(&member.target);
    let options = functions.options;
    let options = &OptimizeOptions { interrupt: options.interrupt.watching(process), ..options.clone() };
    let inside = Installer {
        target: &member.target,
        program: installer.program,
        lookup: member.lookup.clone(),
        files: installer.files,
        elsewhere: &Vec::new,
        code_cache: installer.code_cache,
        interrupt: options.interrupt.clone(),
        spans: installer.spans,
    };
    let counted = count_in(&inside, ToCount { options, ..functions }, progress);
    let counted = restore::or_restore(&member.target, was_optimized, counted)?;
    match restore::restore(&member.target, was_optimized) {
        Err(e) if process.is_alive() => Err(e),
        _ => Ok(counted),
    }
}
