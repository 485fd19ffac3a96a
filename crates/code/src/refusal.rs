//! Reasons for leaving something alone.

/// The reason why a function is not cloned, or its clone cannot be reached from its entry. A refusal is data,
/// not an error. Refusals are counted and shown by `whet explain`; the JSON name is [`Refusal::code`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// An instruction has no unwind rule: an exception or a profiler could not pass.
    NoUnwindInfo,
    /// Unwind rules that cannot be carried over.
    OddUnwindInfo,
    /// The unwind rules disagree with what the code does to the stack pointer.
    UnwindDisagrees,
    /// An exception table could not be read completely.
    OddExceptionTable,
    /// Control may reach bytes that are no instruction.
    BadInstruction,
    /// Two instructions overlap.
    OverlappingCode,
    /// Code loads or computes something from its own address that a copy would change (`call next; pop`,
    /// xbegin).
    ReadsOwnAddress,
    /// Calls a function that returns twice (setjmp, vfork, getcontext).
    ReturnsTwice,
    /// Data holds the address of an instruction inside it (a fault table, a sled to be patched).
    AddressInData,
    /// Calls a function that reads its return address, as `dlsym` and `dlopen` do to find their caller's
    /// module.
    CallerSensitive,
    /// A restartable sequence: the kernel identifies it by address.
    RestartableSequence,
    /// Part of the unwinder, the dynamic loader or a signal trampoline.
    RuntimeInternal,
    /// A signal frame, by its unwind information.
    SignalFrame,
    /// No instruction on the way from the entry can carry a redirect (`redirect_sites`).
    NoRedirectSite,
    /// Bytes in memory differ from the file's, and whet did not change them.
    ForeignChange,
    /// An operand or a destination lies further than a 32-bit displacement reaches.
    OutOfReach,
    /// The rebuilt code does not decode to the intended instructions.
    RoundTrip,
    /// Too large for the analysis.
    TooLarge,
    /// In a library that may be unloaded and could not be marked, or branches into such a library.
    ModuleMayUnload,
    /// Its bytes could not be read.
    Unreadable,
    /// Not chosen: too cold to be worthwhile.
    Cold,
    /// Beyond the limit on clone memory.
    MemoryCap,
}

impl Refusal {
    /// Returns the stable name used in JSON.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Refusal::NoUnwindInfo => "no_unwind_info",
            Refusal::OddUnwindInfo => "odd_unwind_info",
            Refusal::UnwindDisagrees => "unwind_disagrees",
            Refusal::OddExceptionTable => "odd_exception_table",
            Refusal::BadInstruction => "bad_instruction",
            Refusal::OverlappingCode => "overlapping_code",
            Refusal::ReadsOwnAddress => "reads_own_address",
            Refusal::AddressInData => "address_in_data",
            Refusal::ReturnsTwice => "returns_twice",
            Refusal::CallerSensitive => "caller_sensitive",
            Refusal::RestartableSequence => "restartable_sequence",
            Refusal::RuntimeInternal => "runtime_internal",
            Refusal::SignalFrame => "signal_frame",
            Refusal::NoRedirectSite => "no_redirect_site",
            Refusal::ForeignChange => "foreign_change",
            Refusal::OutOfReach => "out_of_reach",
            Refusal::RoundTrip => "round_trip",
            Refusal::TooLarge => "too_large",
            Refusal::ModuleMayUnload => "module_may_unload",
            Refusal::Unreadable => "unreadable",
            Refusal::Cold => "cold",
            Refusal::MemoryCap => "memory_cap",
        }
    }

    /// Returns a clause that explains the refusal.
    #[must_use]
    pub fn why(self) -> &'static str {
        match self {
            Refusal::NoUnwindInfo => {
                "some of its instructions have no unwind rule, so no exception could pass through a copy"
            }
            Refusal::OddUnwindInfo => "its unwind rules cannot be translated for a copy",
            Refusal::UnwindDisagrees => {
                "its unwind rules disagree with what its code does to the stack pointer"
            }
            Refusal::OddExceptionTable => "its exception table could not be read in full",
            Refusal::BadInstruction => "its control flow leads to bytes that are no instruction",
            Refusal::OverlappingCode => "some of its instructions overlap",
            Refusal::ReadsOwnAddress => "it computes its own address, which differs in a copy",
            Refusal::AddressInData => {
                "data holds the address of an instruction inside it (a fault table, a sled to be patched)"
            }
            Refusal::ReturnsTwice => "it calls a function that returns twice (setjmp, vfork, getcontext)",
            Refusal::CallerSensitive => {
                "it calls a function that examines its return address, as dlsym and dlopen do to find their caller"
            }
            Refusal::RestartableSequence => {
                "the kernel refers to its code by address (restartable sequences)"
            }
            Refusal::RuntimeInternal => {
                "it is part of the unwinder, the dynamic loader or a signal trampoline"
            }
            Refusal::SignalFrame => "its unwind information describes a signal frame",
            Refusal::NoRedirectSite => "no instruction on the path from its entry has room for a redirect",
            Refusal::ForeignChange => {
                "another program, or the process itself, has changed its bytes since they were loaded"
            }
            Refusal::OutOfReach => "it refers to an address more than 2 GiB away from the clones",
            Refusal::RoundTrip => "its clone did not decode back to the intended instructions",
            Refusal::TooLarge => "it is larger than the analysis supports",
            Refusal::ModuleMayUnload => {
                "it is in, or branches into, a library whose unloading whet could not detect"
            }
            Refusal::Unreadable => "its bytes could not be read",
            Refusal::Cold => "it runs too rarely to gain anything",
            Refusal::MemoryCap => "the cap on the memory of clones was reached",
        }
    }

    /// Returns the refusal with a [`Refusal::code`].
    #[must_use]
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|r| r.code() == code)
    }

    const ALL: [Refusal; 22] = [
        Refusal::NoUnwindInfo,
        Refusal::OddUnwindInfo,
        Refusal::UnwindDisagrees,
        Refusal::OddExceptionTable,
        Refusal::BadInstruction,
        Refusal::OverlappingCode,
        Refusal::ReadsOwnAddress,
        Refusal::AddressInData,
        Refusal::ReturnsTwice,
        Refusal::CallerSensitive,
        Refusal::RestartableSequence,
        Refusal::RuntimeInternal,
        Refusal::SignalFrame,
        Refusal::NoRedirectSite,
        Refusal::ForeignChange,
        Refusal::OutOfReach,
        Refusal::RoundTrip,
        Refusal::TooLarge,
        Refusal::ModuleMayUnload,
        Refusal::Unreadable,
        Refusal::Cold,
        Refusal::MemoryCap,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_a_round_trip() {
        for reason in Refusal::ALL {
            assert_eq!(Refusal::from_code(reason.code()), Some(reason));
        }
        assert_eq!(Refusal::from_code("whim"), None);
    }
}
