//! The code of a whole process: its modules with their functions, ready to be analysed one by one.

use crate::analyse::callees::Callees;
use crate::analyse::caller_address::{self, Look};
use crate::analyse::gs::GsUse;
use crate::analyse::module_code::{ModuleCode, hash_of, is_libc};
use addr::{Avma, AvmaRange, ReadMemory};
use code::{Callee, CalleeKind, Cfg, Dest, Extent, Input, Part, Refusal, Term};
use emit::Stubs;
use iced_x86::OpKind;
use image::{Image, Module, ModuleId, PltStub, VtableSlot};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::{Mutex, PoisonError};
use unwind::{Fde, Lsda, Row};

/// How many functions along tail calls are searched for a read of the return address.
const TAIL_CALLS: usize = 32;

/// A function of the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FuncId {
    /// Its module.
    pub module: ModuleId,
    /// Its index among that module's functions.
    pub index: u32,
}

/// The program: the loaded modules of a process and their code.
pub struct Program<'m> {
    image: Image,
    modules: Vec<ModuleCode>,
    callees: Callees,
    /// The results of `looks_at_caller` so far, by entry.
    lookers: Mutex<FxHashMap<Avma, bool>>,
    /// Slots of virtual tables whose function's address no instruction computes.
    vtables: Vec<VtableSlot>,
    /// Words that whet redirects: their contents are not assumed constant.
    kept: FxHashSet<Avma>,
    memory: &'m (dyn ReadMemory + Sync),
}

impl std::fmt::Debug for Program<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("modules", &self.modules.len()).finish_non_exhaustive()
    }
}

/// A function that can be cloned.
#[derive(Clone, Debug)]
pub struct Analysed {
    /// Its graph.
    pub cfg: Cfg,
    /// Its bytes as they were read, without redirects.
    pub text: Vec<(AvmaRange, Vec<u8>)>,
    /// Unwind rows of all its fragments.
    pub rows: Vec<Row>,
    /// Its exception table, joined from all fragments.
    pub lsda: Option<Lsda>,
    /// Its personality routine.
    pub personality: Option<Avma>,
    /// True if its frame is a signal frame.
    pub signal_frame: bool,
}

impl<'m> Program<'m> {
    /// Finds the functions in the code of every module of the image. `memory` is the process without
    /// redirects.
    #[must_use]
    pub fn new(image: Image, memory: &'m (dyn ReadMemory + Sync)) -> Self {
        let modules: Vec<ModuleCode> =
            image.numbered_modules().map(|(id, _)| ModuleCode::new(&image, id, memory)).collect();
        let callees = Callees::new(&image, &modules, memory);
        let lookers = Mutex::default();
        let kept = FxHashSet::default();
        let mut this = Self { image, modules, callees, lookers, vtables: Vec::new(), kept, memory };
        this.vtables = this.find_vtables();
        this
    }

    /// Makes calls read the given words at run time: their contents are not assumed constant.
    pub fn keep(&mut self, words: impl Iterator<Item = Avma>) {
        self.kept.extend(words);
    }

    /// Returns the loaded modules.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Returns the memory of the process, without redirects.
    #[must_use]
    pub fn memory(&self) -> &dyn ReadMemory {
        self.memory
    }

    /// Returns the code of all modules, by their ids.
    #[must_use]
    pub fn modules(&self) -> &[ModuleCode] {
        &self.modules
    }

    /// Returns the module that contains a function.
    #[must_use]
    pub fn module(&self, f: FuncId) -> &ModuleCode {
        &self.modules[f.module.index()]
    }

    /// Returns the image's view of the module that contains a function.
    #[must_use]
    pub fn module_image(&self, f: FuncId) -> &Module {
        self.image.module(f.module)
    }

    /// Returns the function's fragments.
    #[must_use]
    pub fn extent(&self, f: FuncId) -> &Extent {
        &self.module(f).extents.functions[f.index as usize]
    }

    /// Returns all functions, by module and address.
    pub fn functions(&self) -> impl Iterator<Item = FuncId> + '_ {
        self.modules
            .iter()
            .flat_map(|m| (0u32..).zip(&m.extents.functions).map(|(index, _)| FuncId { module: m.id, index }))
    }

    /// Returns the function that contains a program counter.
    #[must_use]
    pub fn find(&self, pc: Avma) -> Option<FuncId> {
        let module = self.modules.iter().find(|m| m.text.iter().any(|r| r.contains(pc)))?;
        Some(FuncId { module: module.id, index: module.index_at(pc)? })
    }

    /// Returns the function whose entry is at an address.
    #[must_use]
    pub fn entered_at(&self, at: Avma) -> Option<FuncId> {
        self.find(at).filter(|&f| self.extent(f).entry == at)
    }

    /// Returns the entry of the function to which a word of memory leads, if the loader made the word read-only. A program
    /// could make it writable again, as hooks do with slots of procedure linkage tables ([`Program::stubs`]). Words of
    /// virtual tables are taken as constant all the same: RUNBOOK.md, "What whet cannot see", says so.
    #[must_use]
    pub fn constant_function(&self, slot: Avma) -> Option<Avma> {
        let constant =
            !self.kept.contains(&slot) && self.image.is_readonly_data(AvmaRange::with_len(slot, 8));
        let to = self.memory.u64(slot).ok().map(Avma).filter(|_| constant)?;
        self.entered_at(to).map(|_| to)
    }

    /// Returns a use of the GS base in loaded code. The base is then not free for counters.
    pub(crate) fn gs_use(&self) -> Option<GsUse> {
        self.modules.iter().find_map(|m| m.gs_use)
    }

    /// Returns the slots of virtual tables that may lead to clones. A program may compare a function's
    /// address with an address that some instruction computes (gcc's speculative devirtualization does).
    /// Slots of such functions stay.
    #[must_use]
    pub fn vtables(&self) -> &[VtableSlot] {
        &self.vtables
    }

    fn find_vtables(&self) -> Vec<VtableSlot> {
        let mut slots = image::vtable_slots(&self.image, self.memory);
        let mut taken: FxHashMap<Avma, bool> = FxHashMap::default();
        slots.retain(|v| {
            let at = v.function;
            !*taken.entry(at).or_insert_with(|| self.modules.iter().any(|m| m.branches.is_taken(at)))
        });
        slots
    }

    /// Returns whether code and data of the module at `holder` may lead to an address for as long as both are
    /// mapped.
    ///
    /// The address must be in the same module, or in a module that is never unloaded. All redirects and
    /// assumptions of whet obey this rule, so nothing leads into a module that is gone.
    #[must_use]
    pub fn lasts_for(&self, holder: Avma, at: Avma) -> bool {
        self.image.module_of(at).is_some_and(|m| m.nodelete || m.extent.contains(holder))
    }

    /// Returns the page that marks the module at an address, if the module may be unloaded: its first page.
    #[must_use]
    pub fn mark_of(&self, at: Avma) -> Option<Avma> {
        self.image.module_of(at).filter(|m| !m.nodelete).map(|m| m.extent.start)
    }

    /// Leaves whole modules alone.
    pub fn leave(&mut self, modules: &[ModuleId], reason: Refusal) {
        for module in self.modules.iter_mut().filter(|m| modules.contains(&m.id)) {
            module.refused.get_or_insert(reason);
        }
    }

    /// Returns the current destination of a stub of the procedure linkage table; `None` for any other
    /// address.
    #[must_use]
    pub fn bound(&self, stub: Avma) -> Option<Avma> {
        let module = self.image.modules().iter().find(|m| m.extent.contains(stub))?;
        let i = module.plt.binary_search_by_key(&stub, |p| p.range.start).ok()?;
        self.memory.u64(module.plt[i].slot).ok().map(Avma)
    }

    /// Returns the slots of the stubs in some modules' procedure linkage tables. The contents of a slot are
    /// not assumed constant: libraries that hook functions unprotect slots and write to them, even if the
    /// loader made them read-only.
    #[must_use]
    pub fn stubs(&self, modules: &[ModuleId]) -> Stubs {
        let stub = |p: &PltStub| (p.range.start, p.slot);
        modules.iter().flat_map(|&id| &self.image.module(id).plt).filter(|p| p.only_jumps).map(stub).collect()
    }

    /// Returns whether a program counter is in code of the main program.
    #[must_use]
    pub fn in_main(&self, pc: Avma) -> bool {
        self.image.main().extent.contains(pc)
    }

    /// Returns a name for people: the symbol if there is one, else the module and the SVMA.
    #[must_use]
    pub fn name(&self, f: FuncId) -> String {
        let entry = self.extent(f).entry;
        let module = self.module_image(f);
        match module.symbols.name_at(entry) {
            Some(name) => name.to_owned(),
            None => {
                let file = module.file_name().unwrap_or("?");
                format!("{file}+{}", module.bias.svma(entry))
            }
        }
    }

    /// Builds the graph of a function and collects all that its clone needs.
    ///
    /// # Errors
    /// Returns why the function is left alone.
    pub fn analyse(&self, f: FuncId) -> Result<Analysed, Refusal> {
        let module = self.module(f);
        if let Some(reason) = module.refused {
            return Err(reason);
        }
        let extent = self.extent(f);
        if extent.plt {
            return Err(Refusal::RuntimeInternal);
        }
        // Code outside the function computes an address inside: it compares program counters (cancellation
        // points).
        for part in &extent.parts {
            let from_outside = |(from, to): (Avma, Avma)| {
                to != extent.entry && !extent.parts.iter().any(|p| p.contains(from))
            };
            if module.branches.taken_in(*part).any(from_outside) {
                return Err(Refusal::ReadsOwnAddress);
            }
        }
        let whole = self.analyse_parts(f, extent.parts.len());
        // If the fragments do not fit together, try the main one alone; the others then run in the original.
        if whole.is_err() && extent.parts.len() > 1 { self.analyse_parts(f, 1) } else { whole }
    }

    fn analyse_parts(&self, f: FuncId, parts: usize) -> Result<Analysed, Refusal> {
        let (module, extent, image) = (self.module(f), self.extent(f), self.module_image(f));
        let fdes: Vec<&Fde> = extent.fdes[..parts].iter().map(|&i| &image.frames.fdes()[i]).collect();
        let first = *fdes.first().ok_or(Refusal::NoUnwindInfo)?;
        if first.signal_frame {
            return Err(Refusal::SignalFrame);
        }
        let mut rows = Vec::new();
        for fde in &fdes {
            rows.extend(image.frames.rows(fde).map_err(|_| Refusal::OddUnwindInfo)?);
        }
        rows.sort_by_key(|r: &Row| r.range.start);
        let lsda = self.exception_table(&fdes)?;
        let read = |&range: &AvmaRange| {
            let fragment = module.fragment_at(range.start).filter(|f| f.range == range);
            let hash = fragment.ok_or(Refusal::Unreadable)?.hash;
            let bytes = self.memory.bytes(range).map_err(|_| Refusal::Unreadable)?;
            // Facts about the whole module come from other bytes and do not hold for these.
            if hash_of(&bytes) == hash { Ok((range, bytes)) } else { Err(Refusal::ForeignChange) }
        };
        let text: Vec<(AvmaRange, Vec<u8>)> =
            extent.parts[..parts].iter().map(read).collect::<Result<_, _>>()?;
        let code_parts: Vec<Part<'_>> =
            text.iter().map(|(range, bytes)| Part { range: *range, bytes }).collect();
        let landing_pads: Vec<Avma> =
            lsda.iter().flat_map(|l| &l.call_sites).filter_map(|s| s.landing_pad).collect();
        let constant = |range: AvmaRange| {
            self.image.is_readonly_data(range).then(|| self.memory.bytes(range).ok()).flatten()
        };
        let cfg = code::analyse(&Input {
            entry: extent.entry,
            parts: &code_parts,
            rows: &rows,
            landing_pads: &landing_pads,
            constant: &constant,
            callee: &|c| self.callee_kind(c),
            is_function: &|at| self.is_function(at),
        })?;
        if self.has_address_in_data(f, &cfg) {
            return Err(Refusal::AddressInData);
        }
        if !self.leads_only_to_lasting(&cfg) {
            return Err(Refusal::ModuleMayUnload);
        }
        Ok(Analysed { cfg, text, rows, lsda, personality: first.personality, signal_frame: false })
    }

    /// Returns what is known about a callee.
    fn callee_kind(&self, callee: Callee) -> CalleeKind {
        let kind = self.callees.kind(callee);
        if kind != CalleeKind::Ordinary {
            return kind;
        }
        let at = match callee {
            Callee::Direct(at) => self.bound(at).unwrap_or(at),
            Callee::Slot(slot) => self.memory.u64(slot).map_or(slot, Avma),
        };
        if self.looks_at_caller(at) { CalleeKind::CallerSensitive } else { kind }
    }

    /// Returns whether a function reads its return address, or jumps to a function that does.
    fn looks_at_caller(&self, at: Avma) -> bool {
        let known = || self.lookers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&looks) = known().get(&at) {
            return looks;
        }
        let (mut seen, mut next, mut looks) = (vec![at], 0, false);
        while let Some(&one) = seen.get(next).filter(|_| !looks && next < TAIL_CALLS) {
            let found = self.entered_at(one).and_then(|f| self.look_of(f)).unwrap_or_default();
            looks |= found.looks;
            for to in found.leaves_to.into_iter().map(|to| self.bound(to).unwrap_or(to)) {
                if !seen.contains(&to) {
                    seen.push(to);
                }
            }
            next += 1;
        }
        known().insert(at, looks);
        looks
    }

    /// Returns what a function does with its return address; `None` if it is not searched. The C library's
    /// functions that read it are known by name; its other functions only pass it to hooks that are not
    /// installed.
    fn look_of(&self, f: FuncId) -> Option<Look> {
        let (image, extent) = (self.module_image(f), self.extent(f));
        if is_libc(image) || extent.plt {
            return None;
        }
        let mut rows = Vec::new();
        for &fde in &extent.fdes {
            rows.extend(image.frames.rows(image.frames.fdes().get(fde)?).ok()?);
        }
        rows.sort_by_key(|r: &Row| r.range.start);
        let read = |&range: &AvmaRange| Some((range, self.memory.bytes(range).ok()?));
        let parts: Vec<_> = extent.parts.iter().map(read).collect::<Option<_>>()?;
        Some(caller_address::look(&parts, &rows))
    }

    /// Returns whether data holds the address of one of the function's instructions for an unknown purpose.
    ///
    /// A handler may look up an interrupted program counter there, or patch the code at the address. The
    /// targets of jump tables are known and do not count. A function that jumps to a computed address may use
    /// the words as labels; a clone then leaves for the original, so these words do not count either.
    fn has_address_in_data(&self, f: FuncId, cfg: &Cfg) -> bool {
        if cfg.blocks.iter().any(|b| b.term == Term::Indirect) {
            return false;
        }
        let (module, extent) = (self.module(f), self.extent(f));
        let is_target = |at: Avma| {
            cfg.tables.iter().flat_map(|t| &t.targets).any(|d| match d {
                Dest::Block(b) => cfg.blocks[b.index()].range.start == at,
                Dest::Outside(to) => *to == at,
            })
        };
        let is_entry = |at: Avma| {
            extent.entry == at
                || extent.other_entries.contains(&at)
                || extent.parts.iter().any(|p| p.start == at)
        };
        let held = extent.parts.iter().flat_map(|part| module.in_data_in(*part));
        let mut unknown = held.copied().filter(|&at| !is_entry(at) && !is_target(at));
        // Blocks that only such data leads to are in no graph. An address in the middle of an instruction is
        // no block.
        let inside = |at: Avma| cfg.insts.iter().any(|i| i.at < at && at < i.end());
        unknown.any(|at| !inside(at))
    }

    /// Returns whether every direct branch into another module leads to a module that is never unloaded. Only
    /// a program that writes code itself has other branches; clones would then call clones of the unloadable
    /// module.
    fn leads_only_to_lasting(&self, cfg: &Cfg) -> bool {
        cfg.insts.iter().all(|inst| {
            let i = &inst.decoded;
            let direct = i.op_count() > 0 && i.op0_kind() == OpKind::NearBranch64;
            let to = Avma(i.near_branch_target());
            !direct || self.image.module_of(to).is_none() || self.lasts_for(cfg.entry, to)
        })
    }

    /// Returns whether calls enter a function at an address. Such an address is a stub, a call target, or the
    /// start of a function whose address is in data or computed by code.
    fn is_function(&self, at: Avma) -> bool {
        let modules = self.modules.iter().map(|code| (self.image.module(code.id), code));
        modules.filter(|(image, _)| image.extent.contains(at)).any(|(image, code)| {
            image.stub_at(at).is_some_and(|stub| stub.range.start == at)
                || code.function_at(at).is_some_and(|f| f.entry == at) && code.is_called(image, at)
        })
    }

    /// Joins the exception tables of all fragments.
    fn exception_table(&self, fdes: &[&Fde]) -> Result<Option<Lsda>, Refusal> {
        let mut whole: Option<Lsda> = None;
        let personality = fdes.first().and_then(|f| f.personality);
        for fde in fdes {
            if fde.personality != personality {
                return Err(Refusal::OddExceptionTable);
            }
            let Some(at) = fde.lsda else { continue };
            let table = Lsda::parse(self.memory, at, fde.range).map_err(|_| Refusal::OddExceptionTable)?;
            match &mut whole {
                None => whole = Some(table),
                Some(w) => join(w, table)?,
            }
        }
        // One fragment has no table in a function that has one: the personality is not called for it at all.
        // A joined table cannot express this.
        if whole.is_some() && fdes.iter().any(|f| f.lsda.is_none()) {
            return Err(Refusal::OddExceptionTable);
        }
        if let Some(w) = &mut whole {
            w.call_sites.sort_by_key(|s| s.range.start);
        }
        Ok(whole)
    }
}

/// Adds a fragment's call sites to the table of its function. gcc gives every fragment the same actions and
/// types.
fn join(whole: &mut Lsda, part: Lsda) -> Result<(), Refusal> {
    let prefix = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
    let shared = whole.types.len().min(part.types.len());
    if !prefix(&whole.actions, &part.actions)
        || whole.types[..shared] != part.types[..shared]
        || !prefix(&whole.filters, &part.filters)
    {
        return Err(Refusal::OddExceptionTable);
    }
    whole.call_sites.extend(part.call_sites);
    if part.actions.len() > whole.actions.len() {
        whole.actions = part.actions;
    }
    if part.types.len() > whole.types.len() {
        whole.types = part.types;
    }
    if part.filters.len() > whole.filters.len() {
        whole.filters = part.filters;
    }
    Ok(())
}
