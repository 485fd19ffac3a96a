//! Brings the sites of one page to their intended state.
//!
//! Sites of different generations may overlap. One generation may have redirected a function's entry. A later
//! generation may leave this function alone and have redirected a call in its first bytes. So all redirects
//! of the journals are removed first, the newest first, until no more can be removed. Only the bytes then
//! left show whether something else has changed them. Then the intended redirects are put in. All of this
//! happens in a copy of the page's bytes.

use crate::write::Write;
use crate::{Record, RedirectKind};
use addr::{Addr, Avma, AvmaRange};
use std::cmp::Reverse;

/// A place to write.
#[derive(Debug)]
pub struct Site {
    /// The newest record of this place.
    pub record: Record,
    /// The bytes of each generation's redirect at this place.
    pub redirected: Vec<[u8; 8]>,
    /// Whether the newest record's redirect, or no redirect, is intended.
    pub apply: bool,
    /// Increases with the generation of the newest record.
    pub age: usize,
}

/// The result for the sites.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The indices of sites that are as intended.
    pub done: Vec<usize>,
    /// Addresses that hold neither the bytes of the journals nor the original's.
    pub foreign: Vec<Avma>,
}

/// Returns the range from the first to the last byte of the sites of one page, and of the hook if it overlaps
/// them.
pub fn span(sites: &[Site], here: &[usize], hook: Option<&Record>) -> AvmaRange {
    let start = here.iter().map(|&i| sites[i].record.at).min().unwrap_or_default();
    let end = here.iter().map(|&i| sites[i].record.range().end).max().unwrap_or_default();
    let span = AvmaRange::new(start, end);
    match hook.map(Record::range).filter(|h| h.overlaps(&span)) {
        Some(h) => AvmaRange::new(start.min(h.start), end.max(h.end)),
        None => span,
    }
}

/// The bytes of a span, with its address.
struct Bytes<'a> {
    start: Avma,
    bytes: &'a mut [u8],
}

impl Bytes<'_> {
    fn at(&mut self, r: &Record) -> Option<&mut [u8]> {
        let from = usize::try_from(r.at.since(self.start)?).ok()?;
        self.bytes.get_mut(from..from.checked_add(usize::from(r.len))?)
    }

    /// Changes one form of a record's bytes into another. Returns whether the first form was there.
    fn change(&mut self, r: &Record, from: &[u8; 8], to: &[u8; 8]) -> bool {
        let len = usize::from(r.len);
        match self.at(r) {
            Some(now) if *now == from[..len] => {
                now.copy_from_slice(&to[..len]);
                true
            }
            _ => false,
        }
    }
}

/// Brings the sites `here` (ascending indices in `sites`) to their intended state in the bytes of their span.
/// `hook` stays if it is there, even against the sites.
pub fn change(
    sites: &[Site],
    here: &[usize],
    span: AvmaRange,
    bytes: &mut [u8],
    hook: Option<&Record>,
) -> Outcome {
    let mut bytes = Bytes { start: span.start, bytes };
    let mut outcome = Outcome::default();
    // The hook is written over redirects, and no redirect over the hook. So it is removed first.
    let hook = hook.filter(|h| bytes.change(h, &h.new, &h.old));
    let mut left: Vec<usize> =
        here.iter().copied().filter(|&i| hook.is_none_or(|h| h.range() != sites[i].record.range())).collect();
    left.sort_by_key(|&i| Reverse(sites[i].age));
    let all = left.clone();
    // The bytes that were removed at each of `here`.
    let mut stood: Vec<Option<[u8; 8]>> = vec![None; here.len()];
    let place = |i: usize| here.binary_search(&i).ok();
    loop {
        let before = left.len();
        left.retain(|&i| {
            let Site { record, redirected, .. } = &sites[i];
            let off = redirected.iter().find(|now| bytes.change(record, now, &record.old));
            if let (Some(now), Some(p)) = (off, place(i)) {
                stood[p] = Some(*now);
            }
            off.is_none()
        });
        if left.len() == before {
            break;
        }
    }
    let stood_at = |i: usize| place(i).and_then(|p| stood[p]);
    let stands = |i: usize| stood_at(i).is_some_and(|now| matches(&sites[i].record, &now));

    let own = |bytes: &mut Bytes<'_>, r: &Record| bytes.at(r).is_some_and(|now| now == r.old_bytes());
    let (ours, foreign): (Vec<usize>, Vec<usize>) =
        all.into_iter().partition(|&i| own(&mut bytes, &sites[i].record));
    outcome.foreign.extend(foreign.into_iter().map(|i| sites[i].record.at));
    if let Some(h) = hook {
        bytes.change(h, &h.old, &h.new);
    }
    let (mut put, taken_off): (Vec<usize>, Vec<usize>) = ours.into_iter().partition(|&i| sites[i].apply);
    outcome.done.extend(taken_off);
    // If two sites need the same bytes, the site whose redirect was in force keeps them.
    put.sort_by_key(|&i| !stands(i));
    for i in put {
        let record = &sites[i].record;
        if bytes.change(record, &record.old, &record.new) {
            outcome.done.push(i);
        } else {
            outcome.foreign.push(record.at);
        }
    }
    outcome
}

/// Returns whether any of the sites is in code.
pub fn is_code(sites: &[Site], here: &[usize]) -> bool {
    here.iter().any(|&i| !matches!(sites[i].record.kind, RedirectKind::Vtable | RedirectKind::Slot))
}

/// Returns the writes that turn the bytes `before` of the sites' span into `after`. In code only the bytes of
/// sites are written: the program and other tools may write the bytes between them at any time.
pub fn writes(sites: &[Site], here: &[usize], span: AvmaRange, before: &[u8], after: &[u8]) -> Vec<Write> {
    if !is_code(sites, here) {
        return vec![Write { at: span.start, before: before.to_vec(), now: after.to_vec() }];
    }
    let mut ranges: Vec<AvmaRange> = here.iter().map(|&i| sites[i].record.range()).collect();
    ranges.sort_unstable_by_key(|r| r.start);
    let mut joined: Vec<AvmaRange> = Vec::with_capacity(ranges.len());
    for r in ranges {
        match joined.last_mut().filter(|last| r.start < last.end) {
            Some(last) => last.end = last.end.max(r.end),
            None => joined.push(r),
        }
    }
    let part = |r: &AvmaRange| {
        let from = usize::try_from(r.start.since(span.start)?).ok()?;
        let part = from..from.checked_add(usize::try_from(r.len()).ok()?)?;
        let (was, is) = (before.get(part.clone())?, after.get(part)?);
        (was != is).then(|| Write { at: r.start, before: was.to_vec(), now: is.to_vec() })
    };
    joined.iter().filter_map(part).collect()
}

fn matches(record: &Record, now: &[u8; 8]) -> bool {
    now[..usize::from(record.len)] == *record.new_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x1000;
    /// `call`, `push rbp`, `ret`.
    const ORIGINAL: [u8; 8] = [0xe8, 0x10, 0x20, 0x30, 0x40, 0x55, 0xc3, 0x90];

    fn word(b: &[u8]) -> [u8; 8] {
        std::array::from_fn(|i| b.get(i).copied().unwrap_or(0))
    }

    fn record(kind: RedirectKind, offset: usize, new: &[u8], interior: u8) -> Record {
        Record {
            at: Avma(AT + offset as u64),
            kind,
            len: u8::try_from(new.len()).unwrap(),
            interior,
            old: word(&ORIGINAL[offset..offset + new.len()]),
            new: word(new),
            mark: None,
        }
    }

    /// The first generation redirected the entry. The second left the function alone and redirected the call
    /// in it.
    fn entry() -> Record {
        record(RedirectKind::Entry, 0, &[0xe9, 1, 1, 1, 1], 0)
    }

    fn call() -> Record {
        record(RedirectKind::Call, 1, &[2, 2, 2, 2], 0)
    }

    fn site(age: usize, record: Record, apply: bool) -> Site {
        Site { record, redirected: vec![record.new], apply, age }
    }

    fn run(sites: &[Site], bytes: &mut [u8; 8], hook: Option<&Record>) -> Outcome {
        let here: Vec<usize> = (0..sites.len()).collect();
        let span = span(sites, &here, hook);
        let o = usize::try_from(span.start.0 - AT).unwrap();
        let len = usize::try_from(span.len()).unwrap();
        change(sites, &here, span, &mut bytes[o..o + len], hook)
    }

    fn with(records: &[Record]) -> [u8; 8] {
        let mut b = ORIGINAL;
        for r in records {
            let o = usize::try_from(r.at.0 - AT).unwrap();
            b[o..o + usize::from(r.len)].copy_from_slice(r.new_bytes());
        }
        b
    }

    #[test]
    fn undo_removes_overlapping_redirects_in_any_order() {
        for (newest, sites) in [
            (call(), [site(0, entry(), false), site(1, call(), false)]),
            (call(), [site(1, call(), false), site(0, entry(), false)]),
            (entry(), [site(0, call(), false), site(1, entry(), false)]),
            (entry(), [site(1, entry(), false), site(0, call(), false)]),
        ] {
            for start in [ORIGINAL, with(&[newest])] {
                let mut b = start;
                let out = run(&sites, &mut b, None);
                assert_eq!((b, out.done.len(), out.foreign), (ORIGINAL, 2, vec![]), "{sites:?}");
            }
        }
    }

    #[test]
    fn redo_of_applied_redirects_changes_nothing() {
        let sites = [site(0, entry(), false), site(1, call(), true)];
        for start in [ORIGINAL, with(&[call()]), with(&[entry()])] {
            let mut b = start;
            let out = run(&sites, &mut b, None);
            assert_eq!((b, out.done.len(), out.foreign), (with(&[call()]), 2, vec![]));
        }
    }

    #[test]
    fn foreign_bytes_are_left_alone() {
        let mut theirs = with(&[call()]);
        theirs[3] = 0xcc;
        let mut b = theirs;
        let out = run(&[site(0, entry(), false), site(1, call(), false)], &mut b, None);
        assert_eq!((b, out.done.len(), out.foreign.len()), (theirs, 0, 2));
        // Sites beside the changed bytes are undone.
        theirs = with(&[call()]);
        theirs[0] = 0xcc;
        b = theirs;
        let out = run(&[site(0, entry(), false), site(1, call(), false)], &mut b, None);
        assert_eq!((&b[..1], &b[1..5]), (&[0xcc][..], &ORIGINAL[1..5]));
        assert_eq!((out.done, out.foreign), (vec![1], vec![Avma(AT)]));
    }

    #[test]
    fn sites_of_one_generation_never_share_bytes() {
        let sites = [site(0, entry(), true), site(1, call(), true)];
        let mut b = ORIGINAL;
        let out = run(&sites, &mut b, None);
        assert!(b == with(&[entry()]) || b == with(&[call()]), "{b:x?}");
        assert_eq!((out.done.len(), out.foreign.len()), (1, 1));
        let stood = b;
        run(&sites, &mut b, None);
        assert_eq!(b, stood);
        // The site whose redirect is there keeps it.
        for stood in [with(&[entry()]), with(&[call()])] {
            let mut b = stood;
            run(&sites, &mut b, None);
            assert_eq!(b, stood);
        }
    }

    #[test]
    fn in_code_only_the_bytes_of_redirects_are_written() {
        let sites = [site(0, call(), true)];
        let (here, span) = ([0], AvmaRange::with_len(Avma(AT), 8));
        let mut after = with(&[call()]);
        // A byte that another tool writes beside a redirect meanwhile stays.
        after[0] = 0xcc;
        let writes = writes(&sites, &here, span, &ORIGINAL, &after);
        let parts = |w: &Write| (w.range(), w.before.clone(), w.now.clone());
        let wanted = (call().range(), call().old_bytes().to_vec(), call().new_bytes().to_vec());
        assert_eq!(writes.iter().map(parts).collect::<Vec<_>>(), [wanted]);
        let data = Record { kind: RedirectKind::Vtable, ..call() };
        let writes = super::writes(&[site(0, data, true)], &here, span, &ORIGINAL, &after);
        assert_eq!(writes.iter().map(parts).collect::<Vec<_>>(), [(span, ORIGINAL.to_vec(), after.to_vec())]);
    }

    #[test]
    fn the_hook_is_never_removed() {
        let hook = record(RedirectKind::Entry, 0, &[0xe9, 9, 9, 9, 9], 0);
        let hooked = with(&[hook]);
        let mut b = hooked;
        let out = run(&[site(0, entry(), false), site(1, call(), false)], &mut b, Some(&hook));
        assert_eq!((b, out.done, out.foreign), (hooked, vec![1], vec![]));
        let out = run(&[site(0, entry(), true)], &mut b, Some(&hook));
        assert_eq!((b, out), (hooked, Outcome::default()));
        let out = run(&[site(0, call(), true)], &mut b, Some(&hook));
        assert_eq!((b, out.foreign), (hooked, vec![Avma(AT + 1)]));
    }
}
