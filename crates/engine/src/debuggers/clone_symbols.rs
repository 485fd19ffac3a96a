//! Facts about clones for debuggers and profilers, read from the target's memory, or a core of it, alone.

use crate::build::map_store;
use crate::records::notes::Notes;
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use rustc_hash::FxHashMap;
use splice::{Error, Installed};
use symbols::{Fragment, Part};
use unwind::{CloneFrame, FrameTable};

/// The form of an `.eh_frame_hdr` as `unwind` writes it: version 1, then the encodings of its three parts.
const HDR_FORM: u32 = 0x3b03_1b01;

/// Returns all code that whet brought into a target, with its names.
///
/// # Errors
/// [`Error::Unreadable`].
pub(crate) fn fragments(mem: &dyn ReadMemory, installed: &Installed) -> Result<Vec<Fragment>, Error> {
    let names = names(mem, installed)?;
    let anchor = &installed.anchor;
    let code = AvmaRange::with_len(anchor.routine(), anchor.at.since(anchor.routine()).unwrap_or(0));
    let module_list = splice::Anchor::module_list_routine(code.start);
    let routine = |start, end, name: &str| Fragment {
        range: AvmaRange::new(start, end),
        part: Part::Routine,
        name: name.to_owned(),
    };
    let mut out = vec![
        routine(code.start, module_list, "whet_find_object"),
        routine(module_list, code.end, "whet_iterate_phdr"),
    ];
    for cache in &installed.caches {
        let parts = match cache.header.counting {
            false => [Part::Hot, Part::Warm],
            true => [Part::Counting, Part::CountingWarm],
        };
        for (original, map) in map_store::read(&cache.map(mem)?) {
            let unknown = || format!("function_at_{:x}", original.0);
            let name = names.get(&original).cloned().unwrap_or_else(unknown);
            for (i, range) in map.fragments().ranges().enumerate() {
                let part = parts[i.min(1)];
                out.push(Fragment { range, part, name: name.clone() });
            }
        }
    }
    out.sort();
    Ok(out)
}

/// Returns the names of all functions that were ever cloned, by their originals' entries.
fn names(mem: &dyn ReadMemory, installed: &Installed) -> Result<FxHashMap<Avma, String>, Error> {
    let mut names = FxHashMap::default();
    for cache in &installed.caches {
        let notes = Notes::read(&cache.notes(mem)?).unwrap_or_default();
        names.extend(notes.functions.into_iter().map(|f| (Avma(f.at), f.name)));
    }
    // An older whet cloned this function for its unwinders.
    for entry in
        installed.anchor.module_list_redirects().iter().filter(|r| r.kind == splice::RedirectKind::Entry)
    {
        names.entry(entry.at).or_insert_with(|| "dl_iterate_phdr".to_owned());
    }
    Ok(names)
}

/// The ranges of the code, and its unwind rows.
#[derive(Debug, Default)]
pub(crate) struct CloneFrames {
    /// Ascending.
    pub(crate) texts: Vec<AvmaRange>,
    pub(crate) frames: Vec<CloneFrame>,
    /// Frames that could not be read.
    pub(crate) skipped: usize,
}

/// Reads the frame tables of all that whet brought into a target.
///
/// # Errors
/// [`Error::Unreadable`], [`Error::Journal`] for an index of another form, [`Error::Unwind`].
pub(crate) fn frames(mem: &dyn ReadMemory, installed: &Installed) -> Result<CloneFrames, Error> {
    let anchor = &installed.anchor;
    let mut out = CloneFrames::default();
    for region in &anchor.regions {
        let cache = installed.caches.iter().map(|c| &c.header).find(|h| h.data.start == region.journal);
        let (text, end) = match cache {
            Some(h) => (AvmaRange::with_len(h.text.start, h.code_bytes), h.records.start),
            // Tables behind the code, in the same mapping.
            None if region.text.contains(region.eh_frame_hdr) => (region.text, region.text.end),
            None => (region.text, anchor.at.add(region.text.len())),
        };
        out.texts.push(text);
        let hdr = region.eh_frame_hdr;
        let bad = |what| Error::Journal { at: hdr, what };
        if mem.u32(hdr)? != HDR_FORM {
            return Err(bad("an index of frames of unknown form"));
        }
        let at = hdr.add(4).offset(i64::from(mem.u32(hdr.add(4))?.cast_signed()));
        if at >= end {
            return Err(bad("an index of frames that leads elsewhere"));
        }
        let table = FrameTable::parse(mem.bytes(AvmaRange::new(at, end))?, at, mem)?;
        out.skipped += table.skipped();
        for fde in table.fdes() {
            let Ok(rows) = table.rows(fde) else {
                out.skipped += 1;
                continue;
            };
            let (range, signal_frame) = (fde.range, fde.signal_frame);
            out.frames.push(CloneFrame { range, rows, personality: None, lsda: None, signal_frame });
        }
    }
    out.texts.sort_unstable();
    Ok(out)
}
