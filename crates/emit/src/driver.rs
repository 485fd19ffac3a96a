//! Turns a request into an output. Functions that do not fit are left out, and the rest is placed again.
//!
//! The state problem is circular. Whether a clone fits depends on its address. Only clones that fit
//! are made. The addresses and call targets of all other clones depend on what is cloned. Rule: lay out
//! everything; remove each function that failed, or stop cloning the table that was out of reach; if anything
//! was removed, start again. Each round removes at least one thing, so the loop ends. Nothing fails in the
//! last round, so its output never refers to a missing clone.

use crate::encode::{Clones, Encoded, Entrance, Misfit, encode};
use crate::frames::FragmentFrame;
use crate::items::{Kind, Op, Plan, Zone};
use crate::map::AddressMap;
use crate::plan::plan;
use crate::relax::relax;
use crate::request::{CloneInfo, Error, Function, Output, Request, Stats, Stubs};
use crate::verify_inline::wrong_rests;
use crate::{Fragments, frames, verify, zones};
use addr::{Addr, Avma, AvmaRange};
use code::{BlockId, Refusal, TableId};
use rustc_hash::{FxHashMap, FxHashSet};
use unwind::{CloneFrame, write_frames};

/// Tables, exception tables and unwind tables start at multiples of this. Bytes.
const DATA_ALIGN: usize = 8;

/// Makes the clones of a request.
///
/// # Errors
/// [`Error`] if the request contradicts itself or text and data are too far apart. A problem of one function
/// is a refusal in the output instead.
pub fn emit(request: &Request<'_>) -> Result<Output, Error> {
    emit_while(request, &|_| true)
}

/// A stage of [`emit_while`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Chooses the instructions of a clone.
    Plan,
    /// Encodes a clone at its address.
    Encode,
    /// Proves a clone.
    Verify,
    /// Joins all clones, and writes their unwind tables.
    Join,
}

/// Works like [`emit`], but calls `goes_on` before each stage of each function, and stops when it returns
/// false. A large program takes minutes.
///
/// # Errors
/// The errors of [`emit`], and [`Error::BrokenOff`] if `goes_on` returned false.
pub fn emit_while(request: &Request<'_>, goes_on: &dyn Fn(Stage) -> bool) -> Result<Output, Error> {
    let go_on = |stage| if goes_on(stage) { Ok(()) } else { Err(Error::BrokenOff) };
    check(request)?;
    let mut refused = Vec::new();
    let mut jobs = Vec::with_capacity(request.functions.len());
    for f in &request.functions {
        go_on(Stage::Plan)?;
        match Job::new(f.clone(), Vec::new(), request.stubs) {
            Ok(job) => jobs.push(job),
            Err(why) => refused.push((f.cfg.entry, why)),
        }
    }
    loop {
        let (round, placed) = Round::new(request, jobs)?;
        let mut parts = Vec::with_capacity(placed.len());
        let mut misfits: FxHashMap<Avma, Misfit> = FxHashMap::default();
        for p in &placed {
            go_on(Stage::Encode)?;
            match round.part(p) {
                Ok(part) => parts.push(part),
                Err(misfit) => drop(misfits.insert(p.job.f.cfg.entry, misfit)),
            }
        }
        // Clones that will be placed again are proven then.
        if misfits.is_empty() {
            for part in &parts {
                go_on(Stage::Verify)?;
                if let Err(why) = round.verify(part) {
                    misfits.insert(part.job.f.cfg.entry, Misfit::Refused(why));
                }
            }
        }
        if misfits.is_empty() {
            go_on(Stage::Join)?;
            match round.finish(parts)? {
                Finished::Output(mut out) => {
                    refused.sort_unstable_by_key(|r| r.0);
                    out.refused = refused;
                    return Ok(*out);
                }
                Finished::Refused(bad, why) => {
                    misfits.extend(bad.into_iter().map(|at| (at, Misfit::Refused(why))));
                }
            }
        }
        jobs = Vec::with_capacity(placed.len());
        for PlacedJob { job, .. } in placed {
            let entry = job.f.cfg.entry;
            let job = match misfits.get(&entry) {
                None => Ok(job),
                Some(&Misfit::Table(t)) => job.without_table(t, request.stubs),
                Some(&Misfit::Refused(why)) => Err(why),
            };
            match job {
                Ok(job) => jobs.push(job),
                Err(why) => refused.push((entry, why)),
            }
        }
    }
}

/// Checks the caller's side of the contract.
fn check(request: &Request<'_>) -> Result<(), Error> {
    let mut entries = FxHashSet::default();
    for f in &request.functions {
        let entry = f.cfg.entry;
        let mut seen = vec![false; f.cfg.blocks.len()];
        let fresh = |b: &BlockId| seen.get_mut(b.index()).is_some_and(|s| !std::mem::replace(s, true));
        let starts = f.order.first().is_some_and(|b| b.0 == 0);
        if !starts || !entries.insert(entry) || !f.order.iter().all(fresh) {
            return Err(Error::BadOrder { entry });
        }
    }
    let data_at = request.data_at;
    if data_at.align_down(DATA_ALIGN as u64) == data_at { Ok(()) } else { Err(Error::Misaligned { data_at }) }
}

/// One function in progress.
struct Job<'a> {
    f: Function<'a>,
    plan: Plan,
    /// Tables that are out of reach of the data, so the clone reads the original tables.
    original_tables: Vec<TableId>,
}

impl<'a> Job<'a> {
    fn new(f: Function<'a>, original_tables: Vec<TableId>, stubs: &Stubs) -> Result<Self, Refusal> {
        let mut plan = plan(&f, &original_tables, stubs)?;
        relax(&mut plan)?;
        Ok(Self { f, plan, original_tables })
    }

    fn without_table(mut self, table: TableId, stubs: &Stubs) -> Result<Self, Refusal> {
        self.original_tables.push(table);
        Self::new(self.f, self.original_tables, stubs)
    }

    /// Returns the zones of the fragments with their sizes.
    fn fragments(&self) -> Vec<zones::Piece> {
        let fragments = &self.plan.fragments;
        let start = |i: usize| fragments.get(i).map_or(self.plan.text_len(), |f| self.plan.position(f.first));
        fragments.iter().enumerate().map(|(i, f)| (f.zone, start(i + 1) - start(i))).collect()
    }
}

/// A job with its addresses.
struct PlacedJob<'a> {
    job: Job<'a>,
    fragments: Vec<AvmaRange>,
    data_at: Avma,
}

/// One attempt: what all jobs with addresses have in common.
struct Round<'a> {
    request: &'a Request<'a>,
    /// Bytes of the text, and of tables and constants.
    text_len: usize,
    data_len: usize,
    clones: Clones<'a>,
}

/// A clone that fits at its address, not yet proven.
struct Part<'p> {
    job: &'p Job<'p>,
    clone: Encoded,
    map: AddressMap,
    frames: Vec<FragmentFrame>,
}

enum Finished {
    Output(Box<Output>),
    /// Entries of originals that must not be cloned.
    Refused(Vec<Avma>, Refusal),
}

impl<'a> Round<'a> {
    /// Gives all jobs their addresses.
    fn new<'j>(request: &'a Request<'a>, jobs: Vec<Job<'j>>) -> Result<(Self, Vec<PlacedJob<'j>>), Error> {
        let too_far = Error::TooFarApart { text_at: request.text_at, data_at: request.data_at };
        let sizes: Vec<Vec<zones::Piece>> = jobs.iter().map(Job::fragments).collect();
        let (fragments, text_len) = zones::place(request.text_at, &sizes);
        let text_len = usize::try_from(text_len).unwrap_or(usize::MAX);
        let mut data_len = 0;
        let mut placed = Vec::with_capacity(jobs.len());
        let mut here = FxHashMap::with_capacity_and_hasher(jobs.len(), rustc_hash::FxBuildHasher);
        for (job, fragments) in jobs.into_iter().zip(fragments) {
            let f = &job.f;
            here.extend(fragments.first().map(|first| (f.cfg.entry, Entrance::of(f, first.start))));
            let data_at = request.data_at.add(data_len as u64);
            data_len += job.plan.data_len();
            placed.push(PlacedJob { job, fragments, data_at });
        }
        let rests = rests(&placed);
        // No table or clone may be out of reach of the first. The unwind tables are checked once they exist.
        if text_len.max(data_len) > 1 << 30 {
            return Err(too_far);
        }
        let Request { stubs, constant, .. } = *request;
        let clones = Clones { here, rests, stubs, constant };
        Ok((Self { request, text_len, data_len, clones }, placed))
    }

    fn part<'p>(&self, placed: &'p PlacedJob<'p>) -> Result<Part<'p>, Misfit> {
        let PlacedJob { job, fragments, data_at } = placed;
        let fragments = Fragments::new(fragments).ok_or(Refusal::RoundTrip)?;
        let clone = encode(&job.f, &job.plan, fragments, *data_at, &self.clones)?;
        // INVARIANT(one-to-one)
        let map = AddressMap::new(clone.fragments.clone(), clone.entries()).ok_or(Refusal::RoundTrip)?;
        let frames = frames::frames(&job.f, &clone)?;
        Ok(Part { job, clone, map, frames })
    }

    fn verify(&self, Part { job, clone, map, .. }: &Part<'_>) -> Result<(), Refusal> {
        verify::verify(&job.f, &job.plan, clone, map, &self.clones)
    }

    fn finish(&self, parts: Vec<Part<'_>>) -> Result<Finished, Error> {
        let Request { text_at, data_at, .. } = *self.request;
        let wrong = wrong_rests(&self.clones.rests, parts.iter().map(|p| &p.map));
        let calls_wrong = |p: &&Part<'_>| p.job.plan.rests.iter().any(|to| wrong.contains(to));
        let refused: Vec<Avma> = parts.iter().filter(calls_wrong).map(|p| p.job.f.cfg.entry).collect();
        if !refused.is_empty() {
            return Ok(Finished::Refused(refused, Refusal::RoundTrip));
        }
        let text = self.text(&parts);
        let gs_sites = gs_sites(&parts, text_at);
        let mut data = Vec::with_capacity(self.data_len);
        let mut stats = Stats::default();
        for part in &parts {
            data.extend(&part.clone.data);
            count(&mut stats, part);
        }
        let (clones, cfis) = clones_and_frames(parts, data_at, &mut data);
        // The index comes before the table because its size is known: 12 bytes, and 8 for each fragment.
        let eh_frame_hdr = data_at.add(data.len() as u64);
        let hdr_len = (12 + 8 * cfis.len()).next_multiple_of(DATA_ALIGN);
        let frame_at = eh_frame_hdr.add(hdr_len as u64);
        let frames = match write_frames(&cfis, frame_at, eh_frame_hdr) {
            Ok(frames) => frames,
            Err(unwind::Error::TooFar { .. }) => return Err(Error::TooFarApart { text_at, data_at }),
            Err(e) => {
                let bad =
                    |f: &&CloneFrame| write_frames(std::slice::from_ref(*f), frame_at, eh_frame_hdr).is_err();
                let bad: Vec<Avma> = cfis.iter().filter(bad).map(|f| f.range.start).collect();
                if bad.is_empty() {
                    return Err(Error::Frames(e));
                }
                let refused = clones.iter().filter(|c| bad.iter().any(|&at| c.fragments().contains(at)));
                return Ok(Finished::Refused(refused.map(|c| c.original).collect(), Refusal::OddUnwindInfo));
            }
        };
        data.extend(&frames.hdr);
        data.resize(data.len().next_multiple_of(DATA_ALIGN), 0);
        let eh_frame = AvmaRange::with_len(data_at.add(data.len() as u64), frames.eh_frame.len() as u64);
        data.extend(&frames.eh_frame);
        assert_eq!(eh_frame.start, frame_at, "an .eh_frame_hdr has 12 bytes and 8 for each frame");
        if !are_near((text_at, text.len()), (data_at, data.len())) {
            return Err(Error::TooFarApart { text_at, data_at });
        }
        let refused = Vec::new();
        let output = Output { text, data, gs_sites, eh_frame_hdr, eh_frame, clones, refused, stats };
        Ok(Finished::Output(Box::new(output)))
    }

    /// Returns the text: the fragments of all clones, which lie one behind the other.
    fn text(&self, parts: &[Part<'_>]) -> Vec<u8> {
        let mut fragments: Vec<_> = parts.iter().filter_map(|p| p.clone.fragments()).flatten().collect();
        fragments.sort_unstable_by_key(|f| f.range.start);
        let mut text = Vec::with_capacity(self.text_len);
        for f in fragments {
            let end = self.request.text_at.add(text.len() as u64);
            assert_eq!(f.range.start, end, "each fragment lies at the end of the one before");
            text.extend(f.bytes);
        }
        text
    }
}

/// Returns the clone addresses of the blocks from which other clones call the rest of a function.
fn rests(placed: &[PlacedJob<'_>]) -> FxHashMap<Avma, Avma> {
    let wanted: FxHashSet<Avma> = placed.iter().flat_map(|p| p.job.plan.rests.iter().copied()).collect();
    let mut rests = FxHashMap::default();
    for PlacedJob { job, fragments, .. } in placed {
        let Some(fragments) = Fragments::new(fragments) else { continue };
        let starts = job.plan.blocks.iter().map(|b| (job.f.cfg.blocks[b.id.index()].range.start, b.first));
        for (original, item) in starts.filter(|(original, _)| wanted.contains(original)) {
            rests.insert(original, fragments.address(job.plan.position(item)));
        }
    }
    rests
}

/// Returns the offsets in the text of instructions that access the memory of counters, rising.
fn gs_sites(parts: &[Part<'_>], text_at: Avma) -> Vec<u32> {
    let touches = |kind: Kind| matches!(kind, Kind::Count { step, .. } if crate::count::touches_memory(step));
    let mut sites = Vec::new();
    for Part { job, clone, .. } in parts {
        let touching = job.plan.items.iter().filter(|item| touches(item.kind));
        let at = touching.map(|item| clone.fragments.address(item.at));
        sites.extend(at.filter_map(|at| u32::try_from(at.since(text_at)?).ok()));
    }
    sites.sort_unstable();
    sites
}

/// Returns the clones, and the frames of their fragments. Appends the exception tables to the data at
/// `data_at`.
fn clones_and_frames(
    parts: Vec<Part<'_>>,
    data_at: Avma,
    data: &mut Vec<u8>,
) -> (Vec<CloneInfo>, Vec<CloneFrame>) {
    let (mut clones, mut frames) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
    for part in parts {
        let Function { cfg, personality, signal_frame, .. } = part.job.f;
        for FragmentFrame { range, rows, lsda } in part.frames {
            let lsda = lsda.map(|bytes| {
                let at = data_at.add(data.len() as u64);
                data.extend(bytes);
                data.resize(data.len().next_multiple_of(DATA_ALIGN), 0);
                at
            });
            frames.push(CloneFrame { range, rows, personality, lsda, signal_frame });
        }
        let entry = part.clone.fragments.start();
        let entrances = part.clone.entrances;
        clones.push(CloneInfo { original: cfg.entry, entry, map: part.map, entrances });
    }
    (clones, frames)
}

/// Returns whether every place of a text reaches every place of its data, both given by address and size.
///
/// INVARIANT(reach): every distance between text and data is at most the distance between two of their ends.
fn are_near(text: (Avma, usize), data: (Avma, usize)) -> bool {
    let ends = |(at, len): (Avma, usize)| [at, at.add(len as u64)];
    ends(text).iter().all(|t| ends(data).iter().all(|d| i32::try_from(t.distance(*d)).is_ok()))
}

fn count(stats: &mut Stats, part: &Part<'_>) {
    let job = part.job;
    for (id, item) in job.plan.numbered_items() {
        match item.kind {
            Kind::Dropped => stats.dropped_jumps += 1,
            Kind::Inlined => stats.inlined += 1,
            Kind::Branch { op: Op::Jump, .. } if item.inst.is_none() => stats.inserted_jumps += 1,
            _ => {}
        }
        stats.instructions += u64::from(item.inst.is_some() && !job.plan.is_again(id));
    }
    stats.inverted += u64::from(job.plan.inverted);
    stats.unrolled += job.plan.again.len() as u64;
    stats.original_bytes += job.f.order.iter().map(|b| job.f.cfg.blocks[b.index()].range.len()).sum::<u64>();
    let fragments = job.plan.fragments.iter().zip(part.clone.fragments.ranges());
    for (fragment, range) in fragments {
        stats.clone_bytes += range.len();
        stats.warm_bytes += if fragment.zone == Zone::Warm { range.len() } else { 0 };
    }
    stats.tables += job.plan.tables.len() as u64;
    stats.tables_out_of_reach += job.original_tables.len() as u64;
}
