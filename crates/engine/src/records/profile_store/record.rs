//! Makes a profile from the candidates of an optimization.

use super::{id_of, loaded, sites};
use crate::OptimizeOptions;
use crate::analyse::program::{FuncId, Program};
use crate::plan::calls;
use crate::plan::candidate::{Counted, Measured};
use crate::plan::candidates::Candidates;
use crate::plan::estimate;
use crate::plan::samples::Samples;
use addr::Addr;
use profile::{Binding, BuildId, Counts, FunctionKey, FunctionProfile, Origin, Place, Profile};
use std::time::{Duration, SystemTime};

/// The most bytes of profile text that are kept in a target; the least executed functions are left out.
const MOST: usize = 2 << 20;

/// Returns the limit for few functions: the text shares a mapping with tables, whose room depends on the
/// number of functions.
fn room(functions: usize) -> usize {
    functions.saturating_mul(1024).saturating_add(512 << 10).min(MOST)
}

/// How the counts were obtained.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    /// The program's path.
    pub(crate) exe: String,
    /// User samples of the process.
    pub(crate) samples: &'a Samples,
    /// How long edges were counted.
    pub(crate) counted: Duration,
}

/// Returns the profile of the candidates' layout, as it is kept in the target. Empty for a random layout.
pub(crate) fn take_down(
    program: &Program<'_>,
    counted: &[Counted],
    options: &OptimizeOptions,
    taken: &Taken<'_>,
) -> String {
    if options.shuffle.is_some() {
        return String::new();
    }
    let mut profile = match &options.profile {
        Some(used) => head_of(used),
        None => head(options, taken),
    };
    let loaded = loaded(program.image());
    for c in counted {
        let module = program.module_image(c.id);
        // Functions of a second module with the same id would replace those of the first.
        let is_first = |id: &BuildId| loaded.get(id) == Some(&program.module(c.id).id);
        let Some(build_id) = id_of(module).filter(is_first) else { continue };
        let function = function(program, c);
        let entry = profile.modules.entry(build_id).or_default();
        entry.name = module.file_name().unwrap_or_default().to_owned();
        let at = module.bias.svma(program.extent(c.id).entry);
        entry.functions.insert(FunctionKey { at, hash: profile::hash(&c.analysed.cfg) }, function);
    }
    profile.shrink_to(room(counted.len()));
    profile.to_string()
}

fn head(options: &OptimizeOptions, taken: &Taken<'_>) -> Profile {
    let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Profile {
        exes: [taken.exe.clone()].into(),
        runs: 1,
        when: since_epoch.as_secs(),
        sampled: ms(options.sampling),
        counted: ms(taken.counted),
        samples: taken.samples.ips.len() as u64,
        ..Profile::default()
    }
}

/// Returns the head of a profile that was used: its counts are still those of its own runs.
fn head_of(used: &Profile) -> Profile {
    let &Profile { runs, when, sampled, counted, samples, .. } = used;
    Profile { exes: used.exes.clone(), runs, when, sampled, counted, samples, ..Profile::default() }
}

/// Ends counting: keeps of the counts what a profile records, so that a warm start from the profile makes the
/// same clones. Adds the samples by block.
pub(crate) fn counted(candidates: Candidates<Measured>, samples: &Samples) -> Candidates<Counted> {
    estimate::counted(candidates, samples, |c| {
        if c.counts.blocks.is_empty() {
            return c;
        }
        let counts = FunctionProfile::record(&c.analysed.cfg, &c.counts).counts(&c.analysed.cfg);
        Measured { counts, ..c }
    })
}

/// Returns whether samples show that a function ran, though no thread entered it while it was counted.
/// Threads entered it before and stayed, as in the main loop of a server.
fn has_stayed(c: &Measured) -> bool {
    c.is_counted() && c.samples > 0 && !c.counts.has_run()
}

fn function(program: &Program<'_>, c: &Counted) -> FunctionProfile {
    let cfg = &c.analysed.cfg;
    let inferred = has_stayed(c).then(|| profile::infer(cfg, &profile::weights(cfg, &c.hits)));
    let counts: &Counts = inferred.as_ref().unwrap_or(&c.counts);
    let mut f = FunctionProfile::record(cfg, counts);
    f.origin = match (c.is_counted(), &inferred) {
        (_, Some(_)) => Origin::Stayed,
        (true, None) => Origin::Counted,
        (false, None) => Origin::Inferred,
    };
    f.samples = c.samples;
    f.shape = c.analysed.text.first().map(|(_, code)| profile::shape(code));
    let sampled = cfg.blocks.iter().zip(&c.hits).filter(|(_, n)| **n > 0);
    f.hits = sampled.map(|(b, &n)| (b.range.start.distance(cfg.entry), n)).collect();
    f.sites = sites::take_down(program, c);
    (f.binding, f.name) = symbol(program, c.id);
    let own = id_of(program.module_image(c.id));
    let entry = c.analysed.cfg.entry;
    for b in c.analysed.cfg.block_ids() {
        let count = counts.block(b);
        if count == 0 {
            continue;
        }
        for inst in c.analysed.cfg.insts_of(b) {
            let Some(callee) = calls::callee(program, &inst.decoded) else { continue };
            let module = program.module_image(callee);
            let Some(id) = id_of(module) else { continue };
            let at = module.bias.svma(program.extent(callee).entry);
            // A loop's jump to the function's own start is already an edge.
            let loops = callee == c.id && !is_call(&inst.decoded);
            if !loops {
                let module = Some(id).filter(|id| own.as_ref() != Some(id));
                f.calls.insert((inst.at.distance(entry), Place { module, at }), count);
            }
        }
    }
    f
}

fn is_call(i: &iced_x86::Instruction) -> bool {
    matches!(i.flow_control(), iced_x86::FlowControl::Call | iced_x86::FlowControl::IndirectCall)
}

/// Returns the symbol at a function's entry.
fn symbol(program: &Program<'_>, f: FuncId) -> (Binding, String) {
    let entry = program.extent(f).entry;
    let symbols = &program.module_image(f).symbols;
    let Some(symbol) = symbols.function_starting_at(entry) else {
        return (Binding::None, String::new());
    };
    let binding = match symbol.global {
        true => Binding::Global,
        false if symbols.named(symbol.name).all(|s| s.at == entry) => Binding::Local,
        false => Binding::Shared,
    };
    (binding, symbol.name.to_owned())
}
