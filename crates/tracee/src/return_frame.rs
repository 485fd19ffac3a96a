//! Return frames: signal frames that restore a thread's own state. A frame is written to the stack and
//! removed again.

use crate::process::mapping_range;
use crate::ptrace;
use crate::remote::ReturnPath;
use crate::restart::{ERESTARTNOHAND, cure};
use crate::{Process, Regs, Tid};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use std::arch::x86_64::__cpuid_count;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A frame on a thread's stack.
#[derive(Debug)]
pub(crate) struct ReturnFrame {
    sp: Avma,
    /// The bytes that it replaced.
    old: Vec<u8>,
}

/// Kernel: `struct rt_sigframe` from its `uc` on: flags, link, stack (3 words), 23 registers and 9 more words
/// (`struct sigcontext`), the signal mask.
const UCONTEXT_WORDS: usize = 5 + 32 + 1;
/// The part of an XSAVE area that is always there: legacy region and header.
const XSAVE_MIN: usize = 512 + 64;
/// Room that must be left on the stack for a signal handler's frame below whet's frame.
const ROOM: u64 = 16 << 10;
/// The red zone below the stack pointer, used by leaf functions (psABI 3.2.2). Bytes.
const RED_ZONE: u64 = 128;
const PAGE: u64 = 4096;
/// How much of a stack is searched at most: stacks are not used beyond that in practice. Bytes.
const REACH: u64 = 16 << 20;

impl ReturnFrame {
    /// Writes a frame for a thread at rest. `way` holds the words that lead to `rt_sigreturn`
    /// (`Gadgets::words`). Returns `None` if the memory cannot be read or written.
    pub(crate) fn lay(process: &Process, place: &Place, regs: &Regs, mask: u64, way: &[u64]) -> Option<Self> {
        let &Place { fp_at, ref fp, .. } = place;
        let sp = place.sp.add(8 * ReturnPath::MOST_WORDS.checked_sub(way.len() as u64)?);
        let mut frame = Vec::new();
        for word in way.iter().copied().chain(context(process, regs, mask, fp_at)) {
            frame.extend(word.to_le_bytes());
        }
        frame.resize(usize::try_from(fp_at.since(sp)?).ok()?, 0);
        frame.extend(fp);
        let old = process.bytes(AvmaRange::with_len(sp, frame.len() as u64)).ok()?;
        process.write(sp, &frame).ok()?;
        Some(Self { sp, old })
    }

    /// Returns the stack pointer with which a `ret` leads to `rt_sigreturn`.
    pub(crate) fn sp(&self) -> Avma {
        self.sp
    }

    /// Restores the bytes that the frame replaced.
    pub(crate) fn lift(self, process: &Process) {
        // Below the red zone no data of the program is live. An ended process needs no restore.
        let _ = process.write(self.sp, &self.old);
    }
}

/// The place of a frame, from its lowest address: the words that lead to `rt_sigreturn`, the context, the
/// aligned floating-point state.
#[derive(Debug)]
pub(crate) struct Place {
    sp: Avma,
    fp_at: Avma,
    fp: Vec<u8>,
    /// Untouched stack pages that this frame would dirty; set only if there is no other place.
    pub(crate) dear: Option<AvmaRange>,
}

impl Place {
    /// Returns the place for a thread at rest; it stays right as long as the thread is at rest. Returns
    /// `None` if the thread has a shadow stack, because a return by a frame would not match it. Also returns
    /// `None` if no room on a stack is certain.
    pub(crate) fn of(process: &Process, tid: Tid, regs: &Regs) -> Option<Self> {
        if ptrace::has_shadow_stack(tid) {
            return None;
        }
        let fp = fp_state(&ptrace::xsave(tid).ok()?)?;
        let below = |top: Avma| {
            let fp_at = top.sub(fp.len() as u64).align_down(64);
            (fp_at.sub(8 * (ReturnPath::MOST_WORDS + UCONTEXT_WORDS as u64)).align_down(16), fp_at)
        };
        let first = tid.0 == process.pid().0;
        let thread = Avma(regs.0.fs_base);
        let maps = process.maps_text().ok()?;
        let guard = |range| last_guard(process, range);
        let (sp, fp_at) = below(regs.sp().sub(RED_ZONE));
        let fits = |end: Avma| end.add(ROOM) <= sp;
        if stack_end(&maps, regs.sp(), thread, first, guard).is_some_and(fits) {
            return Some(Self { sp, fp_at, fp, dear: None });
        }
        // The thread is on a stack that the program has allocated, or on a full stack. The stack on which it
        // was started has room in its untouched pages.
        if let Some(shelter) = process.shelter(&maps) {
            let (sp, fp_at) = below(shelter.end);
            return (shelter.start.add(ROOM) <= sp).then_some(Self { sp, fp_at, fp, dear: None });
        }
        let born_on = birth_stack(&maps, thread, first, guard)?;
        let wanted = ROOM + fp.len() as u64 + PAGE;
        let pages = untouched(process, born_on, wanted)?;
        let (sp, fp_at) = below(pages.end);
        Some(Self { sp, fp_at, fp, dear: Some(pages) })
    }
}

/// Returns the stack on which a thread was started, as far as that is certain: see [`stack_end`].
fn birth_stack(
    maps: &str,
    thread: Avma,
    first: bool,
    last_guard: impl FnOnce(AvmaRange) -> Option<Avma>,
) -> Option<AvmaRange> {
    if first {
        return maps.lines().find(|l| l.ends_with("[stack]")).and_then(mapping_range);
    }
    let end = stack_end(maps, thread, thread, first, last_guard)?;
    Some(AvmaRange::new(end, thread.align_down(PAGE)))
}

/// Returns the highest run of `wanted` bytes of pages that were never read or written: no frame can lie
/// there.
fn untouched(process: &Process, stack: AvmaRange, wanted: u64) -> Option<AvmaRange> {
    /// Present, swapped, of a file or shared, a guard (Documentation/admin-guide/mm/pagemap.rst).
    const ANYTHING: u64 = 1 << 63 | 1 << 62 | 1 << 61 | 1 << 58;
    let stack = AvmaRange::new(stack.start.max(stack.end.sub(stack.len().min(REACH))), stack.end);
    let entries = pagemap(process, stack)?;
    let run = usize::try_from(wanted.div_ceil(PAGE)).ok()?;
    let free = |pages: &[u64]| pages.iter().all(|e| e & ANYTHING == 0);
    let at = entries.windows(run).rposition(free)?;
    Some(AvmaRange::with_len(stack.start.add(at as u64 * PAGE), run as u64 * PAGE))
}

/// Returns the lowest address of the stack that contains `sp`, if everything from there up to `sp` provably
/// belongs to that stack. A stack that the program has allocated (of a coroutine, or for signals) may be a
/// few kilobytes amid other data, so its end is unknown. Two kinds are certain:
/// - the stack of the first thread, made by the kernel;
/// - a stack made by the C library. The thread's descriptor (`thread`, the FS base) is at its top, and a
///   guard is below it: a mapping without access, or a page marked as guard, which `last_guard` finds.
///
/// On both a program can lay a smaller stack inside a frame. Such a stack overflows only if it is nearly
/// full, and then any signal handler would overflow it as well.
fn stack_end(
    maps: &str,
    sp: Avma,
    thread: Avma,
    first: bool,
    last_guard: impl FnOnce(AvmaRange) -> Option<Avma>,
) -> Option<Avma> {
    let mut below: Option<(AvmaRange, &str)> = None;
    for line in maps.lines() {
        let Some(range) = mapping_range(line) else { continue };
        let perms = line.split(' ').nth(1)?;
        if !range.contains(sp) {
            below = Some((range, perms));
            continue;
        }
        if !perms.starts_with("rw") {
            return None;
        }
        if line.ends_with("[stack]") {
            return first.then_some(range.start);
        }
        if thread < sp || !range.contains(thread) {
            return None;
        }
        // The nearer guard counts: a stack may share its mapping with others.
        let guard = last_guard(AvmaRange::new(range.start, sp));
        let guarded = below.is_some_and(|(b, perms)| b.end == range.start && perms.starts_with("---"));
        return guard.or(guarded.then_some(range.start));
    }
    None
}

/// Returns the end of the last page in `range` that is marked as guard without being a mapping of its own
/// (`MADV_GUARD_INSTALL`, Linux 6.13, shown from 6.15 on).
fn last_guard(process: &Process, range: AvmaRange) -> Option<Avma> {
    const GUARD: u64 = 1 << 58;
    let start = range.start.max(range.end.sub(range.len().min(REACH)).align_down(PAGE));
    let entries = pagemap(process, AvmaRange::new(start, range.end))?;
    let last = entries.iter().rposition(|e| e & GUARD != 0)?;
    Some(start.add((last as u64 + 1) * PAGE))
}

/// Returns the kernel's pagemap word of each page of a range.
fn pagemap(process: &Process, range: AvmaRange) -> Option<Vec<u64>> {
    let mut bytes = vec![0; usize::try_from(range.len().div_ceil(PAGE) * 8).ok()?];
    let file = File::open(process.memory_file("pagemap")).ok()?;
    file.read_exact_at(&mut bytes, range.start.0 / PAGE * 8).ok()?;
    Some(bytes.as_chunks::<8>().0.iter().map(|e| u64::from_le_bytes(*e)).collect())
}

/// Returns the words of `struct ucontext`.
fn context(process: &Process, regs: &Regs, mask: u64, fp_at: Avma) -> [u64; UCONTEXT_WORDS] {
    // UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS.
    const FLAGS: u64 = 7;
    // An invalid mode of an alternate stack: the kernel leaves the thread's alternate stack as it is.
    const ODD_STACK: u64 = 7;
    let cured = cure(process, regs).unwrap_or(*regs);
    let mut r = cured.0;
    // The kernel would restart this call, but rt_sigreturn does not. So the frame leads to its `syscall`
    // instruction. The same for ERESTART_RESTARTBLOCK: its wait begins with the whole time again.
    if cured.syscall().is_some() && matches!(cured.error(), Some(512 | 513 | ERESTARTNOHAND | 516)) {
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

/// Converts a floating-point state from ptrace's format to that of signal frames.
fn fp_state(xsave: &[u8]) -> Option<Vec<u8>> {
    const MAGIC1: u32 = 0x4650_5853;
    const MAGIC2: u32 = 0x4650_5845;
    let in_use = u64::from_le_bytes(xsave.get(512..520)?.try_into().ok()?) | 3;
    // The kernel rejects a frame larger than the states that the thread may use; the states in use are
    // enough.
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

/// Returns where a component of the standard XSAVE format ends.
fn component_end(index: u32) -> usize {
    let c = __cpuid_count(0xd, index);
    usize::try_from(u64::from(c.eax) + u64::from(c.ebx)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_end_is_found_for_known_stacks_only() {
        let maps = "1000-9000 rw-p 0 00:00 0 [heap]\n20000-21000 ---p 0 00:00 0\n21000-30000 rw-p 0 00:00 0\n\
            30000-31000 r--p 0 00:00 0 \n40000-60000 rw-p 0 00:00 0 [stack]\n60000-61000 ---p 0 00:00 0\n\
            62000-70000 rw-p 0 00:00 0\n";
        let end = |sp, thread, first| stack_end(maps, Avma(sp), Avma(thread), first, |_| None).map(|a| a.0);
        // The first thread's own stack, and only for the first thread.
        assert_eq!(end(0x50000, 0x1100, true), Some(0x40000));
        assert_eq!(end(0x50000, 0x1100, false), None);
        // A stack of the C library: a guard below, the thread's descriptor above.
        assert_eq!(end(0x28000, 0x2f000, false), Some(0x21000));
        assert_eq!(end(0x28000, 0x22000, false), None);
        assert_eq!(end(0x28000, 0x6f000, false), None);
        // No guard below.
        assert_eq!(end(0x2000, 0x8000, true), None);
        assert_eq!(end(0x65000, 0x6f000, false), None);
        // In no mapping, and not writable.
        assert_eq!(end(0x100, 0x8000, true), None);
        assert_eq!(end(0x30800, 0x30900, true), None);
        // A marked page in the mapping is nearer than the guard below the mapping.
        let marked = stack_end(maps, Avma(0x28000), Avma(0x2f000), false, |range| {
            assert_eq!(range, AvmaRange::new(Avma(0x21000), Avma(0x28000)));
            Some(Avma(0x25000))
        });
        assert_eq!(marked, Some(Avma(0x25000)));
    }
}
