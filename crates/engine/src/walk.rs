//! Leading `dl_iterate_phdr` through the anchor: what is cloned of it, and the jump at its entry.

use crate::build::Built;
use crate::candidates::{self, Candidate, Candidates};
use crate::file_text::{self, FileText};
use crate::lookup::{self, Lookup};
use crate::program::Program;
use crate::{Error, Target};
use addr::{Addr, Avma, AvmaRange};
use iced_x86::Code;
use rustc_hash::FxHashMap;
use splice::{Record, RedirectKind};

/// Bytes of an `endbr64`.
const MARK_LEN: u64 = 4;
/// Bytes of a `jmp rel32`.
const JUMP_LEN: u64 = 5;

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
    let walk = candidates::up_to(program, id, at.add(MARK_LEN + JUMP_LEN)).map_err(not_led)?;
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
    program: &Program<'_>,
    walk: &Candidate,
    built: &Built,
    anchor_at: Avma,
) -> Result<splice::Hook, Error> {
    let anchor = target.installed.as_ref().map_or(anchor_at, |i| i.anchor.routine());
    let clone = built.walk.ok_or(code::Refusal::Unreadable);
    clone
        .and_then(|clone| {
            let record = jump(program, walk, splice::Anchor::walk_routine(anchor))?;
            Ok(splice::Hook { record, clone })
        })
        .map_err(|r| cannot_lead(target, r))
}

/// The jump over the first instructions, behind an `endbr64` where there is one.
fn jump(program: &Program<'_>, walk: &Candidate, to: Avma) -> Result<Record, code::Refusal> {
    let cfg = &walk.analysed.cfg;
    let first = cfg.insts.first().ok_or(code::Refusal::Unreadable)?;
    let at = if first.decoded.code() == Code::Endbr64 { first.end() } else { first.at };
    let range = AvmaRange::with_len(at, JUMP_LEN);
    let inside = AvmaRange::new(at.add(1), range.end);
    let branches = &program.module(walk.id).branches;
    let one_block = cfg.blocks.first().is_some_and(|b| b.range.covers(&range));
    let new = emit::jump(at, to).ok_or(code::Refusal::OutOfReach)?;
    let old = walk.analysed.bytes(range).ok_or(code::Refusal::Unreadable)?;
    let interior = cfg.insts.iter().filter(|i| inside.contains(i.at)).filter_map(|i| i.at.since(at));
    let interior = interior.fold(0u8, |mask, i| mask | 1 << (i & 7));
    let word = |bytes: &[u8]| std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0));
    let len = JUMP_LEN as u8;
    let record =
        Record { at, kind: RedirectKind::Entry, len, interior, old: word(old), new: word(&new), mark: None };
    let fits = one_block && branches.jumps_into(inside).len() == 0 && record.in_one_page();
    fits.then_some(record).ok_or(code::Refusal::NoRedirectSite)
}

fn cannot_lead(target: &Target, why: code::Refusal) -> Error {
    lookup::unsupported(target, format!("dl_iterate_phdr cannot be led to new code: {}", why.code()))
}
