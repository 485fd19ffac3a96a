//! A stopped thread's registers.

use addr::Avma;

/// The general registers of a stopped thread, in the kernel's format.
#[derive(Clone, Copy)]
pub struct Regs(pub libc::user_regs_struct);

impl Regs {
    /// Returns the instruction pointer: the next instruction; inside a system call, the one behind `syscall`.
    #[must_use]
    pub fn ip(&self) -> Avma {
        Avma(self.0.rip)
    }

    /// Returns the stack pointer. The 128 bytes below it may be in use (red zone).
    #[must_use]
    pub fn sp(&self) -> Avma {
        Avma(self.0.rsp)
    }

    /// Returns the number of the system call that the thread is inside.
    #[must_use]
    pub fn syscall(&self) -> Option<i64> {
        Some(self.0.orig_rax.cast_signed()).filter(|&nr| nr >= 0)
    }

    /// Returns whether the stop woke the thread out of a call in which it waited: the result is `EINTR` or one of the
    /// kernel's own codes for a restart (`include/linux/errno.h`).
    #[must_use]
    pub fn waited(&self) -> bool {
        let interrupted = matches!(-self.result(), 4 | 512 | 513 | 514 | 516);
        self.syscall().is_some() && interrupted
    }

    /// Returns the result that the system call is about to return (negative: an error number).
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
