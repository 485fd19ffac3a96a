//! A whole process as code: its modules with their functions, ready to be analysed one by one.

use crate::callees::Callees;
use crate::caller_address::{self, Look};
use crate::covering;
use crate::gs::{self, GsUse};
use crate::parallel;
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use code::{
    Branches, Callee, CalleeKind, Cfg, Dest, Extent, Extents, Input, MergeInput, Part, Piece, Ranges,
    Refusal, Term,
};
use emit::{Stub, Stubs};
use iced_x86::OpKind;
use image::{Image, Module, ModuleKind, PltStub, RelocKind, VtableSlot};
use memchr::memmem;
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use std::hash::Hasher;
use std::sync::{Mutex, PoisonError};
use unwind::{CfaRule, Fde, Lsda, Reg, Row};

/// Into how many shares the code of a module is cut that are swept side by side.
const SHARES: usize = 4;

/// How many functions that jump on to each other are looked through for one that looks at its return address.
const TAIL_CALLS: usize = 32;

/// A function of the process: a module's place in the image and the function's place in the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FuncId {
    /// Index into [`Program::modules`].
    pub module: u32,
    /// Index into that module's functions.
    pub index: u32,
}

/// Code of one module.
#[derive(Debug)]
pub struct ModuleCode {
    /// Its place in the image.
    pub in_image: usize,
    /// Why none of its functions is cloned, if so.
    pub refused: Option<Refusal>,
    /// Its functions.
    pub extents: Extents,
    /// Its direct branches.
    pub branches: Branches,
    /// Where its executable bytes are. They are not kept: a server's would be the most of what whet holds.
    text: Vec<AvmaRange>,
    /// Jumps through words of memory, each with the address of the word; some are there by chance.
    pub jumps_through: Vec<(Avma, Avma)>,
    /// Whether some code of it may change the GS base.
    gs_use: Option<GsUse>,
    /// Every fragment of a function, by start.
    fragments: Vec<Fragment>,
    /// Code addresses that data holds or that other modules can ask for, rising.
    held: Vec<Avma>,
    /// Those that data holds, rising; in a program linked to fixed addresses some are there by chance.
    in_data: Vec<Avma>,
}

/// A fragment of a function.
#[derive(Clone, Copy, Debug)]
struct Fragment {
    range: AvmaRange,
    /// Its function's place.
    function: u32,
    /// Of its bytes when branches and functions were told by them.
    hash: u64,
}

/// The process.
pub struct Program<'m> {
    image: Image,
    modules: Vec<ModuleCode>,
    callees: Callees,
    /// Which functions, by entry, look at their return address, as far as that was asked.
    lookers: Mutex<FxHashMap<Avma, bool>>,
    /// Slots of virtual tables whose function's address no instruction computes.
    vtables: Vec<VtableSlot>,
    /// Words that are led elsewhere: what they hold is not assumed.
    kept: FxHashSet<Avma>,
    memory: &'m (dyn ReadMemory + Sync),
}

impl std::fmt::Debug for Program<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("modules", &self.modules.len()).finish_non_exhaustive()
    }
}

/// A function that can be cloned.
#[derive(Debug)]
pub struct Analysed {
    /// Its graph.
    pub cfg: Cfg,
    /// Its bytes when it was read, without redirects.
    pub text: Vec<(AvmaRange, Vec<u8>)>,
    /// Unwind rows of all its fragments.
    pub rows: Vec<Row>,
    /// Its exception table, of all fragments.
    pub lsda: Option<Lsda>,
    /// Its personality routine.
    pub personality: Option<Avma>,
    /// Whether it is a signal frame.
    pub signal_frame: bool,
}

impl Analysed {}

impl<'m> Program<'m> {
    /// Sorts out the code of every module of the image. `memory` is the process without redirects.
    #[must_use]
    pub fn new(image: Image, memory: &'m (dyn ReadMemory + Sync)) -> Self {
        let modules: Vec<ModuleCode> =
            (0..image.modules().len()).map(|i| ModuleCode::new(&image, i, memory)).collect();
        let callees = Callees::new(&image, &modules, memory);
        let lookers = Mutex::default();
        let kept = FxHashSet::default();
        let mut this = Self { image, modules, callees, lookers, vtables: Vec::new(), kept, memory };
        this.vtables = this.find_vtables();
        this
    }

    /// Has code call through some words whatever they hold.
    pub fn keep(&mut self, words: impl Iterator<Item = Avma>) {
        self.kept.extend(words);
    }

    /// What is loaded.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The process without redirects.
    #[must_use]
    pub fn memory(&self) -> &dyn ReadMemory {
        self.memory
    }

    /// The code of all modules, as in the image.
    #[must_use]
    pub fn modules(&self) -> &[ModuleCode] {
        &self.modules
    }

    /// The module a function is in.
    #[must_use]
    pub fn module(&self, f: FuncId) -> &ModuleCode {
        &self.modules[f.module as usize]
    }

    /// The image's view of that module.
    #[must_use]
    pub fn module_image(&self, f: FuncId) -> &Module {
        &self.image.modules()[self.module(f).in_image]
    }

    /// The function's fragments.
    #[must_use]
    pub fn extent(&self, f: FuncId) -> &Extent {
        &self.module(f).extents.functions[f.index as usize]
    }

    /// All functions, by module and address.
    pub fn functions(&self) -> impl Iterator<Item = FuncId> + '_ {
        (0u32..).zip(&self.modules).flat_map(|(module, m)| {
            (0u32..).zip(&m.extents.functions).map(move |(index, _)| FuncId { module, index })
        })
    }

    /// The function a program counter is in.
    #[must_use]
    pub fn find(&self, pc: Avma) -> Option<FuncId> {
        let module = self.modules.iter().position(|m| m.text.iter().any(|r| r.contains(pc)))?;
        let index = self.modules[module].index_at(pc)?;
        Some(FuncId { module: u32::try_from(module).ok()?, index })
    }

    /// The function whose entry is at an address.
    #[must_use]
    pub fn entered_at(&self, at: Avma) -> Option<FuncId> {
        self.find(at).filter(|&f| self.extent(f).entry == at)
    }

    /// The function to whose entry a word of memory leads, if that is so now and ever.
    #[must_use]
    pub fn constant_function(&self, slot: Avma) -> Option<Avma> {
        let constant =
            !self.kept.contains(&slot) && self.image.is_readonly_data(AvmaRange::with_len(slot, 8));
        let to = self.memory.u64(slot).ok().map(Avma).filter(|_| constant)?;
        self.entered_at(to).map(|_| to)
    }

    /// What some code may do to its thread's GS base, which then is not free for counters.
    pub(crate) fn gs_use(&self) -> Option<GsUse> {
        self.modules.iter().find_map(|m| m.gs_use)
    }

    /// The slots of virtual tables that may lead to clones: a program may compare a function's address with one that
    /// some instruction computes (gcc's speculative devirtualization does), so those stay.
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

    /// Whether code and data of the module at `holder` may lead to an address for as long as they are there: it is in the same
    /// module, or in one that is never unloaded. Whatever whet writes or assumes keeps to this, so that nothing leads into a
    /// module that is gone.
    #[must_use]
    pub fn lasts_for(&self, holder: Avma, at: Avma) -> bool {
        self.image.module_of(at).is_some_and(|m| m.nodelete || m.extent.contains(holder))
    }

    /// The page by which the module at an address is marked where it may be unloaded: its first.
    #[must_use]
    pub fn mark_of(&self, at: Avma) -> Option<Avma> {
        self.image.module_of(at).filter(|m| !m.nodelete).map(|m| m.extent.start)
    }

    /// Leaves modules alone as a whole, by their places in the image.
    pub fn leave(&mut self, modules: &[usize], reason: Refusal) {
        for module in self.modules.iter_mut().filter(|m| modules.contains(&m.in_image)) {
            module.refused.get_or_insert(reason);
        }
    }

    /// What a stub of the procedure linkage table jumps to now; `None` for any other address.
    #[must_use]
    pub fn bound(&self, stub: Avma) -> Option<Avma> {
        let module = self.image.modules().iter().find(|m| m.extent.contains(stub))?;
        let i = module.plt.binary_search_by_key(&stub, |p| p.range.start).ok()?;
        self.memory.u64(module.plt[i].slot).ok().map(Avma)
    }

    /// The slots of the stubs of some modules' procedure linkage tables. What a slot holds is not taken for constant: libraries
    /// that hook functions unprotect slots and write to them, also to those that the loader has made read-only.
    #[must_use]
    pub fn stubs(&self, modules: &[usize]) -> Stubs {
        let images = self.image.modules();
        let stub = |p: &PltStub| (p.range.start, Stub::Slot(p.slot));
        modules.iter().flat_map(|&i| &images[i].plt).filter(|p| p.only_jumps).map(stub).collect()
    }

    /// Whether a program counter is in code of the main program.
    #[must_use]
    pub fn in_main(&self, pc: Avma) -> bool {
        self.image.main().extent.contains(pc)
    }

    /// A name for people: the symbol if there is one, else the module and the stated address.
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

    /// Builds the graph of a function and all that its clone needs.
    ///
    /// # Errors
    /// Why it is left alone.
    pub fn analyse(&self, f: FuncId) -> Result<Analysed, Refusal> {
        let module = self.module(f);
        if let Some(reason) = module.refused {
            return Err(reason);
        }
        let extent = self.extent(f);
        if extent.plt {
            return Err(Refusal::RuntimeInternal);
        }
        // Somebody else computes an address inside: code that compares program counters (cancellation points).
        for part in &extent.parts {
            let from_outside = |(from, to): (Avma, Avma)| {
                to != extent.entry && !extent.parts.iter().any(|p| p.contains(from))
            };
            if module.branches.taken_in(*part).any(from_outside) {
                return Err(Refusal::ReadsOwnAddress);
            }
        }
        let whole = self.analyse_parts(f, extent.parts.len());
        // Where fragments do not fit together the main one alone may do; the others are left to the original.
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
            // What was told of the whole module by other bytes says nothing about these.
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

    /// What is known about a callee.
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

    /// Whether a function looks at its return address, or jumps to one that does.
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

    /// What a function does with its return address; `None` where that is not asked. The C library's functions that look at it are
    /// known by name: others only pass it to hooks that are not there.
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

    /// Whether data holds the address of one of its instructions, of which it is not known what for: a handler may look an
    /// interrupted program counter up there, or patch what stands there. The targets of its jump tables are known, and where it jumps
    /// to an address that it has from anywhere, the words may be labels for that; a clone leaves for the original then.
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
        let held = extent.parts.iter().flat_map(|part| {
            let from = module.in_data.partition_point(|&a| a < part.start);
            let to = module.in_data.partition_point(|&a| a < part.end);
            &module.in_data[from..to]
        });
        let mut unknown = held.copied().filter(|&at| !is_entry(at) && !is_target(at));
        // Blocks that nothing but the data leads to are in no graph; in between instructions there is nothing.
        let inside = |at: Avma| cfg.insts.iter().any(|i| i.at < at && at < i.end());
        unknown.any(|at| !inside(at))
    }

    /// Whether no direct branch leads into another module that may be unloaded: only a program that writes code by itself has such,
    /// and clones would call clones of that module.
    fn leads_only_to_lasting(&self, cfg: &Cfg) -> bool {
        cfg.insts.iter().all(|inst| {
            let i = &inst.decoded;
            let direct = i.op_count() > 0 && i.op0_kind() == OpKind::NearBranch64;
            let to = Avma(i.near_branch_target());
            !direct || self.image.module_of(to).is_none() || self.lasts_for(cfg.entry, to)
        })
    }

    /// Whether a function is entered at an address by whoever calls it: a stub, what some code calls, or what looks
    /// like a function's start and has its address in data or computed by code.
    fn is_function(&self, at: Avma) -> bool {
        let modules = self.image.modules().iter().zip(&self.modules);
        modules.into_iter().filter(|(image, _)| image.extent.contains(at)).any(|(image, code)| {
            image.stub_at(at).is_some_and(|stub| stub.range.start == at)
                || code.function_at(at).is_some_and(|f| f.entry == at) && code.is_called(image, at)
        })
    }

    /// The exception tables of all fragments as one.
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
        // A fragment without a table of its own in a function that has one lets exceptions pass nowhere and
        // everywhere: the personality is not called at all. One table cannot say that.
        if whole.is_some() && fdes.iter().any(|f| f.lsda.is_none()) {
            return Err(Refusal::OddExceptionTable);
        }
        if let Some(w) = &mut whole {
            w.call_sites.sort_by_key(|s| s.range.start);
        }
        Ok(whole)
    }
}

/// Adds a fragment's call sites to those of its function. gcc gives every fragment the same actions and types.
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

impl ModuleCode {
    fn new(image: &Image, in_image: usize, memory: &dyn ReadMemory) -> Self {
        let module = &image.modules()[in_image];
        let refused = module_refusal(module);
        let mut text = Vec::new();
        for range in image.exec_ranges(module) {
            if let Ok(bytes) = memory.bytes(range) {
                text.push((range, bytes));
            }
        }
        let mut this = Self {
            in_image,
            refused,
            extents: Extents::default(),
            branches: Branches::default(),
            text: text.iter().map(|(r, _)| *r).collect(),
            jumps_through: text.iter().flat_map(|(r, bytes)| jumps_through(r.start, bytes)).collect(),
            gs_use: gs::in_module(module, &text),
            fragments: Vec::new(),
            held: Vec::new(),
            in_data: Vec::new(),
        };
        if this.refused.is_none() && has_restartable_sequences(module, &text) {
            this.refused = Some(Refusal::RestartableSequence);
        }
        if this.refused.is_none() {
            this.find_functions(module, &text, memory);
        }
        this
    }

    fn find_functions(&mut self, module: &Module, text: &[(AvmaRange, Vec<u8>)], memory: &dyn ReadMemory) {
        let fdes = module.frames.fdes();
        let pieces: Vec<Piece<'_>> = text
            .iter()
            .flat_map(|(range, bytes)| Piece::cut(*range, bytes, fdes.iter().map(|f| f.range)))
            .collect();
        let ranges: Ranges = pieces.iter().map(|p| p.range).collect();
        let shares: Vec<&[Piece<'_>]> = pieces.chunks(pieces.len().div_ceil(SHARES).max(1)).collect();
        self.branches = Branches::joined(parallel::map(&shares, |share| code::sweep_part(share, &ranges)));
        let in_data = addresses_in_data(module, memory);
        let held: FxHashSet<Avma> = held_addresses(module, &in_data);
        let far_pads: Vec<(usize, Avma)> = fdes
            .iter()
            .enumerate()
            .filter_map(|(i, f)| Some((i, f.range, Lsda::parse(memory, f.lsda?, f.range).ok()?)))
            .flat_map(|(i, range, lsda)| {
                let pads = lsda.call_sites.into_iter().filter_map(|s| s.landing_pad);
                pads.filter(move |p| !range.contains(*p)).map(move |p| (i, p)).collect::<Vec<_>>()
            })
            .collect();
        let plt: Vec<AvmaRange> = module.plt.iter().map(|p| p.range).collect();
        let exact = |at: Avma| module.symbols.function_at(at).filter(|s| s.at == at).map(|s| s.name);
        let starts: Vec<Avma> = module.symbols.iter().filter(|s| s.kind.is_code()).map(|s| s.at).collect();
        let symbols_in = |range: AvmaRange| {
            let from = starts.partition_point(|&s| s < range.start);
            let to = starts.partition_point(|&s| s < range.end);
            starts[from..to].to_vec()
        };
        self.extents = code::merge(&MergeInput {
            fdes,
            starts_like_entry: &|i| starts_like_entry(module, &fdes[i]),
            branches: &self.branches,
            name: &exact,
            is_address_taken: &|at| held.contains(&at),
            symbols_in: &symbols_in,
            far_pads: &far_pads,
            plt: &plt,
        });
        let hash = |range: AvmaRange| within(text, range).map(hash_of);
        self.fragments = (0u32..)
            .zip(&self.extents.functions)
            .flat_map(|(function, e)| e.parts.iter().map(move |&range| (range, function)))
            .filter_map(|(range, function)| Some(Fragment { range, function, hash: hash(range)? }))
            .collect();
        self.fragments.sort_unstable_by_key(|f| f.range.start);
        self.held = held.into_iter().collect();
        self.held.sort_unstable();
        self.in_data = in_data;
        self.in_data.extend(words_in_data(module, &self.text, memory));
        self.in_data.sort_unstable();
        self.in_data.dedup();
    }

    /// Whether the start of an extent is a function's, not that of a fragment to which only jumps lead.
    fn is_called(&self, module: &Module, at: Avma) -> bool {
        let known = self.branches.is_taken(at) || self.held.binary_search(&at).is_ok();
        self.branches.calls_to(at).len() > 0
            || known && module.frames.find(at).is_some_and(|fde| starts_like_entry(module, fde))
    }

    /// The addresses in a range that data holds: labels of computed jumps among them.
    #[must_use]
    pub fn held_in(&self, range: AvmaRange) -> &[Avma] {
        let from = self.held.partition_point(|&a| a < range.start);
        let to = self.held.partition_point(|&a| a < range.end);
        &self.held[from..to]
    }

    fn fragment_at(&self, pc: Avma) -> Option<&Fragment> {
        let after = self.fragments.partition_point(|f| f.range.start <= pc);
        self.fragments.get(after.checked_sub(1)?).filter(|f| f.range.contains(pc))
    }

    /// The function a program counter is in.
    fn index_at(&self, pc: Avma) -> Option<u32> {
        self.fragment_at(pc).map(|f| f.function)
    }

    /// The same, itself.
    #[must_use]
    pub fn function_at(&self, pc: Avma) -> Option<&Extent> {
        self.extents.functions.get(self.index_at(pc)? as usize)
    }
}

/// A range of some stretches of code, where one holds it whole.
fn within(text: &[(AvmaRange, Vec<u8>)], range: AvmaRange) -> Option<&[u8]> {
    let (whole, bytes) = text.iter().find(|(r, _)| r.covers(&range))?;
    let from = usize::try_from(range.start.since(whole.start)?).ok()?;
    let to = usize::try_from(range.end.since(whole.start)?).ok()?;
    bytes.get(from..to)
}

/// Tells changed code; whoever wants to deceive it has the right to write it anyway.
fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

/// Whether the frame is that of a function just called where an FDE begins.
fn starts_like_entry(module: &Module, fde: &Fde) -> bool {
    module.frames.initial_row(fde).is_ok()
        && module.frames.rows(fde).ok().and_then(|rows| rows.first().cloned()).is_some_and(|r| {
            r.cfa == CfaRule::RegOffset(Reg::RSP, 8) && r.regs.iter().all(|(reg, _)| *reg == Reg::RA)
        })
}

/// Whether a module has restartable sequences (rseq) of its own. The kernel knows these by address and knows nothing of
/// clones. Each has an abort handler with this signature before it (x86: `RSEQ_SIG` of the librseq ABI); the C library
/// only has it as the argument of its registration, also where it is linked into the program.
fn has_restartable_sequences(module: &Module, text: &[(AvmaRange, Vec<u8>)]) -> bool {
    const RSEQ_SIG: u32 = 0x5305_3053;
    let is_argument = |at: Avma| {
        let i = covering::instruction(&module.frames, |range| within(text, range), at);
        module.static_exe
            && module.frames.find(at).is_some()
            && i.is_some_and(|i| {
                i.code() == iced_x86::Code::Mov_r32_imm32
                    && i.immediate32() == RSEQ_SIG
                    && i.next_ip() == at.add(4).0
            })
    };
    let found = |(range, bytes): &(AvmaRange, Vec<u8>)| {
        let signature = RSEQ_SIG.to_le_bytes();
        memmem::find_iter(bytes, &signature).any(|i| !is_argument(range.start.add(i as u64)))
    };
    !is_libc(module) && text.iter().any(found)
}

fn is_libc(module: &Module) -> bool {
    module.file_name().is_some_and(|f| f.starts_with("libc.so") || f.starts_with("libc-"))
}

/// The `jmp *slot(%rip)` in code at `at`, as (from, slot): two bytes that also occur by chance.
fn jumps_through(at: Avma, bytes: &[u8]) -> impl Iterator<Item = (Avma, Avma)> + '_ {
    memmem::find_iter(bytes, &[0xff, 0x25]).filter_map(move |i| {
        let distance = i32::from_le_bytes(*bytes.get(i + 2..)?.first_chunk()?);
        let from = at.add(i as u64);
        Some((from, from.add(6).offset(i64::from(distance))))
    })
}

/// Why a whole module is left alone.
fn module_refusal(module: &Module) -> Option<Refusal> {
    let file = module.file_name().unwrap_or_default();
    match module.kind {
        ModuleKind::Interpreter | ModuleKind::Vdso => Some(Refusal::RuntimeInternal),
        // The unwinder walks its own frames and knows them by address.
        _ if file.starts_with("libgcc_s") || file.starts_with("libunwind") => Some(Refusal::RuntimeInternal),
        ModuleKind::Main | ModuleKind::Library => None,
    }
}

/// Addresses that relocated words of data hold.
fn addresses_in_data(module: &Module, memory: &dyn ReadMemory) -> Vec<Avma> {
    let held = |r: &image::Reloc| match r.kind {
        RelocKind::Relative(Some(at)) => Some(at),
        RelocKind::Relative(None) => memory.u64(r.at).ok().map(Avma),
        _ => None,
    };
    module.relocations.iter().filter_map(held).collect()
}

/// Words of the data of a program linked to fixed addresses that are addresses of its code, if only by chance: nothing tells
/// them from others there.
fn words_in_data(module: &Module, text: &[AvmaRange], memory: &dyn ReadMemory) -> Vec<Avma> {
    let data = module.segments.iter().filter(|s| !module.pie && !s.perms.x);
    let is_code = |at: &Avma| text.iter().any(|r| r.contains(*at));
    data.filter_map(|s| memory.bytes(s.file_backed).ok().map(|bytes| (s.range.start, bytes)))
        .flat_map(|(start, bytes)| {
            let skip = usize::try_from(start.0.next_multiple_of(8) - start.0).unwrap_or(0);
            let (words, _) = bytes.get(skip..).unwrap_or_default().as_chunks::<8>();
            words.iter().map(|w| Avma(u64::from_le_bytes(*w))).filter(is_code).collect::<Vec<_>>()
        })
        .collect()
}

/// Code addresses that data holds or other modules can ask for.
fn held_addresses(module: &Module, in_data: &[Avma]) -> FxHashSet<Avma> {
    let mut held: FxHashSet<Avma> = in_data.iter().copied().collect();
    held.extend(module.symbols.iter().filter(|s| s.exported).map(|s| s.at));
    held.insert(module.entry.unwrap_or_default());
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_through_slots_are_read_relative_to_their_end() {
        let code = [
            0x90, 0xf2, 0xff, 0x25, 0x10, 0, 0, 0, 0xff, 0x15, 0, 0, 0, 0, 0xff, 0x25, 0xf0, 0xff, 0xff, 0xff,
        ];
        let found: Vec<_> = jumps_through(Avma(0x1000), &code).collect();
        assert_eq!(found, [(Avma(0x1002), Avma(0x1018)), (Avma(0x100e), Avma(0x1004))]);
    }
}
