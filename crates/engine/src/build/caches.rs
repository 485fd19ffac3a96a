//! From chosen functions to code caches: order, place, emit, redirect. The target is not touched here.

use crate::analyse::program::{Analysed, FuncId, Program};
use crate::base::passes::{Pass, Style};
use crate::base::phases::Spans;
use crate::build::clones::Clones;
use crate::build::map_store;
use crate::build::reach_group;
use crate::build::redirects::{self, Words};
use crate::build::stages::StageClock;
use crate::plan::function_order::function_order;
use crate::plan::laid_out::{self, LaidOut, Layout, ToClone};
use crate::{Error, Interrupt};
use addr::{Addr, Avma, AvmaRange};
use code::Refusal;
use emit::{Body, Fragments, Function, InlineSite, Output, Request, Stubs};
use image::{ModuleId, ModuleKind};
use rustc_hash::FxHashMap;
use splice::{BLOB_OFFSET, CachePlan, Limit, Record};

/// A generation that is ready to be installed, with facts about it.
#[derive(Debug, Default)]
pub struct Built {
    /// Its caches.
    pub caches: Vec<BuiltCache>,
    /// The functions that were cloned, with their clones.
    pub cloned: Vec<(FuncId, Fragments)>,
    /// Functions that were not cloned after all.
    pub refused: Vec<(FuncId, Refusal)>,
    /// Cloned functions whose entries could not be redirected.
    pub entries_refused: Vec<(FuncId, Refusal)>,
    /// Bytes of clones.
    pub code_bytes: u64,
    /// The limits of the free address space, with the caches' own ranges among them.
    pub limits: Vec<(AvmaRange, Limit)>,
}

/// A cache that is ready to be installed.
#[derive(Debug)]
pub struct BuiltCache {
    /// Its bytes and redirects.
    pub plan: CachePlan,
    /// The free range in which it was placed.
    pub room: AvmaRange,
    /// True if it has the clones of the program itself.
    pub is_main: bool,
}

impl Built {
    /// Returns whether each cache, with later additions, still lies in the range that was free.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.caches.iter().all(|cache| fits(&cache.plan, 0, cache.room))
    }

    /// Returns all reasons: for functions, and for entries alone.
    pub fn reasons(&self) -> impl Iterator<Item = (FuncId, Refusal)> {
        self.refused.iter().chain(&self.entries_refused).copied()
    }

    fn take(&mut self, made: Made, is_main: bool) {
        self.code_bytes += made.plan.text.len() as u64;
        self.cloned.extend(made.cloned);
        self.refused.extend(made.refused);
        self.entries_refused.extend(made.entries_refused);
        self.limits.push((made.room, Limit::Plain));
        self.limits.sort_by_key(|(r, _)| r.start);
        self.caches.push(BuiltCache { plan: made.plan, room: made.room, is_main });
    }
}

/// One cache and facts about it; see [`Built`].
struct Made {
    plan: CachePlan,
    room: AvmaRange,
    cloned: Vec<(FuncId, Fragments)>,
    refused: Vec<(FuncId, Refusal)>,
    entries_refused: Vec<(FuncId, Refusal)>,
}

/// Returns whether a cache and `more` bytes of data fit into a range.
fn fits(cache: &CachePlan, more: u64, room: AvmaRange) -> bool {
    cache.data_at.add(cache.data_len() + more) <= room.end
}

/// The limits of a build.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// Bytes to reserve for notes in the first cache.
    pub notes: u64,
    /// Bytes to reserve before the clones of each cache.
    pub head: u64,
    /// Ends the build early.
    pub interrupt: &'a Interrupt,
    /// Gets the time of each stage.
    pub(crate) spans: &'a Spans,
}

/// Builds all caches between the `limits` of the free address space. Direct calls in the originals of the
/// functions and of `callers` lead to clones.
///
/// # Errors
/// Returns [`Error::Splice`] if there is no room near a module, [`Error::Build`] if the clones could not be
/// built, and the errors of [`Interrupt::check`].
pub fn build(
    program: &Program<'_>,
    clones: Clones<'_>,
    limits: Vec<(AvmaRange, Limit)>,
    style: Style,
    bounds: &Bounds<'_>,
) -> Result<Built, Error> {
    let mut built = Built { limits, ..Built::default() };
    for modules in &groups(program) {
        let is_member = |c: &ToClone<'_>| modules.contains(&c.measured().id.module);
        let members: Vec<ToClone<'_>> = clones.all().filter(is_member).collect();
        if members.is_empty() {
            continue;
        }
        let work = Work { program, clones, style, limits: &built.limits, bounds };
        let more = if built.caches.is_empty() { bounds.notes } else { 0 };
        let mut made = one_cache(&work, &members, modules, more)?;
        // The size of the data beside clones and tables is known only once they are built.
        if !fits(&made.plan, more, made.room) {
            made = one_cache(&work, &members, modules, made.plan.data_len() + more)?;
            if !fits(&made.plan, more, made.room) {
                return Err(Error::Build("the size of a cache depends on its address".to_owned()));
            }
        }
        let first = program.image().module(modules[0]);
        built.take(made, first.kind == ModuleKind::Main);
    }
    Ok(built)
}

/// Returns the modules by reach group; only modules that may be optimized count.
fn groups(program: &Program<'_>) -> Vec<Vec<ModuleId>> {
    let usable: Vec<ModuleId> =
        program.modules().iter().filter(|m| m.refused.is_none()).map(|m| m.id).collect();
    let extents: Vec<AvmaRange> = usable.iter().map(|&id| program.image().module(id).extent).collect();
    reach_group::group(&extents).into_iter().map(|g| g.into_iter().map(|i| usable[i]).collect()).collect()
}

/// The input of all caches.
struct Work<'a, 'm> {
    program: &'a Program<'m>,
    clones: Clones<'a>,
    style: Style,
    limits: &'a [(AvmaRange, Limit)],
    bounds: &'a Bounds<'a>,
}

/// Builds a cache with room for `more` bytes of data beside the usual amount.
fn one_cache(
    work: &Work<'_, '_>,
    members: &[ToClone<'_>],
    modules: &[ModuleId],
    more: u64,
) -> Result<Made, Error> {
    let &Work { program, style, limits, bounds, .. } = work;
    let head = bounds.head;
    let members = function_order(members.to_vec(), style);
    let images = || modules.iter().map(|&id| program.image().module(id));
    let near: Vec<AvmaRange> = images().map(|m| m.extent).collect();
    // A non-PIE program reaches its tables by absolute 32-bit addresses.
    let low = images().any(|m| !m.pie && m.kind == ModuleKind::Main);

    let stubs = if style.passes.has(Pass::Stubs) { program.stubs(modules) } else { Stubs::default() };
    let (mut out, text_at, data_at, room) = emit_somewhere(
        &Parts { members: &members, stubs: &stubs, constant: &|at| program.constant_function(at), bounds },
        &near,
        low,
        limits,
        more,
    )?;

    let by_entry: FxHashMap<Avma, ToClone<'_>> =
        members.iter().map(|c| (c.measured().analysed.cfg.entry, *c)).collect();
    let id = |entry: &Avma| by_entry.get(entry).map(|c| c.measured().id);
    let refused = out.refused.iter().filter_map(|(entry, why)| Some((id(entry)?, *why))).collect();
    let (mut cloned, mut entries_refused) = (Vec::new(), Vec::new());
    let mut records = Vec::new();
    let mut words = Words::behind(data_at.add(BLOB_OFFSET + out.data.len() as u64));
    let mut entries: FxHashMap<Avma, Avma> = FxHashMap::default();
    for clone in &out.clones {
        let Some(c) = by_entry.get(&clone.original) else { continue };
        entries.insert(clone.original, clone.entry);
        let f = c.measured();
        cloned.push((f.id, clone.fragments().clone()));
        match redirects::entries(&f.analysed.cfg, &c.layout().sites, clone, &mut words) {
            Ok(entries) => records.extend(entries),
            Err(reason) => entries_refused.push((f.id, reason)),
        }
    }
    out.data.extend(words.into_bytes());
    let records = with_calls(work, records, &entries);
    let maps = map_store::write(&out.clones);
    let notes = counter_notes(&members, &out);
    let plan = CachePlan {
        text_at,
        text: std::iter::repeat_n(GAP, usize::try_from(head).unwrap_or(0)).chain(out.text).collect(),
        data_at,
        blob: out.data,
        eh_frame_hdr: out.eh_frame_hdr,
        eh_frame: out.eh_frame,
        file: None,
        records,
        map: maps,
        notes,
    };
    Ok(Made { plan, room, cloned, refused, entries_refused })
}

/// Returns the list by which counting ends; empty for clones without counters.
fn counter_notes(members: &[ToClone<'_>], out: &Output) -> Vec<u8> {
    let counts =
        |c: &ToClone<'_>| matches!(c, ToClone::ToCount(c) if !c.counters.is_empty() || !c.watches.is_empty());
    match members.iter().any(counts) {
        true => splice::CounterSites::new(&out.gs_sites, &out.text).write(),
        false => Vec::new(),
    }
}

/// Adds the redirects of calls and words to those of entries, and drops redirects that may outlive their
/// destinations.
fn with_calls(work: &Work<'_, '_>, mut records: Vec<Record>, entries: &FxHashMap<Avma, Avma>) -> Vec<Record> {
    let &Work { program, clones, style, .. } = work;
    records.sort_by_key(|r| r.at);
    let taken: Vec<AvmaRange> = records.iter().map(Record::range).collect();
    if style.passes.has(Pass::Calls) {
        records.extend(redirects::calls(clones.callers(), entries, &taken));
    }
    if style.passes.has(Pass::Tables) {
        records.extend(redirects::words(program, entries));
    }
    redirects::lasting(program, entries, records)
}

/// How often place and size are adjusted to each other.
const FITTINGS: usize = 8;
/// The byte that fills the text behind the clones: `int3`.
const GAP: u8 = 0xcc;

/// Emits at a place near the modules. Returns the output, the addresses of text and data, and the range to
/// keep free.
///
/// Which tables and far functions clones reach depends on their address. Which clones can be made depends on
/// their reach, and so does the room to search for. Rule: seek room for the largest output so far, until the
/// output there fits; fill the rest. Data gets twice the size of the tables plus 1 MiB plus `more` bytes, for
/// the journal, the address map and the like.
fn emit_somewhere(
    parts: &Parts<'_>,
    near: &[AvmaRange],
    low: bool,
    limits: &[(AvmaRange, Limit)],
    more: u64,
) -> Result<(Output, Avma, Avma, AvmaRange), Error> {
    let guess = near.first().map_or(Avma(0), |r| r.start.align_down(2 << 20));
    let mut out = emit_at(parts, guess, guess.add(64 << 20))?;
    let (mut text_len, mut data_len) = (0, 0);
    for _ in 0..FITTINGS {
        text_len = text_len.max(CachePlan::text_len(parts.bounds.head + out.text.len() as u64));
        data_len = data_len.max((out.data.len() as u64).saturating_mul(2) + (1 << 20) + more);
        let len = text_len + data_len + parts.members.len() as u64 * 4096;
        let text_at =
            splice::place(&splice::Request { limits, near, len, low }).map_err(splice::Error::from)?;
        let data_at = text_at.add(text_len);
        out = emit_at(parts, text_at, data_at.add(BLOB_OFFSET))?;
        let got = CachePlan::text_len(parts.bounds.head + out.text.len() as u64);
        if got <= text_len {
            if got < text_len {
                out.text.resize(usize::try_from(text_len - parts.bounds.head).unwrap_or(usize::MAX), GAP);
            }
            return Ok((out, text_at, data_at, AvmaRange::with_len(text_at, len)));
        }
    }
    Err(Error::Build("the size of the clones depends on their address".to_owned()))
}

/// The input of one cache.
struct Parts<'a> {
    members: &'a [ToClone<'a>],
    stubs: &'a Stubs,
    /// The constant destination of a word of memory, if the word can never change.
    constant: &'a dyn Fn(Avma) -> Option<Avma>,
    bounds: &'a Bounds<'a>,
}

fn emit_at(
    &Parts { members, stubs, constant, bounds }: &Parts<'_>,
    text_at: Avma,
    data_at: Avma,
) -> Result<Output, Error> {
    let bodies: FxHashMap<Avma, Option<Body<'_>>> =
        members.iter().map(|c| (c.measured().analysed.cfg.entry, body(*c))).collect();
    let functions = members.iter().map(|c| function(*c, &bodies)).collect();
    let text_at = text_at.add(bounds.head);
    let request = Request { text_at, data_at, functions, stubs, constant };
    let clock = StageClock::start(bounds.spans);
    let goes_on = |stage| {
        clock.begin(stage);
        bounds.interrupt.check().is_ok()
    };
    emit::emit_while(&request, &goes_on).map_err(|e| match (e, bounds.interrupt.check()) {
        (emit::Error::BrokenOff, Err(why)) => why,
        (e, _) => Error::Build(e.to_string()),
    })
}

/// Returns the part of a function that can be inlined for calls of it.
fn body(clone: ToClone<'_>) -> Option<Body<'_>> {
    let ToClone::ToRun(c) = clone else { return None };
    let (cfg, lsda) = (&c.analysed.cfg, c.analysed.lsda.as_ref());
    c.way.as_ref().map(|path| Body { cfg, path, lsda })
}

/// Returns a function as the emitter takes it.
fn function<'a>(clone: ToClone<'a>, bodies: &FxHashMap<Avma, Option<Body<'a>>>) -> Function<'a> {
    let Analysed { cfg, rows, lsda, personality, signal_frame, text: _ } = &clone.measured().analysed;
    let Layout { order, sites, through_redirects } = clone.layout();
    let plain = Function {
        entrances: sites.sites.iter().map(|s| s.leads_to).collect(),
        is_redirected: sites.complete && !sites.sites.is_empty(),
        hot: order.hot().len(),
        through_redirects: through_redirects.clone(),
        lsda: lsda.as_ref(),
        personality: *personality,
        signal_frame: *signal_frame,
        ..Function::new(cfg, order.all().to_vec(), rows)
    };
    match clone {
        ToClone::ToRun(c) => {
            Function { inline_sites: inline_sites(c, bodies), unrolls: c.unrolls.clone(), ..plain }
        }
        ToClone::ToCount(c) => Function { counters: c.counters.clone(), watches: c.watches.clone(), ..plain },
    }
}

/// Returns the inline sites of a function whose callees are within reach of the cache.
fn inline_sites<'a>(c: &LaidOut, bodies: &FxHashMap<Avma, Option<Body<'a>>>) -> Vec<InlineSite<'a>> {
    let near = |s: &laid_out::InlineSite| {
        let body = *bodies.get(&s.callee)?;
        let laid_out::InlineSite { call, callee, inlined, guard } = *s;
        Some(InlineSite { call, callee, body: body.filter(|_| inlined), guard })
    };
    c.inline_sites.iter().filter_map(near).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_fits_its_range_with_all_additions() {
        let plan = CachePlan {
            text_at: Avma(0x20_0000),
            text: vec![GAP; 10],
            data_at: Avma(0x20_1000),
            blob: Vec::new(),
            eh_frame_hdr: Avma(0x20_2000),
            eh_frame: AvmaRange::with_len(Avma(0x20_2000), 0),
            file: None,
            records: Vec::new(),
            map: vec![0; 0x800],
            notes: Vec::new(),
        };
        let room = AvmaRange::new(Avma(0x20_0000), Avma(0x20_3000));
        assert_eq!(plan.data_len(), 0x2000);
        assert!(fits(&plan, 0, room) && !fits(&plan, 1, room));
        let noted = |len| {
            let plan = CachePlan { notes: vec![0; len], ..plan.clone() };
            Built { caches: vec![BuiltCache { plan, room, is_main: true }], ..Built::default() }
        };
        assert!(noted(0x800).fits() && !noted(0x801).fits());
    }
}
