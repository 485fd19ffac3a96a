//! Redirects unwinders' lookups to the anchor, by the words and displacements of their calls.

use crate::analyse::program::{FuncId, Program};
use crate::build::lookup::{self, Form, Lookup, Routine};
use crate::{Error, Target};
use addr::Avma;
use rustc_hash::FxHashSet;
use splice::{Anchor, Hook, Record, RedirectKind};

/// Returns the functions that must run as originals. A slot that leads to the clone of a redirected function
/// could not be distinguished from a redirected slot. The clone of a function that makes a redirected call would not
/// be redirected.
#[must_use]
pub fn kept(program: &Program<'_>, lookup: &Lookup) -> FxHashSet<FuncId> {
    let calls = lookup.places.iter().filter(|p| p.form == Form::Displacement).map(|p| p.at);
    lookup.functions.iter().copied().chain(calls).filter_map(|at| program.find(at)).collect()
}

/// Returns all redirected places, including those of earlier generations. `anchor_at` is the place of a new
/// anchor.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there are more words than an anchor has room for.
pub fn hook(target: &Target, lookup: &Lookup, anchor_at: Avma) -> Result<Option<Hook>, Error> {
    let anchor = target.installed.as_ref().map(|i| &i.anchor);
    let earlier = anchor.and_then(|a| a.hook.clone());
    // The routine for `dl_iterate_phdr` continues to this function; the routine for `_dl_find_object` has its
    // own address.
    let iterate_phdr = lookup.places.iter().find(|p| p.routine == Routine::IteratePhdr);
    let Some(function) =
        iterate_phdr.or(lookup.places.first()).map(|p| p.function).or(lookup.functions.first().copied())
    else {
        return Ok(earlier);
    };
    let code_at = anchor.map_or(anchor_at, Anchor::routine);
    let mut hook = earlier.unwrap_or(Hook { records: Vec::new(), function });
    for place in &lookup.places {
        if hook.records.iter().any(|r| r.at == place.at) {
            continue;
        }
        let out_of_reach = || lookup::unsupported(target, "its unwinder calls from too far away".to_owned());
        let record = Record {
            at: place.at,
            kind: match place.form {
                Form::Word(_) => RedirectKind::Slot,
                Form::Displacement => RedirectKind::Call,
            },
            len: u8::try_from(place.range().len()).unwrap_or(8),
            interior: 0,
            old: place.holding(place.function).ok_or_else(out_of_reach)?,
            new: place.holding(place.routine.at(code_at)).ok_or_else(out_of_reach)?,
            mark: None,
        };
        if !record.in_one_page() {
            let why = "the call by which its unwinder finds code lies in two pages".to_owned();
            return Err(lookup::unsupported(target, why));
        }
        hook.records.push(record);
    }
    if hook.records.len() > Hook::MOST {
        let why = format!("its unwinders find code by calls in {} places", hook.records.len());
        return Err(lookup::unsupported(target, why));
    }
    Ok(Some(hook).filter(|h| !h.records.is_empty()))
}
