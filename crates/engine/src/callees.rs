//! Functions known by name to do something odd when called.

use addr::Avma;
use code::{Callee, CalleeKind};
use image::Image;
use rustc_hash::FxHashMap;

/// They never return. Only a hint: a clone goes on at the original's next instruction should they do.
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

/// They return twice, or start a child on the caller's stack.
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

/// They look at their return address to learn which module calls (glibc: dlfcn/dlsym.c, dlfcn/dlopen.c), or to
/// attribute the call (profiling hooks).
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

/// What is known about callees, by the address of their code, their PLT stub or their slot.
#[derive(Debug, Default)]
pub struct Callees {
    code: FxHashMap<Avma, CalleeKind>,
    slots: FxHashMap<Avma, CalleeKind>,
}

impl Callees {
    /// Looks all known names up in an image.
    #[must_use]
    pub fn new(image: &Image) -> Self {
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

    /// What is known about a callee.
    #[must_use]
    pub fn kind(&self, callee: Callee) -> CalleeKind {
        let known = match callee {
            Callee::Direct(at) => self.code.get(&at),
            Callee::Slot(at) => self.slots.get(&at),
        };
        known.copied().unwrap_or(CalleeKind::Ordinary)
    }
}
