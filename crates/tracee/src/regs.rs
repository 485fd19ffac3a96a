//! A stopped thread's registers.

use addr::Avma;

/// The general registers of a stopped thread, as the kernel has them.
#[derive(Clone, Copy)]
pub struct Regs(pub libc::user_regs_struct);

impl Regs {
    /// The instruction pointer: of the next instruction; inside a system call, the one after `syscall`.
    #[must_use]
    pub fn ip(&self) -> Avma {
        Avma(self.0.rip)
    }

    /// The stack pointer. The 128 bytes below may be in use (red zone).
    #[must_use]
    pub fn sp(&self) -> Avma {
        Avma(self.0.rsp)
    }

    /// The number of the system call the thread is inside of.
    #[must_use]
    pub fn syscall(&self) -> Option<i64> {
        Some(self.0.orig_rax.cast_signed()).filter(|&nr| nr >= 0)
    }

    /// What that system call is about to return (negative: an error number).
    #[must_use]
    pub fn result(&self) -> i64 {
        self.0.rax.cast_signed()
    }
}

impl std::fmt::Debug for Regs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Regs")
            .field("ip", &self.ip())
            .field("sp", &self.sp())
            .field("syscall", &self.syscall())
            .finish_non_exhaustive()
    }
}
