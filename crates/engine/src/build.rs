//! From chosen functions to code caches: order, place, emit, redirect. Nothing here touches the target.

use crate::candidates::Candidate;
use crate::file_text::FileText;
use crate::function_order::function_order;
use crate::map_store;
use crate::program::{FuncId, Program};
use crate::{Error, neighbourhood, redirects};
use addr::{Addr, Avma, AvmaRange};
use code::{Cfg, EntryWindow, Refusal};
use emit::{Fragments, Function, Output, Request, Shortcut, Stubs};
use image::{Mapping, ModuleKind};
use rustc_hash::FxHashMap;
use splice::{BLOB_OFFSET, CachePlan, Hole};

/// A generation, ready to be installed, and what there is to say about it.
#[derive(Debug, Default)]
pub struct Built {
    /// Its caches.
    pub caches: Vec<CachePlan>,
    /// Functions that were cloned, with their clones.
    pub cloned: Vec<(FuncId, Fragments)>,
    /// Functions that were not cloned after all, and entries of cloned ones that could not be redirected.
    pub refused: Vec<(FuncId, Refusal)>,
    /// Whether the reason concerns only the entry, by place in `refused`.
    pub entry_only: Vec<bool>,
    /// Bytes of clones.
    pub code_bytes: u64,
    /// Where nothing is yet: for the anchor.
    pub holes: Vec<(AvmaRange, Hole)>,
    /// The program's own cache, by place in `caches`.
    pub main_cache: Option<usize>,
    /// Of the function that is led elsewhere: the bytes its entry's jump takes, and its clone.
    pub walk: Option<(Result<EntryWindow, Refusal>, Avma)>,
}

/// Builds everything. `files` has a module's file text by the module's place in the image, `maps` is what is mapped now.
/// `walk` is cloned without anything being led to its clone.
///
/// # Errors
/// [`Error::Splice`] where there is no room near a module, [`Error::Build`] where the clones could not be made.
pub fn build(
    program: &Program<'_>,
    chosen: &[Candidate],
    walk: Option<&Candidate>,
    files: &FxHashMap<usize, FileText>,
    maps: &[Mapping],
    shuffle: Option<u64>,
) -> Result<Built, Error> {
    let mut built = Built { holes: holes(maps), ..Built::default() };
    let work = Work { program, chosen, walk, files, shuffle };
    for modules in &groups(program) {
        let members: Vec<&Candidate> =
            chosen.iter().chain(walk).filter(|c| modules.contains(&program.module(c.id).in_image)).collect();
        if !members.is_empty() {
            one_cache(&work, &members, modules, &mut built)?;
        }
    }
    Ok(built)
}

/// Module places by neighbourhood; only modules that may be optimized count.
fn groups(program: &Program<'_>) -> Vec<Vec<usize>> {
    let modules = program.image().modules();
    let usable: Vec<usize> =
        program.modules().iter().filter(|m| m.refused.is_none()).map(|m| m.in_image).collect();
    let extents: Vec<AvmaRange> = usable.iter().map(|&i| modules[i].extent).collect();
    neighbourhood::group(&extents).into_iter().map(|g| g.into_iter().map(|i| usable[i]).collect()).collect()
}

/// Everything mapped, with what grows.
fn holes(maps: &[Mapping]) -> Vec<(AvmaRange, Hole)> {
    let kind = |path: Option<&str>| match path {
        Some("[heap]") => Hole::Heap,
        Some("[stack]") => Hole::Stack,
        _ => Hole::Plain,
    };
    maps.iter().map(|m| (m.range, kind(m.path.as_deref()))).collect()
}

/// What all caches are built from.
struct Work<'a, 'm> {
    program: &'a Program<'m>,
    chosen: &'a [Candidate],
    walk: Option<&'a Candidate>,
    files: &'a FxHashMap<usize, FileText>,
    shuffle: Option<u64>,
}

fn one_cache(
    work: &Work<'_, '_>,
    members: &[&Candidate],
    modules: &[usize],
    built: &mut Built,
) -> Result<(), Error> {
    let &Work { program, chosen, walk, files, shuffle } = work;
    let order = function_order(members, shuffle);
    let members: Vec<&Candidate> = order.into_iter().map(|i| members[i]).collect();
    let images = program.image().modules();
    let near: Vec<AvmaRange> = modules.iter().map(|&i| images[i].extent).collect();
    // A non-PIE program reaches its tables by absolute 32-bit addresses.
    let low = modules.iter().any(|&i| !images[i].pie && images[i].kind == ModuleKind::Main);

    let windows: Vec<Result<EntryWindow, Refusal>> = members
        .iter()
        .map(|c| redirects::window(program, c.id, &c.analysed.cfg, file_bytes(program, c, files).as_deref()))
        .collect();
    let (out, text_at, data_at, reserved) = emit_somewhere(
        &Parts {
            members: &members,
            windows: &windows,
            stubs: &program.stubs(modules),
            constant: &|at| program.constant_function(at),
        },
        &near,
        low,
        &built.holes,
    )?;

    let by_entry: FxHashMap<Avma, (&Candidate, &Result<EntryWindow, Refusal>)> =
        members.iter().zip(&windows).map(|(c, w)| (c.analysed.cfg.entry, (*c, w))).collect();
    let is_walk = |c: &Candidate| walk.is_some_and(|w| w.id == c.id);
    for (entry, reason) in &out.refused {
        if let Some((c, _)) = by_entry.get(entry).filter(|(c, _)| !is_walk(c)) {
            built.refused.push((c.id, *reason));
            built.entry_only.push(false);
        }
    }
    let mut records = Vec::new();
    let mut entries: FxHashMap<Avma, Avma> = FxHashMap::default();
    for clone in &out.clones {
        let Some((c, window)) = by_entry.get(&clone.original) else { continue };
        if is_walk(c) {
            built.walk = Some(((*window).clone(), clone.entry));
            continue;
        }
        entries.insert(clone.original, clone.entry);
        built.cloned.push((c.id, clone.fragments().clone()));
        let record = match window {
            Ok(window) => redirects::entry(program, c.id, window, clone).ok_or(Refusal::OutOfReach),
            Err(reason) => Err(*reason),
        };
        match record {
            Ok(record) => records.push(record),
            Err(reason) => {
                built.refused.push((c.id, reason));
                built.entry_only.push(true);
            }
        }
    }
    records.sort_by_key(|r| r.at);
    let taken: Vec<AvmaRange> = records.iter().map(splice::Record::range).collect();
    records.extend(redirects::calls(program, chosen, &entries, &taken));
    records.extend(redirects::words(program, &entries));

    if images.get(modules[0]).is_some_and(|m| m.kind == ModuleKind::Main) {
        built.main_cache = Some(built.caches.len());
    }
    built.code_bytes += out.text.len() as u64;
    let maps = map_store::write(&out.clones);
    let plan = CachePlan {
        text_at,
        text: out.text,
        data_at,
        blob: out.data,
        eh_frame_hdr: out.eh_frame_hdr,
        records,
        map: maps,
        notes: Vec::new(),
    };
    built.holes.push((reserved, Hole::Plain));
    built.holes.sort_by_key(|(r, _)| r.start);
    built.caches.push(plan);
    Ok(())
}

/// How often place and size are fitted to each other.
const FITTINGS: usize = 8;
/// What a jump behind the clones meets: `int3`.
const GAP: u8 = 0xcc;

/// Emits at a place near the modules; the clones, where their text and data go, and what to keep free for them.
///
/// Where clones lie decides what they reach (a table, a far function), which decides what is cloned, which decides how
/// much room to seek. Rule: seek room for the largest that was made so far, until what is made there fits; fill the rest.
fn emit_somewhere(
    parts: &Parts<'_>,
    near: &[AvmaRange],
    low: bool,
    holes: &[(AvmaRange, Hole)],
) -> Result<(Output, Avma, Avma, AvmaRange), Error> {
    let guess = near.first().map_or(Avma(0), |r| r.start.align_down(2 << 20));
    let mut out = emit_at(parts, guess, guess.add(64 << 20))?;
    let (mut text_len, mut data_len) = (0, 0);
    for _ in 0..FITTINGS {
        text_len = text_len.max(CachePlan::text_len(out.text.len() as u64));
        data_len = data_len.max((out.data.len() as u64).saturating_mul(2) + (1 << 20));
        let len = text_len + data_len + parts.members.len() as u64 * 4096;
        let text_at = splice::place(&splice::Request { mappings: holes, near, len, low })
            .map_err(splice::Error::from)?;
        let data_at = text_at.add(text_len);
        out = emit_at(parts, text_at, data_at.add(BLOB_OFFSET))?;
        let got = CachePlan::text_len(out.text.len() as u64);
        if got <= text_len {
            if got < text_len {
                out.text.resize(usize::try_from(text_len).unwrap_or(usize::MAX), GAP);
            }
            return Ok((out, text_at, data_at, AvmaRange::with_len(text_at, len)));
        }
    }
    Err(Error::Build("the size of the clones depends on their address".to_owned()))
}

/// The file's bytes of a function from its entry on.
fn file_bytes(program: &Program<'_>, c: &Candidate, files: &FxHashMap<usize, FileText>) -> Option<Vec<u8>> {
    let file = files.get(&program.module(c.id).in_image)?;
    file.bytes(*program.extent(c.id).parts.first()?)
}

/// What one cache is made of.
struct Parts<'a> {
    members: &'a [&'a Candidate],
    windows: &'a [Result<EntryWindow, Refusal>],
    stubs: &'a Stubs,
    /// Where a word leads that never changes.
    constant: &'a dyn Fn(Avma) -> Option<Avma>,
}

fn emit_at(
    &Parts { members, windows, stubs, constant }: &Parts<'_>,
    text_at: Avma,
    data_at: Avma,
) -> Result<Output, Error> {
    let bodies: FxHashMap<Avma, &Cfg> =
        members.iter().map(|c| (c.analysed.cfg.entry, &c.analysed.cfg)).collect();
    let functions = members
        .iter()
        .zip(windows)
        .map(|(c, window)| Function {
            window: window.as_ref().ok().map(EntryWindow::range),
            cfg: &c.analysed.cfg,
            order: c.order.clone(),
            hot: c.hot,
            align_blocks: Vec::new(),
            counters: c.counters.clone(),
            watches: c.watches.clone(),
            shortcuts: shortcuts(c, &bodies),
            rows: &c.analysed.rows,
            lsda: c.analysed.lsda.as_ref(),
            personality: c.analysed.personality,
            signal_frame: c.analysed.signal_frame,
            // The denser the fewer lines: measured, entries gain nothing from alignment.
            align: 1,
        })
        .collect();
    emit::emit(&Request { text_at, data_at, functions, known: &|_| None, stubs, constant })
        .map_err(|e| Error::Build(e.to_string()))
}

/// Those of a function whose callees lie in reach of the cache.
fn shortcuts<'a>(c: &Candidate, bodies: &FxHashMap<Avma, &'a Cfg>) -> Vec<Shortcut<'a>> {
    let near = |s: &crate::shortcuts::Shortcut| {
        let body = *bodies.get(&s.callee)?;
        let crate::shortcuts::Shortcut { call, callee, in_place, guard } = *s;
        Some(Shortcut { call, callee, body: in_place.then_some(body), guard })
    };
    c.shortcuts.iter().filter_map(near).collect()
}
