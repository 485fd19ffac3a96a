//! Leading `dl_iterate_phdr` through the anchor: what is cloned of it, and the jump at its entry.

use crate::build::Built;
use crate::candidates::{self, Candidate, Candidates};
use crate::file_text::{self, FileText};
use crate::lookup::{self, Lookup};
use crate::program::Program;
use crate::{Error, Target, redirects};
use addr::Avma;
use rustc_hash::FxHashMap;

/// Takes `dl_iterate_phdr`, where it is led through the anchor, from what may be rebuilt. Where it is to be led from now on,
/// the clone that goes on doing its work is returned: of its first instructions, as all else is as it was.
///
/// # Errors
/// [`Error::Unsupported`] where it cannot be cloned.
pub fn take(
    target: &Target,
    program: &Program<'_>,
    lookup: &Lookup,
    files: &FxHashMap<usize, FileText>,
    candidates: &mut Candidates,
) -> Result<Option<Candidate>, Error> {
    let not_led = |r: code::Refusal| cannot_lead(target, r);
    let Some(at) = lookup.walk else { return Ok(None) };
    let id = program.find(at).ok_or_else(|| not_led(code::Refusal::NoUnwindInfo))?;
    for c in candidates.chosen.extract_if(.., |c| c.id == id) {
        candidates.refused.push((c.id, c.samples, code::Refusal::RuntimeInternal));
    }
    if target.installed.as_ref().is_some_and(|i| i.anchor.hook.is_some()) {
        return Ok(None);
    }
    let walk = candidates::entry_only(program, id).map_err(not_led)?;
    if file_text::is_foreign(program, files, id, &walk.analysed) {
        return Err(not_led(code::Refusal::ForeignChange));
    }
    Ok(Some(walk))
}

/// The jump at its entry, given its clone (`built.walk`) and where a new anchor would be.
///
/// # Errors
/// [`Error::Unsupported`] where there can be no jump.
pub fn hook(
    target: &Target,
    walk: &Candidate,
    built: &Built,
    anchor_at: Avma,
) -> Result<splice::Hook, Error> {
    let anchor = target.installed.as_ref().map_or(anchor_at, |i| i.anchor.routine());
    let led = built.walk.as_ref().ok_or(code::Refusal::Unreadable);
    led.and_then(|(window, clone)| {
        let window = window.as_ref().map_err(|r| *r)?;
        let to = splice::Anchor::walk_routine(anchor);
        let record = redirects::jump(&walk.analysed, window, to).ok_or(code::Refusal::OutOfReach)?;
        Ok(splice::Hook { record, clone: *clone })
    })
    .map_err(|r| cannot_lead(target, r))
}

fn cannot_lead(target: &Target, why: code::Refusal) -> Error {
    lookup::unsupported(target, format!("dl_iterate_phdr cannot be led to new code: {}", why.code()))
}
