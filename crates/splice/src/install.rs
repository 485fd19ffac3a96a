//! One installation, in an order that makes each of its prefixes harmless.

use crate::anchor::PAGE;
use crate::list::AREAS;
use crate::mapping::{map, nr, prot};
use crate::toggle::{self, Change, Word};
use crate::{
    Anchor, Cache, CodeFile, CounterArea, Error, FindObject, FirstStop, Header, Hook, Installed, MAX_REGIONS,
    Policy, Record, Region, State, ToggleReport, code_file, counters, fault, finishing, huge, journal,
    module_list, quiet,
};
use addr::{Addr, Avma, AvmaRange};
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracee::Process;

/// The offset of a code cache's blob in its data mapping. Before it lie the journal's header and the program
/// headers by which the cache is reported as a module.
pub const BLOB_OFFSET: u64 = 4096;

/// Size of a huge page. Bytes.
pub const HUGE: u64 = 2 << 20;

/// One code cache, ready to be installed.
#[derive(Clone, Debug)]
pub struct CachePlan {
    /// The address of the clones; a multiple of 2 MiB.
    pub text_at: Avma,
    /// The clones' bytes.
    pub text: Vec<u8>,
    /// The address of the data mapping: right after the text mapping (see [`CachePlan::text_len`]).
    pub data_at: Avma,
    /// Jump tables, exception tables, frame tables, made for `data_at + BLOB_OFFSET`.
    pub blob: Vec<u8>,
    /// The `.eh_frame_hdr` in the blob.
    pub eh_frame_hdr: Avma,
    /// The `.eh_frame` in the blob.
    pub eh_frame: AvmaRange,
    /// The file to map the cache from; `None` for anonymous memory.
    pub file: Option<CodeFile>,
    /// The redirects that lead into the cache.
    pub records: Vec<Record>,
    /// The serialised address map.
    pub map: Vec<u8>,
    /// Notes for a later whet.
    pub notes: Vec<u8>,
}

impl CachePlan {
    /// Returns the size of the text mapping for `code_bytes` of clones: whole huge pages if they pay, else
    /// whole pages.
    #[must_use]
    pub fn text_len(code_bytes: u64) -> u64 {
        let unit = if huge_wanted(code_bytes) { HUGE } else { 4096 };
        code_bytes.next_multiple_of(unit).max(unit)
    }

    /// Returns the text mapping.
    #[must_use]
    pub fn text_range(&self) -> AvmaRange {
        AvmaRange::with_len(self.text_at, Self::text_len(self.text.len() as u64))
    }

    /// Returns its entry in the anchor's list.
    fn region(&self) -> Region {
        Region { text: self.text_range(), eh_frame_hdr: self.eh_frame_hdr, journal: self.data_at }
    }

    /// Returns the size of the data mapping.
    #[must_use]
    pub fn data_len(&self) -> u64 {
        self.layout().notes.end.distance(self.data_at).unsigned_abs().next_multiple_of(4096)
    }

    /// Returns the data mapping.
    #[must_use]
    pub fn data_range(&self) -> AvmaRange {
        AvmaRange::with_len(self.data_at, self.data_len())
    }

    /// Returns the `.eh_frame_hdr`: 12 bytes, the last four of which hold the number of its 8-byte entries.
    #[must_use]
    pub fn index(&self) -> AvmaRange {
        let from =
            self.eh_frame_hdr.since(self.data_at.add(BLOB_OFFSET)).and_then(|o| usize::try_from(o).ok());
        let count = from.and_then(|o| self.blob.get(o.checked_add(8)?..)?.first_chunk());
        AvmaRange::with_len(
            self.eh_frame_hdr,
            12 + 8 * u64::from(count.map_or(0, |c| u32::from_le_bytes(*c))),
        )
    }

    fn layout(&self) -> Tables {
        let after = |prev: AvmaRange, len: usize| {
            AvmaRange::with_len(Avma(prev.end.0.next_multiple_of(16)), len as u64)
        };
        let blob = AvmaRange::with_len(self.data_at.add(BLOB_OFFSET), self.blob.len() as u64);
        let records = after(blob, self.records.len() * journal::RECORD_LEN);
        let map = after(records, self.map.len());
        let notes = after(map, self.notes.len());
        Tables { blob, records, map, notes }
    }
}

struct Tables {
    blob: AvmaRange,
    records: AvmaRange,
    map: AvmaRange,
    notes: AvmaRange,
}

/// Returns whether `code_bytes` of code are worth a huge page. Below a thirty-second of a huge page (16 small
/// pages) the memory costs more than the ITLB entries.
#[must_use]
pub fn huge_wanted(code_bytes: u64) -> bool {
    code_bytes >= HUGE / 32
}

/// A generation, ready to be installed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its code caches.
    pub caches: Vec<CachePlan>,
    /// The unwinder's lookup, if it calls `_dl_find_object`.
    pub lookup: Option<FindObject>,
    /// The redirects for unwinders that iterate over modules, if there are any, with all records of earlier
    /// generations in their order.
    pub hook: Option<Hook>,
    /// The address of a new anchor's two pages, or, if the target has an anchor, of a further page of its
    /// list.
    pub anchor_at: Avma,
    /// For clones that only count: the offsets of their counters in each thread's part.
    pub counters: Option<Range<u32>>,
    /// Whether its code goes to huge pages, if the kernel gives any.
    pub huge: bool,
}

impl Plan {
    fn first_stop(&self) -> FirstStop<'_> {
        FirstStop { anchor_at: self.anchor_at, lookup: self.lookup, hook: self.hook.as_ref() }
    }

    /// Returns how many entries of the anchor's list it needs at most.
    fn regions(&self) -> usize {
        self.caches.len() + AREAS
    }

    /// Checks that the anchor's list has room, and that each redirect lies in one page.
    fn check(&self, known: Option<&Anchor>) -> Result<(), Error> {
        if self.regions() > known.map_or(MAX_REGIONS - 1, Anchor::room).min(MAX_REGIONS) {
            return Err(Error::TooManyCaches(known.map_or(1, |anchor| anchor.regions.len())));
        }
        let hooks = self.hook.iter().flat_map(|h| &h.records);
        match self.caches.iter().flat_map(|c| &c.records).chain(hooks).find(|r| !r.in_one_page()) {
            Some(r) => Err(Error::UnsoundRedirect(r.at)),
            None => Ok(()),
        }
    }

    /// Returns the caches whose code goes to huge pages, if the kernel gives any.
    fn huge_caches(&self) -> Vec<&CachePlan> {
        self.caches.iter().filter(|c| self.huge && huge_wanted(c.text.len() as u64)).collect()
    }
}

/// The result of an installation.
#[derive(Clone, Debug)]
pub struct InstallReport {
    /// The generation's number.
    pub generation: u32,
    /// The redirects written, and the times for which all threads were stopped.
    pub toggle: ToggleReport,
    /// The longest stop of one thread, to make the mappings or to change the setting of huge pages. It is
    /// also one of the stops in `toggle`: in a program with one thread it stops everything.
    pub map_stop: Duration,
    /// The memory in which its clones count.
    pub counters: Option<CounterArea>,
    /// If its caches were to be mapped from files: the reason why they are not, if there is one. The caches
    /// are in anonymous memory then.
    pub not_from_files: Option<String>,
    /// The time of each part.
    pub times: InstallTimes,
}

/// How long the parts of an installation took, from the first call to the last. Waits included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InstallTimes {
    /// Mapping of the caches, with the counters' memory.
    pub mapping: Duration,
    /// Writing of clones, tables and journal.
    pub filling: Duration,
    /// Stopping all threads and writing redirects.
    pub stopping: Duration,
}

/// Measures one part after the other.
struct Laps(Instant);

impl Laps {
    /// Returns the time since the last call.
    fn next(&mut self) -> Duration {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.0, now))
    }
}

/// Installs a generation; redirects of an earlier generation are undone in the same stop.
///
/// # Errors
/// [`Error`]. After any error the target is a correct program: at worst it holds mappings that nothing refers
/// to.
pub fn install(
    process: &Process,
    earlier: Option<&Installed>,
    plan: &Plan,
    policy: &Policy,
) -> Result<InstallReport, Error> {
    if earlier.is_some_and(|e| plan.counters.is_some() && e.counts_for_good()) {
        return Err(Error::CountsForGood);
    }
    let mut laps = Laps(Instant::now());
    let mut first = ToggleReport::default();
    let prepared = match earlier {
        None => plan.first_stop().make(process, policy, &mut first)?,
        Some(_) => None,
    };
    let prepared = prepared.map(|anchor| Installed { anchor, caches: Vec::new() });
    let earlier = earlier.or(prepared.as_ref());
    let mut known = earlier.map(|e| e.anchor.clone());
    if let Some(anchor) = &mut known {
        finishing::publish(process, anchor)?;
    }
    if let Some(e) = earlier.filter(|e| e.may_count()) {
        quiet::silence(process, e, policy, &mut ToggleReport::default())?;
    }
    let generation = earlier.map_or(Ok(1), Installed::next_generation)?;
    plan.check(known.as_ref())?;
    let mut times = InstallTimes { stopping: laps.next(), ..InstallTimes::default() };
    let installation = Installation { process, earlier, plan, policy };
    let mut mapped = installation.map(known, &mut first)?;
    times.mapping = laps.next();
    installation.fill(&mut mapped, generation)?;
    times.filling = laps.next();
    let mut toggle = installation.redirect(&mapped)?;
    toggle.stops.push(mapped.stop);
    toggle.stops.extend(first.stops);
    toggle.busy += first.busy;
    toggle.cured += first.cured;
    times.stopping += laps.next();
    let Mapped { stop: map_stop, counters, not_from_files, .. } = mapped;
    Ok(InstallReport { generation, toggle, map_stop, counters, not_from_files, times })
}

/// One installation behind the first stop.
struct Installation<'a> {
    process: &'a Process,
    /// What is installed already, with the anchor of the first stop.
    earlier: Option<&'a Installed>,
    plan: &'a Plan,
    policy: &'a Policy,
}

/// The memory of a generation. Nothing refers to it yet.
struct Mapped {
    anchor: Anchor,
    counters: Option<CounterArea>,
    /// See [`InstallReport::map_stop`].
    stop: Duration,
    /// Whether the caches are mapped from files.
    from_files: bool,
    /// See [`InstallReport::not_from_files`].
    not_from_files: Option<String>,
}

impl Installation<'_> {
    /// Maps the caches, the counters' memory and the anchor, if there is none. On failure the caches are not
    /// mapped. `known` is the anchor that is there already.
    fn map(&self, known: Option<Anchor>, first: &mut ToggleReport) -> Result<Mapped, Error> {
        let &Self { process, earlier, plan, policy } = self;
        let needs_page = known.as_ref().is_some_and(|anchor| anchor.room_in_page() < plan.regions());
        let (from_files, not_from_files) = match code_file::map(process, plan, policy, first) {
            Ok(mapped) => (mapped, None),
            Err(e) if code_file::is_refusal(&e) => (false, Some(e.to_string())),
            Err(e) => return Err(e),
        };
        let (stop, withheld) = map_all(process, &mappings(earlier, plan, needs_page, from_files), plan)
            .or_else(|e| if from_files { self.give_up(e) } else { Err(e) })?;
        let mut anchor = match known {
            Some(anchor) => anchor,
            None => write_anchor(process, plan.anchor_at, plan.lookup)?,
        };
        if needs_page {
            anchor.link_page(process, plan.anchor_at)?;
        }
        let stop = match withheld {
            true => stop.max(huge::touch(process, &anchor, &plan.huge_caches(), from_files)?),
            false => stop,
        };
        if from_files {
            code_file::check(process, plan).or_else(|e| self.give_up(e))?;
        }
        let counters = match &plan.counters {
            Some(offsets) => {
                let area = counters::provide(process, &anchor, offsets);
                Some(area.or_else(|e| self.give_up(e))?)
            }
            None => None,
        };
        Ok(Mapped { anchor, counters, stop, from_files, not_from_files })
    }

    /// Unmaps the caches, to which nothing refers yet, and returns the error for which this is done.
    fn give_up<T>(&self, e: Error) -> Result<T, Error> {
        unmap(self.process, self.plan)?;
        Err(e)
    }

    /// Fills the caches and lists them in the anchor.
    fn fill(&self, mapped: &mut Mapped, generation: u32) -> Result<(), Error> {
        let &Self { process, plan, .. } = self;
        let counting = plan.counters.is_some();
        for (i, cache) in plan.caches.iter().enumerate() {
            let part = Part { generation, counting, index: i, of: plan.caches.len() };
            fill(process, cache, part, mapped.from_files)?;
        }
        let anchor = &mut mapped.anchor;
        finishing::publish(process, anchor)?;
        anchor.add_regions(process, &plan.caches.iter().map(CachePlan::region).collect::<Vec<_>>())?;
        write_hook(process, anchor, plan.hook.as_ref())
    }

    /// Puts the redirects in force and undoes those of the earlier generation.
    fn redirect(&self, mapped: &Mapped) -> Result<ToggleReport, Error> {
        let &Self { process, earlier, plan, policy } = self;
        let old: Vec<&Cache> = earlier.into_iter().flat_map(Installed::of_use).collect();
        let old_records: Vec<Record> = old.iter().flat_map(|c| c.records.iter().copied()).collect();
        let new_records: Vec<Record> = plan.caches.iter().flat_map(|c| c.records.iter().copied()).collect();
        let marks: Vec<(Avma, State)> = old
            .iter()
            .map(|c| (c.header.data.start, State::Undone))
            .chain(plan.caches.iter().map(|c| (c.data_at, State::Applied)))
            .collect();
        let change = Change {
            word: Word::swap(&mapped.anchor),
            module_list: mapped.anchor.module_list_redirects(),
            counters: mapped.counters.as_ref(),
            arms: &[],
            only_if: Some(&mapped.anchor),
            revert: &old_records,
            apply: &new_records,
            marks: &marks,
        };
        let toggle = toggle::run(process, &change, policy)?;
        if toggle.stops.iter().all(|s| *s < mapped.stop) {
            let longest = u64::try_from(mapped.stop.as_nanos()).unwrap_or(u64::MAX).to_le_bytes();
            for cache in &plan.caches {
                process.write(cache.data_at.add(journal::STOPPED_OFFSET), &longest)?;
            }
        }
        Ok(toggle)
    }
}

/// Makes all mappings in one stop of one thread; on failure none is left. Returns how long the stop took, and
/// whether only the process's own setting withholds huge pages.
fn map_all(process: &Process, wanted: &[(AvmaRange, u64)], plan: &Plan) -> Result<(Duration, bool), Error> {
    let huge = !plan.huge_caches().is_empty() && huge::setting().is_some_and(|(_, set)| huge::offered(&set));
    let threads = process.threads()?.len();
    let (result, stopped) = tracee::timed_with_one_stopped(process, |remote| {
        let withheld = huge && huge::disabled(remote)?;
        for (i, (range, protection)) in wanted.iter().enumerate() {
            fault::point();
            let mut call = |nr, args| remote.syscall(nr, args);
            if let Err(e) = map(&mut call, range.start, range.len(), *protection) {
                for (made, _) in &wanted[..i] {
                    remote.syscall(nr::MUNMAP, [made.start.0, made.len(), 0, 0, 0, 0])?;
                }
                return Ok(Err(e));
            }
        }
        for c in plan.caches.iter().filter(|c| huge_wanted(c.text.len() as u64)) {
            huge::advise(remote, c.text_range(), plan.huge);
        }
        remote.make_finishing_code(threads)?;
        Ok(Ok(withheld))
    })?;
    result.map(|withheld| (stopped, withheld))
}

/// Unmaps the caches of a plan.
fn unmap(process: &Process, plan: &Plan) -> Result<(), Error> {
    Ok(tracee::with_one_stopped(process, |remote| {
        plan.caches.iter().try_for_each(|c| {
            let len = c.text_range().len() + c.data_len();
            remote.syscall(nr::MUNMAP, [c.text_at.0, len, 0, 0, 0, 0]).map(|_| ())
        })
    })?)
}

/// Returns the ranges to map, with their protection.
fn mappings(
    earlier: Option<&Installed>,
    plan: &Plan,
    needs_page: bool,
    from_files: bool,
) -> Vec<(AvmaRange, u64)> {
    let mut all = Vec::new();
    if needs_page {
        all.push((AvmaRange::with_len(plan.anchor_at, PAGE), prot::READ));
    }
    if earlier.is_none() {
        all.push((AvmaRange::with_len(plan.anchor_at, PAGE), prot::READ_EXEC));
        all.push((AvmaRange::with_len(plan.anchor_at.add(PAGE), PAGE), prot::READ));
    }
    for c in plan.caches.iter().filter(|_| !from_files) {
        debug_assert_eq!(c.text_range().end, c.data_at);
        all.push((c.text_range(), prot::READ_EXEC));
        all.push((c.data_range(), prot::READ));
    }
    all
}

/// Writes an anchor into its two pages.
pub(crate) fn write_anchor(
    process: &Process,
    anchor_at: Avma,
    lookup: Option<FindObject>,
) -> Result<Anchor, Error> {
    let at = anchor_at.add(PAGE);
    let (code, data) = Anchor::pages(at, lookup.and_then(|l| l.slot), lookup.map_or(0, |l| l.value))?;
    fault::point();
    write(process, anchor_at, &code)?;
    // The magic is written last: an anchor that can be found is complete.
    write(process, at.add(8), &data[8..])?;
    fault::point();
    write(process, at, &data[..8])?;
    Anchor::read(process, at)?.ok_or(Error::WriteLost { range: AvmaRange::with_len(at, PAGE) })
}

/// Records a hook in the anchor; its redirects are written in the next stop.
pub(crate) fn write_hook(process: &Process, anchor: &mut Anchor, hook: Option<&Hook>) -> Result<(), Error> {
    if let Some(hook) = hook
        && anchor.hook.as_ref() != Some(hook)
    {
        for (at, bytes) in anchor.hook_words(hook) {
            fault::point();
            write(process, at, &bytes)?;
        }
        anchor.hook = Some(hook.clone());
    }
    Ok(())
}

/// Identifies a cache of a generation.
#[derive(Clone, Copy)]
struct Part {
    generation: u32,
    counting: bool,
    index: usize,
    of: usize,
}

/// Fills one cache. If it is mapped from a file, its clones and tables are there already.
fn fill(process: &Process, c: &CachePlan, part: Part, from_files: bool) -> Result<(), Error> {
    let tables = c.layout();
    fault::point();
    if !from_files {
        write(process, c.text_at, &c.text)?;
        write(process, tables.blob.start, &c.blob)?;
    }
    write(process, tables.map.start, &c.map)?;
    write(process, tables.notes.start, &c.notes)?;
    write(process, c.data_at.add(module_list::HEADERS), &module_list::headers(c.text_range(), c.index()))?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let header = Header {
        state: State::Prepared,
        generation: part.generation,
        index: u32::try_from(part.index).unwrap_or(u32::MAX),
        caches: u32::try_from(part.of).unwrap_or(u32::MAX),
        counting: part.counting,
        since_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        text: c.text_range(),
        data: c.data_range(),
        eh_frame_hdr: c.eh_frame_hdr,
        code_bytes: c.text.len() as u64,
        records: tables.records,
        map: tables.map,
        notes: tables.notes,
        stopped_ns: 0,
    };
    let (mut header, mut records) = (header.write(), journal::write_records(&c.records));
    fault::write_as_later(&mut header, &mut records);
    write(process, tables.records.start, &records)?;
    fault::point();
    write(process, c.data_at, &header)
}

/// Writes bytes and reads them back; does nothing for no bytes.
fn write(process: &Process, at: Avma, bytes: &[u8]) -> Result<(), Error> {
    if bytes.is_empty() { Ok(()) } else { toggle::write_checked(process, at, bytes) }
}
