//! What a model of a named CPU's instruction fetch predicts for a target, with and without its clones.
//!
//! For hosts without performance counters. The target is neither changed nor stopped. To record a real path,
//! whet would have to single-step a thread: a thousand times slower, while the thread may hold locks. So the
//! path is drawn from the exact counts by which the clones are laid out ([`fetch_model::DrawnPath`]). The
//! path is then followed through the originals, and through clones and redirects in the target
//! ([`fetch_model::Follower`]).

use crate::analyse::program::Program;
use crate::build::map_store;
use crate::build::redirects;
use crate::plan::candidate::{Counted, Measured};
use crate::records::notes::Notes;
use crate::records::profile_store;
use crate::{Error, OptimizeOptions, Target};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use code::{BlockId, Cfg, SiteForm, Term};
use emit::AddressMap;
use fetch_model::{
    CloneCode, DrawnPath, Events, Flow, Follower, ICE_LAKE_SERVER, Inst, Leads, Model, Pointer, Redirects,
    Routine, Setting, Step, Surroundings,
};
use iced_x86::{Decoder, DecoderOptions};
use layout::PAGE_BYTES;
use profile::Profile;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use splice::{HUGE, Installed, RedirectKind};
use tracee::Pid;

/// Instructions of the path that fill the model's caches, and instructions whose events are counted. A
/// transaction of a database server takes some hundred thousand.
const WARM_UP: u64 = 2_000_000;
const COUNTED: u64 = 8_000_000;
/// The seed for drawing the path.
const SEED: u64 = 1;
/// The largest number of instructions in a stub.
const LONGEST_STUB: usize = 4;

/// Modelled events, of the same path through originals and through clones.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FetchReport {
    /// The CPU whose fetch is modelled.
    pub cpu: String,
    /// Instructions of the path, as the originals execute it.
    pub path: u64,
    /// Functions that the path can enter.
    pub functions: usize,
    /// Their share of the user samples by which the clones are laid out. The figures contain no other work of
    /// the process.
    pub coverage: f64,
    /// How often the follower could not determine where the path continues in the clones.
    pub lost: u64,
    /// Events of the originals.
    pub without: Events,
    /// Events of the clones, and of code that still runs in originals.
    pub with: Events,
}

/// Models a target from its memory. Returns `None` if its layout has no counts, or if no counts fit its code
/// any more.
///
/// # Errors
/// Returns [`Error::NotInstalled`], or the errors of reading the target.
pub fn fetch_report(pid: Pid) -> Result<Option<FetchReport>, Error> {
    let target = Target::open(pid)?;
    model(&target).map_err(|e| target.cause(e))
}

/// Follows a recorded path through a target's clones and reports each instruction that is executed then.
/// Returns how often the follower lost the path, and `None` as [`fetch_report`] does. For tests, which
/// compare this with the execution.
///
/// # Errors
/// Same as [`fetch_report`].
pub fn follow_path(pid: Pid, path: &[Step], tell: &mut dyn FnMut(Step)) -> Result<Option<u64>, Error> {
    let target = Target::open(pid)?;
    let followed = on_scene(&target, |scene| {
        let mut follower = Follower::new(scene.setting);
        path.iter().for_each(|step| follower.follow(step, tell));
        Some(follower.lost())
    });
    followed.map_err(|e| target.cause(e))
}

fn model(target: &Target) -> Result<Option<FetchReport>, Error> {
    on_scene(target, |scene| {
        let run = run(&scene, &huge(target, &scene))?;
        Some(FetchReport {
            cpu: ICE_LAKE_SERVER.name.to_owned(),
            path: run.without.instructions,
            functions: scene.chosen.len(),
            coverage: share(scene.chosen, scene.samples),
            lost: run.lost,
            without: run.without,
            with: run.with,
        })
    })
}

/// The data from which a path is drawn and by which it is followed.
struct Scene<'a> {
    installed: &'a Installed,
    program: &'a Program<'a>,
    chosen: &'a [Counted],
    /// User samples of the process.
    samples: u64,
    setting: Setting<'a>,
}

fn on_scene<R>(target: &Target, then: impl FnOnce(Scene<'_>) -> Option<R>) -> Result<Option<R>, Error> {
    let pid = target.process.pid();
    let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
    let notes = Notes::of(&target.process, installed).ok_or(Error::NotInstalled { pid })?;
    let Ok(profile) = notes.profile.parse::<Profile>() else { return Ok(None) };
    let pristine = target.pristine();
    let program = Program::new(target.image()?, &pristine);
    let adapted = profile_store::adapt(&program, &profile);
    let mut chosen =
        match profile_store::candidates(&program, pid, &adapted, &OptimizeOptions::default(), None) {
            Ok(candidates) => candidates.chosen,
            Err(Error::ProfileUnfit { .. }) => return Ok(None),
            Err(e) => return Err(e),
        };
    // Inferred counts have another unit than exact counts.
    let ran = |c: &Counted| c.counts.block(BlockId(0)) > 0;
    let counted = chosen.iter().any(|c| c.is_counted() && ran(c));
    let maps = maps(target, installed);
    let clones: Vec<CloneCode<'_>> = maps.iter().map(|map| code(&target.process, map)).collect();
    let mostly = mostly(&chosen);
    let switches = chosen.iter().flat_map(|c| cloned_switches(&c.analysed.cfg)).collect();
    chosen.retain(|c| ran(c) && c.is_counted() == counted);
    let redirects = leading_in(target, installed);
    let word = |at| program.memory().u64(at).ok().map(Avma);
    let in_stub = |at| program.image().module_of(at).is_some_and(|m| m.stub_at(at).is_some());
    let setting = Setting {
        switches: &switches,
        clones: &clones,
        redirects: &redirects,
        word: &word,
        in_stub: &in_stub,
        mostly: &mostly,
    };
    Ok(then(Scene { installed, program: &program, chosen: &chosen, samples: profile.samples, setting }))
}

fn share(chosen: &[Counted], samples: u64) -> f64 {
    let inside = chosen.iter().fold(0, |sum: u64, c| sum.saturating_add(c.samples));
    (inside as f64 / samples.max(1) as f64 * 1e4).round() / 1e4
}

struct Run {
    without: Events,
    with: Events,
    lost: u64,
}

/// Follows one path on both sides. `huge` lists the code on huge pages.
fn run(scene: &Scene<'_>, huge: &[AvmaRange]) -> Option<Run> {
    let chosen = scene.chosen;
    let leads: Vec<Vec<Leads>> = chosen.iter().map(|c| leads(c)).collect();
    let routines: Vec<Routine<'_>> = chosen
        .iter()
        .zip(&leads)
        .map(|(c, leads)| Routine { cfg: &c.analysed.cfg, counts: &c.counts, leads })
        .collect();
    let around = Surroundings { stub: &|at| stub(scene.program, at), word: scene.setting.word };
    let mut drawn = DrawnPath::new(&routines, &around, SEED)?;
    let mut follower = Follower::new(scene.setting);
    let mut without = Model::new(&ICE_LAKE_SERVER, huge);
    let mut with = Model::new(&ICE_LAKE_SERVER, huge);
    for length in [WARM_UP, COUNTED] {
        without.warmed_up();
        with.warmed_up();
        drawn.go(length, &mut |step| {
            without.execute(step);
            follower.follow(step, &mut |step| with.execute(&step));
        });
    }
    Some(Run { without: without.events(), with: with.events(), lost: follower.lost() })
}

/// Returns the jumps through tables that a clone has copies of.
fn cloned_switches(cfg: &Cfg) -> impl Iterator<Item = Avma> {
    cfg.blocks.iter().filter_map(|block| {
        let Term::Switch { table } = block.term else { return None };
        cfg.tables.get(table.index())?.cloneable.as_ref()?;
        let last = block.last_inst()?;
        cfg.insts.get(last.index()).map(|i| i.at)
    })
}

fn leads(c: &Measured) -> Vec<Leads> {
    c.targets
        .iter()
        .map(|s| Leads { inst: s.inst, to: s.callees.clone(), others: s.others.callees })
        .collect()
}

/// Returns the most frequent target of each indirect call.
fn mostly(chosen: &[Counted]) -> FxHashMap<Avma, Avma> {
    let sites = chosen.iter().flat_map(|c| c.targets.iter().map(move |s| (c, s)));
    sites
        .filter_map(|(c, s)| Some((c.analysed.cfg.insts.get(s.inst.index())?.at, s.callees.first()?.0)))
        .collect()
}

/// Returns the instructions that run from a stub of the procedure linkage table to its destination.
fn stub(program: &Program<'_>, at: Avma) -> Vec<Step> {
    let module = program.image().module_of(at);
    let Some(range) = module.and_then(|m| m.stub_at(at)).map(|s| s.range).filter(|r| r.start == at) else {
        return Vec::new();
    };
    let bytes = program.memory().bytes(range).unwrap_or_default();
    let mut decoder = Decoder::with_ip(64, &bytes, at.0, DecoderOptions::NONE);
    let mut steps = Vec::new();
    for i in decoder.iter().take(LONGEST_STUB).filter(|i| !i.is_invalid()) {
        let inst = Inst::of(&i);
        let here = Avma(i.ip());
        if let Flow::IndirectJump(Pointer::Slot(slot)) = inst.flow {
            let Ok(to) = program.memory().u64(slot) else { break };
            steps.push(inst.step(here, Avma(to)));
            return steps;
        }
        steps.push(inst.step(here, Avma(i.next_ip())));
    }
    Vec::new()
}

/// Returns the address maps of the newest generation's clones. Keeps only maps that lie in their cache's
/// text, up to the text's size in all.
fn maps(target: &Target, installed: &Installed) -> Vec<AddressMap> {
    let mut all = Vec::new();
    for cache in installed.of(installed.generation()) {
        let text = cache.header.text;
        let mut left = text.len();
        for (_, map) in map_store::read(&cache.map(&target.process).unwrap_or_default()) {
            let rest = left.checked_sub(map.fragments().size());
            if let Some(rest) = rest.filter(|_| map.fragments().ranges().all(|r| text.covers(&r))) {
                left = rest;
                all.push(map);
            }
        }
    }
    all
}

fn code<'a>(memory: &dyn ReadMemory, map: &'a AddressMap) -> CloneCode<'a> {
    let bytes = map.fragments().ranges().filter_map(|r| Some((r, memory.bytes(r).ok()?))).collect();
    CloneCode { map, bytes }
}

/// Returns the newest generation's redirects, whether or not they are in force.
fn leading_in(target: &Target, installed: &Installed) -> Redirects {
    let mut out = Redirects::default();
    for r in installed.of(installed.generation()).flat_map(|c| &c.records) {
        let Some(to) = redirects::leads_to(r, &target.process) else { continue };
        match r.kind {
            // A redirect longer than a displacement is a jump behind the first byte of its instruction.
            RedirectKind::Entry if u64::from(r.len) > SiteForm::Displacement.changed_bytes() => {
                out.entries.insert(r.at.sub(1), to)
            }
            RedirectKind::Entry | RedirectKind::Call => out.branches.insert(r.range().end, to),
            RedirectKind::Vtable => out.tables.insert(Avma(u64::from_le_bytes(r.old)), to),
            RedirectKind::Slot => out.slots.insert(r.at, to),
            RedirectKind::Other => None,
        };
    }
    out
}

/// Returns the code of the program and of the newest clones that lies on huge pages.
fn huge(target: &Target, scene: &Scene<'_>) -> Vec<AvmaRange> {
    let Scene { installed, program, .. } = scene;
    let originals = program.image().modules().iter().flat_map(|m| program.image().exec_ranges(m));
    let clones = installed.of(installed.generation()).map(|c| c.header.text);
    let whole_pages = |r: AvmaRange| {
        AvmaRange::new(r.start.align_down(PAGE_BYTES), r.end.add(PAGE_BYTES - 1).align_down(PAGE_BYTES))
    };
    // Smaller ranges, as of most libraries, hold no huge page.
    let code = originals.chain(clones).map(whole_pages).filter(|r| r.len() >= HUGE);
    code.flat_map(|r| target.process.huge_pages(r).unwrap_or_default()).collect()
}
