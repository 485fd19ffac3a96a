//! Unwind rows and exception tables of each fragment of a clone, made by the clone's map.
//!
//! The state problem: an unwind rule applies to an address, and neighbours in the clone are not neighbours in
//! the original. So nothing is carried over as a difference. Each clone instruction gets the complete rule of
//! the original instruction for which it stands, and equal neighbours are merged afterwards. Call sites are
//! handled the same way. *All* instructions are looked up, not only calls: with `-fnon-call-exceptions` (Go,
//! Ada, some C++) any instruction may throw.
//!
//! Unwinders treat fragments as separate functions. Each has rows from its first instruction on, and an
//! exception table of its own. The original's table, if there is one, is carried over even if no call site is
//! left. Without a table, exceptions would pass through.
//!
//! Landing pads stay in the original. They are cold, and control that leaves to the original is right anyway.

use crate::encode::{Encoded, Fragment};
use crate::map::Link;
use crate::request::Function;
use addr::{Avma, AvmaRange};
use code::Refusal;
use unwind::{CallSite, Lsda, Row};

/// The unwind information of one fragment.
#[derive(Clone, Debug)]
pub(crate) struct FragmentFrame {
    pub(crate) range: AvmaRange,
    /// The unwind rows; they cover the fragment without gaps.
    pub(crate) rows: Vec<Row>,
    /// The bytes of its exception table.
    pub(crate) lsda: Option<Vec<u8>>,
}

/// Returns the unwind information of all fragments of a clone.
///
/// # Errors
/// [`Refusal::NoUnwindInfo`] if a cloned instruction has no row, [`Refusal::OddExceptionTable`] if a table
/// cannot be written.
pub(crate) fn frames(f: &Function<'_>, clone: &Encoded) -> Result<Vec<FragmentFrame>, Refusal> {
    let frame = |fragment: &Fragment<'_>| {
        let range = fragment.range;
        let lsda =
            f.lsda.map(|l| lsda(l, fragment).write(range.start).map_err(|_| Refusal::OddExceptionTable));
        Ok(FragmentFrame { range, rows: rows(f, fragment)?, lsda: lsda.transpose()? })
    };
    clone.fragments().ok_or(Refusal::RoundTrip)?.iter().map(frame).collect()
}

fn rows(f: &Function<'_>, fragment: &Fragment<'_>) -> Result<Vec<Row>, Refusal> {
    let mut out: Vec<Row> = Vec::new();
    let mut last: Option<usize> = None;
    for e in fragment.insts.iter().map(|i| &i.entry).filter(|e| e.link != Link::Dropped) {
        let row = match find(f.rows, e.original, last, |r| r.range) {
            Some(row) => row,
            // The jump leads out of the original's rows. Its state is then that behind the instruction before
            // it.
            None if e.link == Link::Extra => last.ok_or(Refusal::NoUnwindInfo)?,
            None => return Err(Refusal::NoUnwindInfo),
        };
        let start = fragment.address(e);
        if last != Some(row) && !out.last().is_some_and(|l| l.same_rule(&f.rows[row])) {
            if let Some(l) = out.last_mut() {
                l.range.end = start;
            }
            out.push(Row { range: AvmaRange::new(start, fragment.range.end), ..f.rows[row].clone() });
        }
        last = Some(row);
    }
    Ok(out)
}

/// Returns the exception table of a fragment, in clone addresses except for its landing pads.
fn lsda(original: &Lsda, fragment: &Fragment<'_>) -> Lsda {
    let mut sites: Vec<CallSite> = original.call_sites.clone();
    sites.sort_by_key(|s| s.range.start);
    let mut out: Vec<CallSite> = Vec::new();
    // True if the last call site in `out` may grow: no instruction without a call site lies behind it.
    let mut open = false;
    let mut last = None;
    for (i, e) in fragment.insts.iter().map(|i| &i.entry).enumerate() {
        // Extra jumps and counters do not throw. They neither begin nor end a call site.
        if !matches!(e.link, Link::Copy | Link::Again | Link::Within) {
            continue;
        }
        let site = find(&sites, e.original, last, |s| s.range);
        last = site.or(last);
        let Some(site) = site.map(|s| sites[s]) else {
            open = false;
            continue;
        };
        let start = fragment.address(e);
        let end = end_of(fragment, i);
        match out.last_mut() {
            Some(l) if open && (l.landing_pad, l.action) == (site.landing_pad, site.action) => {
                l.range.end = end;
            }
            _ => out.push(CallSite { range: AvmaRange::new(start, end), ..site }),
        }
        open = true;
    }
    Lsda { call_sites: out, ..original.clone() }
}

/// Returns the end of the instruction at index `i` of a fragment.
fn end_of(fragment: &Fragment<'_>, i: usize) -> Avma {
    fragment.insts.get(i + 1).map_or(fragment.range.end, |next| fragment.address(&next.entry))
}

/// Returns the index of the range that holds `at`, in sorted ranges; `near` is the result of the last search.
fn find<T>(sorted: &[T], at: Avma, near: Option<usize>, range: impl Fn(&T) -> AvmaRange) -> Option<usize> {
    let holds = |i: usize| sorted.get(i).is_some_and(|r| range(r).contains(at));
    if let Some(near) = near {
        if holds(near) {
            return Some(near);
        }
        if holds(near + 1) {
            return Some(near + 1);
        }
    }
    let i = sorted.partition_point(|r| range(r).start <= at).checked_sub(1)?;
    holds(i).then_some(i)
}
