//! A signal frame that brings a thread back to its own state, laid on its stack and lifted again.

use crate::process::mapping_range;
use crate::ptrace;
use crate::restart::{ERESTARTNOHAND, cure};
use crate::{Process, Regs, Tid};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use std::arch::x86_64::__cpuid_count;

/// A frame on a thread's stack.
#[derive(Debug)]
pub(crate) struct Home {
    sp: Avma,
    /// What was there before.
    old: Vec<u8>,
}

/// Kernel: `struct rt_sigframe` from its `uc` on: flags, link, stack (3 words), 23 registers and 9 more words
/// (`struct sigcontext`), the signal mask.
const UCONTEXT_WORDS: usize = 5 + 32 + 1;
/// The part of an XSAVE area that is always there: legacy region and header.
const XSAVE_MIN: usize = 512 + 64;
/// Room that must be left on the stack, for a handler that comes on top of ours.
const ROOM: u64 = 16 << 10;

impl Home {
    /// Lays a frame for a thread at rest; `sigreturn` is the code it will return to. `None` where it cannot be: the
    /// thread has a shadow stack, which such a return would not match, or too little stack.
    pub(crate) fn lay(process: &Process, tid: Tid, regs: &Regs, mask: u64, sigreturn: Avma) -> Option<Self> {
        if ptrace::has_shadow_stack(tid) {
            return None;
        }
        let fp = fp_state(&ptrace::xsave(tid).ok()?)?;
        // From below: the return address, the context, then the floating-point state where it is aligned.
        let top = regs.sp().sub(128);
        let fp_at = top.sub(fp.len() as u64).align_down(64);
        let sp = fp_at.sub(8 + 8 * UCONTEXT_WORDS as u64).align_down(16);
        let maps = process.maps_text().ok()?;
        let stack = maps.lines().find(|l| mapping_range(l).is_some_and(|m| m.contains(regs.sp())))?;
        if !stack.split(' ').nth(1)?.starts_with("rw") || !mapping_range(stack)?.contains(sp.sub(ROOM)) {
            return None;
        }
        let mut frame = Vec::new();
        for word in std::iter::once(sigreturn.0).chain(context(process, regs, mask, fp_at)) {
            frame.extend(word.to_le_bytes());
        }
        frame.resize(usize::try_from(fp_at.since(sp)?).ok()?, 0);
        frame.extend(&fp);
        let old = process.bytes(AvmaRange::with_len(sp, frame.len() as u64)).ok()?;
        process.write(sp, &frame).ok()?;
        Some(Self { sp, old })
    }

    /// The stack pointer with which a `ret` begins the way home.
    pub(crate) fn sp(&self) -> Avma {
        self.sp
    }

    /// Puts back what was there before the frame.
    pub(crate) fn lift(self, process: &Process) {
        // Below the red zone nothing of the program's is alive; a process that is gone has nothing to put back.
        let _ = process.write(self.sp, &self.old);
    }
}

/// The words of `struct ucontext`.
fn context(process: &Process, regs: &Regs, mask: u64, fp_at: Avma) -> [u64; UCONTEXT_WORDS] {
    // UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS.
    const FLAGS: u64 = 7;
    // No mode of an alternate stack: the kernel leaves the thread's as it is.
    const ODD_STACK: u64 = 7;
    let mut r = cure(process, regs).unwrap_or(*regs).0;
    // A call that the kernel would restart; rt_sigreturn does not, so the frame leads to its `syscall` instruction.
    // ERESTART_RESTARTBLOCK too: its wait begins anew instead of going on.
    if r.orig_rax.cast_signed() >= 0 && matches!(-r.rax.cast_signed(), 512 | 513 | ERESTARTNOHAND | 516) {
        r.rax = r.orig_rax;
        r.rip = r.rip.wrapping_sub(2);
    }
    let segments = r.cs & 0xffff | (r.ss & 0xffff) << 48;
    let mut words = [0; UCONTEXT_WORDS];
    words[..5].copy_from_slice(&[FLAGS, 0, 0, ODD_STACK, 0]);
    words[5..24].copy_from_slice(&[
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax,
        r.rcx, r.rsp, r.rip, r.eflags, segments,
    ]);
    // err, trapno, oldmask, cr2; the floating-point state; 8 words reserved; the mask.
    words[28] = fp_at.0;
    words[37] = mask;
    words
}

/// A floating-point state as signal frames have it, from one as ptrace has it.
fn fp_state(xsave: &[u8]) -> Option<Vec<u8>> {
    const MAGIC1: u32 = 0x4650_5853;
    const MAGIC2: u32 = 0x4650_5845;
    let in_use = u64::from_le_bytes(xsave.get(512..520)?.try_into().ok()?) | 3;
    // The kernel takes no frame larger than the states the thread may use; those that it does use are enough.
    let size = (2..63).filter(|i| in_use & 1 << i != 0).map(component_end).max().unwrap_or(0).max(XSAVE_MIN);
    let mut fp = xsave.get(..size)?.to_vec();
    // struct _fpx_sw_bytes in the last 48 bytes of the legacy region.
    let sw = fp.get_mut(464..512)?;
    sw.fill(0);
    sw[0..4].copy_from_slice(&MAGIC1.to_le_bytes());
    sw[4..8].copy_from_slice(&u32::try_from(size + 4).ok()?.to_le_bytes());
    sw[8..16].copy_from_slice(&in_use.to_le_bytes());
    sw[16..20].copy_from_slice(&u32::try_from(size).ok()?.to_le_bytes());
    fp.extend(MAGIC2.to_le_bytes());
    Some(fp)
}

/// Where a component of the standard XSAVE format ends.
fn component_end(index: u32) -> usize {
    let c = __cpuid_count(0xd, index);
    usize::try_from(u64::from(c.eax) + u64::from(c.ebx)).unwrap_or(usize::MAX)
}
