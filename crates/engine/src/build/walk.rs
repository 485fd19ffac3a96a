//! Leading unwinders' calls of `dl_iterate_phdr` through the anchor, by the words they call it through.

use crate::analyse::program::Program;
use crate::build::lookup::{self, Lookup};
use crate::plan::candidates::Candidates;
use crate::{Error, Target};
use addr::Avma;
use splice::{Anchor, Hook, Record, RedirectKind};

/// Takes `dl_iterate_phdr`, where its calls are led through the anchor, from what may be rebuilt: slots that lead to a clone
/// of it could not be told from led ones.
pub fn take(program: &Program<'_>, lookup: &Lookup, candidates: &mut Candidates) {
    let Some(id) = lookup.walk.as_ref().and_then(|w| program.find(w.function)) else { return };
    for c in candidates.chosen.extract_if(.., |c| c.id == id) {
        candidates.refused.push((c.id, c.samples, code::Refusal::RuntimeInternal));
    }
}

/// All that is led, with what earlier generations led: given where a new anchor would be.
///
/// # Errors
/// [`Error::Unsupported`] where there are more words than an anchor has room for.
pub fn hook(target: &Target, lookup: &Lookup, anchor_at: Avma) -> Result<Option<Hook>, Error> {
    let anchor = target.installed.as_ref().map(|i| &i.anchor);
    let earlier = anchor.and_then(|a| a.hook.clone());
    let Some(walk) = &lookup.walk else { return Ok(earlier) };
    let routine = Anchor::walk_routine(anchor.map_or(anchor_at, Anchor::routine));
    let mut hook = earlier.unwrap_or(Hook { records: Vec::new(), function: walk.function });
    for word in &walk.words {
        if hook.records.iter().all(|r| r.at != word.at) {
            hook.records.push(Record {
                at: word.at,
                kind: RedirectKind::Slot,
                len: 8,
                interior: 0,
                old: word.holding(walk.function).to_le_bytes(),
                new: word.holding(routine).to_le_bytes(),
                mark: None,
            });
        }
    }
    if hook.records.len() > Hook::MOST {
        let why = format!("unwinders call dl_iterate_phdr through {} words", hook.records.len());
        return Err(lookup::unsupported(target, why));
    }
    Ok(Some(hook).filter(|h| !h.records.is_empty()))
}
