//! Functions with unusual behaviour for a caller: some known by name, others because they end in a jump to
//! such a function. The destination of such a jump sees the return address and the frame of the jumper's
//! caller, as if called directly.
//!
//! Jumps through registers are not followed, nor jumps in modules without clones.

use crate::analyse::module_code::ModuleCode;
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use code::{Callee, CalleeKind};
use image::{Image, Module, RelocKind};
use rustc_hash::{FxHashMap, FxHashSet};

/// Functions that never return. Only a hint: if they return, a clone continues at the original's next
/// instruction.
const NO_RETURN: &[&str] = &[
    "abort",
    "exit",
    "_exit",
    "_Exit",
    "quick_exit",
    "__assert_fail",
    "__assert_perror_fail",
    "__assert",
    "__stack_chk_fail",
    "__fortify_fail",
    "__chk_fail",
    "__libc_fatal",
    "__cxa_throw",
    "__cxa_rethrow",
    "__cxa_bad_cast",
    "__cxa_bad_typeid",
    "__cxa_throw_bad_array_new_length",
    "__cxa_throw_bad_array_length",
    "__cxa_call_unexpected",
    "__cxa_call_terminate",
    "__cxa_pure_virtual",
    "_Unwind_Resume",
    "_ZSt9terminatev",
    "_ZSt10unexpectedv",
    "longjmp",
    "_longjmp",
    "siglongjmp",
    "__longjmp_chk",
    "pthread_exit",
    "thrd_exit",
    "err",
    "errx",
    "verr",
    "verrx",
    "_ZSt17__throw_bad_allocv",
    "_ZSt20__throw_length_errorPKc",
    "_ZSt19__throw_logic_errorPKc",
    "_ZSt20__throw_out_of_rangePKc",
    "_ZSt24__throw_out_of_range_fmtPKcz",
    "_ZSt16__throw_bad_castv",
    "_ZSt25__throw_bad_function_callv",
    "_ZSt20__throw_system_errori",
    "_ZSt24__throw_invalid_argumentPKc",
    "_ZSt28__throw_bad_array_new_lengthv",
];

/// Functions that return twice, or start a child on the caller's stack.
const RETURNS_TWICE: &[&str] = &[
    "setjmp",
    "_setjmp",
    "__setjmp",
    "sigsetjmp",
    "__sigsetjmp",
    "vfork",
    "__vfork",
    "__libc_vfork",
    "getcontext",
    "savectx",
];

/// Functions that read their return address to find the calling module (glibc: dlfcn/dlsym.c,
/// dlfcn/dlopen.c), or to attribute the call (profiling hooks).
const CALLER_SENSITIVE: &[&str] = &[
    "dlsym",
    "dlvsym",
    "dlopen",
    "dlmopen",
    "mcount",
    "_mcount",
    "__fentry__",
    "__cyg_profile_func_enter",
    "__cyg_profile_func_exit",
];

/// The kinds of callees, by the address of their code, their PLT stub or their slot.
#[derive(Debug, Default)]
pub struct Callees {
    code: FxHashMap<Avma, CalleeKind>,
    slots: FxHashMap<Avma, CalleeKind>,
}

impl Callees {
    /// Finds all known names in an image, and the code that passes calls on to them. `modules` is the code of
    /// the image's modules, in their order. `memory` is the process without redirects.
    #[must_use]
    pub fn new(image: &Image, modules: &[ModuleCode], memory: &dyn ReadMemory) -> Self {
        let mut this = Self::by_name(image);
        this.see_through(&Links::new(image, modules, memory));
        this
    }

    fn by_name(image: &Image) -> Self {
        let kinds: FxHashMap<&str, CalleeKind> = [
            (NO_RETURN, CalleeKind::NoReturn),
            (RETURNS_TWICE, CalleeKind::ReturnsTwice),
            (CALLER_SENSITIVE, CalleeKind::CallerSensitive),
        ]
        .into_iter()
        .flat_map(|(names, kind)| names.iter().map(move |&n| (n, kind)))
        .collect();
        let mut this = Self::default();
        for module in image.modules() {
            for (&name, &kind) in &kinds {
                for symbol in module.symbols.named(name) {
                    this.code.insert(symbol.at, kind);
                }
            }
            for slot in &module.slots {
                if let Some(&kind) = kinds.get(slot.name.as_str()) {
                    this.slots.insert(slot.slot, kind);
                }
            }
            for stub in &module.plt {
                if let Some(&kind) = stub.name.as_deref().and_then(|n| kinds.get(n)) {
                    this.code.insert(stub.range.start, kind);
                    this.slots.insert(stub.slot, kind);
                }
            }
        }
        this
    }

    /// Marks all code that leads to functions that must not be called from a clone, until no more is found.
    /// (Functions that never return are left out: a function may jump to one only sometimes.)
    fn see_through(&mut self, links: &dyn Leads) {
        let is_odd =
            |kind: CalleeKind| matches!(kind, CalleeKind::ReturnsTwice | CalleeKind::CallerSensitive);
        let known = |map: &FxHashMap<Avma, CalleeKind>, callee: fn(Avma) -> Callee| -> Vec<_> {
            map.iter().filter(|(_, k)| is_odd(**k)).map(|(&at, &kind)| (callee(at), kind)).collect()
        };
        let mut left = known(&self.code, Callee::Direct);
        left.extend(known(&self.slots, Callee::Slot));
        while let Some((to, kind)) = left.pop() {
            for callee in links.lead_to(to) {
                let entry = match callee {
                    Callee::Direct(at) => self.code.entry(at),
                    Callee::Slot(at) => self.slots.entry(at),
                }
                .or_insert(CalleeKind::Ordinary);
                if !is_odd(*entry) {
                    *entry = kind;
                    left.push((callee, kind));
                }
            }
        }
    }

    /// Returns the kind of a callee.
    #[must_use]
    pub fn kind(&self, callee: Callee) -> CalleeKind {
        let known = match callee {
            Callee::Direct(at) => self.code.get(&at),
            Callee::Slot(at) => self.slots.get(&at),
        };
        known.copied().unwrap_or(CalleeKind::Ordinary)
    }
}

/// The links by which calls are passed on.
trait Leads {
    /// Returns the equivalents of `callee`: functions and stubs that jump to it or through it, and slots that
    /// hold it.
    fn lead_to(&self, callee: Callee) -> Vec<Callee>;
}

/// All links in a process except direct jumps, which the modules' own tables list.
struct Links<'a> {
    image: &'a Image,
    modules: &'a [ModuleCode],
    /// For each slot, the jumps through it.
    through: FxHashMap<Avma, Vec<Avma>>,
    /// Slots by the address they hold.
    holders: FxHashMap<Avma, Vec<Avma>>,
    /// Slots by name: slots that are not bound yet hold another address.
    named: FxHashMap<&'a str, Vec<Avma>>,
}

impl<'a> Links<'a> {
    fn new(image: &'a Image, modules: &'a [ModuleCode], memory: &dyn ReadMemory) -> Self {
        let mut this = Self {
            image,
            modules,
            through: FxHashMap::default(),
            holders: FxHashMap::default(),
            named: FxHashMap::default(),
        };
        for (module, code) in modules.iter().map(|code| (image.module(code.id), code)) {
            let is_slot = |kind| matches!(kind, RelocKind::GlobDat | RelocKind::JumpSlot);
            let slots: FxHashSet<Avma> =
                module.relocations.iter().filter(|r| is_slot(r.kind)).map(|r| r.at).collect();
            for &slot in &slots {
                if let Ok(holds) = memory.u64(slot) {
                    this.holders.entry(Avma(holds)).or_default().push(slot);
                }
            }
            for slot in &module.slots {
                this.named.entry(&slot.name).or_default().push(slot.slot);
            }
            for stub in &module.plt {
                this.through.entry(stub.slot).or_default().push(stub.range.start);
            }
            for &(from, slot) in code.jumps_through.iter().filter(|j| slots.contains(&j.1)) {
                this.through.entry(slot).or_default().extend(entries(module, code, from));
            }
        }
        this
    }

    /// Returns the names under which other modules can bind an address.
    fn names(&self, at: Avma) -> impl Iterator<Item = &'a str> {
        let module = self.image.modules().iter().find(|m| m.extent.contains(at));
        let symbols = module.into_iter().flat_map(|m| m.symbols.iter());
        symbols.filter(move |s| s.at == at && s.exported).map(|s| s.name)
    }
}

impl Leads for Links<'_> {
    fn lead_to(&self, callee: Callee) -> Vec<Callee> {
        let at = match callee {
            Callee::Slot(slot) => {
                return self.through.get(&slot).into_iter().flatten().copied().map(Callee::Direct).collect();
            }
            Callee::Direct(at) => at,
        };
        let mut leads: Vec<Callee> =
            self.holders.get(&at).into_iter().flatten().copied().map(Callee::Slot).collect();
        let named = self.names(at).filter_map(|name| self.named.get(name)).flatten();
        leads.extend(named.copied().map(Callee::Slot));
        for (module, code) in self.modules.iter().map(|code| (self.image.module(code.id), code)) {
            for (from, _) in code.branches.jumps_into(AvmaRange::with_len(at, 1)) {
                leads.extend(entries(module, code, from).into_iter().map(Callee::Direct));
            }
        }
        leads
    }
}

/// Returns the addresses at which control may have entered code that reaches a jump.
fn entries(module: &Module, code: &ModuleCode, from: Avma) -> Vec<Avma> {
    if let Some(function) = code.function_at(from).filter(|f| !f.plt) {
        return std::iter::once(function.entry).chain(function.other_entries.iter().copied()).collect();
    }
    match module.plt.iter().find(|s| s.range.contains(from)) {
        Some(stub) => vec![stub.range.start],
        // Code without frame rules is a thunk. It begins with its jump, with or without `bnd` or `endbr64`
        // before it.
        None => vec![from, from.sub(1), from.sub(4), from.sub(5)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: Avma = Avma(0x1000);
    const STUB: Avma = Avma(0x2000);
    const SLOT: Avma = Avma(0x3000);
    const WRAPPER: Avma = Avma(0x4000);
    const OUTER: Avma = Avma(0x5000);
    const OUTER_SLOT: Avma = Avma(0x6000);
    const OTHER: Avma = Avma(0x7000);

    /// `setjmp`; a slot that holds it, and the stub of that slot; a wrapper that ends in a jump to the stub;
    /// an outer function that ends in a jump to the wrapper, which also jumps back (a cycle); a slot of the
    /// outer function in another module.
    struct Chain;

    impl Leads for Chain {
        fn lead_to(&self, callee: Callee) -> Vec<Callee> {
            match callee {
                Callee::Direct(SET) => vec![Callee::Slot(SLOT)],
                Callee::Slot(SLOT) => vec![Callee::Direct(STUB)],
                Callee::Direct(STUB) => vec![Callee::Direct(WRAPPER)],
                Callee::Direct(WRAPPER) => vec![Callee::Direct(OUTER), Callee::Direct(WRAPPER)],
                Callee::Direct(OUTER) => vec![Callee::Direct(WRAPPER), Callee::Slot(OUTER_SLOT)],
                Callee::Direct(OTHER) => vec![Callee::Direct(SET)],
                _ => Vec::new(),
            }
        }
    }

    #[test]
    fn a_function_that_ends_in_a_jump_has_the_kind_of_its_destination() {
        for kind in [CalleeKind::ReturnsTwice, CalleeKind::CallerSensitive] {
            let mut callees = Callees::default();
            callees.code.insert(SET, kind);
            callees.code.insert(WRAPPER, CalleeKind::NoReturn);
            callees.code.insert(OTHER, CalleeKind::NoReturn);
            callees.see_through(&Chain);
            for at in [SET, STUB, WRAPPER, OUTER] {
                assert_eq!(callees.kind(Callee::Direct(at)), kind, "{at}");
            }
            for at in [SLOT, OUTER_SLOT] {
                assert_eq!(callees.kind(Callee::Slot(at)), kind, "{at}");
            }
            assert_eq!(callees.kind(Callee::Direct(OTHER)), CalleeKind::NoReturn);
        }
        let mut callees = Callees::default();
        callees.code.insert(SET, CalleeKind::NoReturn);
        callees.see_through(&Chain);
        assert_eq!(callees.kind(Callee::Slot(SLOT)), CalleeKind::Ordinary);
    }
}
