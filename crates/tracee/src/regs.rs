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
        self.syscall().is_some() && matches!(self.error(), Some(libc::EINTR | 512 | 513 | 514 | 516))
    }

    /// Returns the result that the system call is about to return. Outside a call it is the program's own, any value.
    #[must_use]
    pub fn result(&self) -> i64 {
        self.0.rax.cast_signed()
    }

    /// Returns the number of the error that the system call is about to return; `None` if it succeeds.
    pub(crate) fn error(&self) -> Option<i32> {
        error_of(self.result())
    }
}

/// Returns the number of the error that a system call's result stands for: the results from -4,095 to -1 are errors
/// (`MAX_ERRNO` in `include/linux/err.h`).
pub(crate) fn error_of(result: i64) -> Option<i32> {
    i32::try_from(result).ok().filter(|e| (-4095..0).contains(e)).map(|e| -e)
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Registers with `rax`, inside the system call `nr`, or outside any for -1. The others are zero.
    pub(crate) fn regs(nr: i64, rax: i64) -> Regs {
        // SAFETY: all fields are integers.
        let zero: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        Regs(libc::user_regs_struct { orig_rax: nr.cast_unsigned(), rax: rax.cast_unsigned(), ..zero })
    }

    #[test]
    fn only_the_kernels_errors_are_errors() {
        for result in [i64::MIN, i64::MIN + 1, i64::from(i32::MIN), -4096, 0, 4, 512, i64::MAX] {
            assert_eq!(regs(0, result).error(), None, "{result}");
            assert!(!regs(0, result).waited(), "{result}");
        }
        for error in [1, libc::EINTR, 512, 4095] {
            assert_eq!(regs(0, -i64::from(error)).error(), Some(error));
        }
    }

    #[test]
    fn a_thread_waited_if_a_system_call_was_interrupted() {
        for (nr, rax, waited) in [
            (0, -4, true),
            (0, -516, true),
            (0, -515, false),
            (0, -11, false),
            (-1, -4, false),
            (-1, i64::MIN, false),
        ] {
            assert_eq!(regs(nr, rax).waited(), waited, "{nr} {rax}");
        }
    }
}
