//! Where may a stopped thread go on?
//!
//! At its own program counter, and, where it is in a signal handler, at the one that the frame of the signal holds. The
//! kernel puts such a frame on the stack that the handler runs on; a handler may in turn be interrupted by another
//! that runs on another stack (`sigaltstack`). So what is searched for each thread is
//! - the stack it stands on, from its stack pointer up;
//! - from each signal frame found there, the stack of what was interrupted, and the alternate stack that the frame names;
//! - the stack it was started on, where it has left that.
//!
//! LIMIT: what is on none of these stacks is not found. A handler that switches stacks by itself (`swapcontext`, a
//! scheduler of preempted coroutines) can leave a frame on a stack, or a copy of one in the heap, on which no thread
//! stands, and to which no frame leads. To search all memory would stop a large server for seconds.

use crate::Error;
use addr::{Addr, Avma, AvmaRange};
use std::collections::BTreeMap;
use tracee::Stopped;

/// How much of each stack is searched. Bytes. The handlers that run above a frame would have to use more to hide it.
const SEARCH: u64 = 1 << 20;
/// How many signal frames of one thread are followed to other stacks: more are nested in no program that works.
const FRAMES: usize = 64;
/// What leaf functions use below the stack pointer (System V ABI). Bytes.
const RED_ZONE: u64 = 128;
/// `SS_DISABLE` of `stack_t`.
const DISABLED: u64 = 2;

/// Those of `starts` at which a thread stands or to which a signal frame on its stacks may return, sorted.
///
/// Any word of a stack that equals such an address blocks it; a false alarm only costs a second try.
pub fn blocked(stopped: &Stopped<'_>, mut starts: Vec<Avma>) -> Result<Vec<Avma>, Error> {
    starts.sort_unstable();
    if starts.is_empty() {
        return Ok(starts);
    }
    let mut search = Search::new(&starts);
    for tid in stopped.threads() {
        let regs = stopped.regs(tid)?;
        // The thread's descriptor, at the upper end of the stack that the C library gave it: no need to read on into what
        // happens to be mapped behind it.
        let top = Avma(regs.0.fs_base);
        let mut read = |from: Avma, len: u64| {
            let len = if from < top { len.min(AvmaRange::new(from, top).len()) } else { len };
            Ok(stopped.words(from, usize::try_from(len).unwrap_or(usize::MAX))?)
        };
        search.look(regs.ip().0);
        // The word of a signal frame in which the kernel keeps the segments.
        let segments = (regs.0.cs & 0xffff) | (regs.0.ss & 0xffff) << 48;
        search.stacks(regs.sp(), segments, &mut read)?;
        if let Some(home) = stopped.home(tid, SEARCH)? {
            // Where the thread stands on it, it has been searched from the stack pointer up, and what is below is free.
            if !search.has(home.end.sub(8)) {
                search.all(vec![home], segments, &mut read)?;
            }
        }
    }
    search.blocked.sort_unstable();
    search.blocked.dedup();
    Ok(search.blocked)
}

type Read<'a> = dyn FnMut(Avma, u64) -> Result<Vec<u64>, Error> + 'a;

struct Search<'a> {
    /// What is looked for, sorted; not empty.
    starts: &'a [Avma],
    blocked: Vec<Avma>,
    /// What was searched: start and end of ranges that do not overlap.
    seen: BTreeMap<Avma, Avma>,
}

impl<'a> Search<'a> {
    fn new(starts: &'a [Avma]) -> Self {
        Self { starts, blocked: Vec::new(), seen: BTreeMap::new() }
    }

    fn look(&mut self, word: u64) {
        let at = Avma(word);
        let within = self.starts.first() <= Some(&at) && Some(&at) <= self.starts.last();
        if within && self.starts.binary_search(&at).is_ok() {
            self.blocked.push(at);
        }
    }

    /// The end of the searched range that has this address.
    fn seen_to(&self, at: Avma) -> Option<Avma> {
        self.seen.range(..=at).next_back().map(|(_, &end)| end).filter(|&end| at < end)
    }

    fn has(&self, at: Avma) -> bool {
        self.seen_to(at).is_some()
    }

    /// Searches the stack whose pointer this is.
    fn stacks(&mut self, sp: Avma, segments: u64, read: &mut Read<'_>) -> Result<(), Error> {
        self.all(stack_at(sp).into(), segments, read)
    }

    /// Searches ranges, and the stacks to which signal frames in them lead.
    fn all(&mut self, mut left: Vec<AvmaRange>, segments: u64, read: &mut Read<'_>) -> Result<(), Error> {
        let mut frames = 0;
        while let Some(range) = left.pop() {
            let mut at = range.start;
            while at < range.end {
                if let Some(end) = self.seen_to(at) {
                    at = end;
                    continue;
                }
                let next = self.seen.range(at..).next().map_or(range.end, |(&s, _)| s.min(range.end));
                let asked = AvmaRange::new(at, next);
                let words = read(at, asked.len())?;
                let got = AvmaRange::with_len(at, 8 * words.len() as u64);
                if !got.is_empty() {
                    self.seen.insert(got.start, got.end);
                }
                for (i, &word) in words.iter().enumerate() {
                    self.look(word);
                    if word == segments
                        && frames < FRAMES
                        && let Some(frame) = words[..i].last_chunk()
                    {
                        frames += 1;
                        left.extend(interrupted(frame));
                    }
                }
                if got.end < next {
                    break;
                }
                at = next;
            }
        }
        Ok(())
    }
}

/// What is searched of the stack whose pointer this is: the red zone by itself, as it may begin below the mapping.
fn stack_at(sp: Avma) -> [AvmaRange; 2] {
    let sp = sp.align_down(8);
    [AvmaRange::new(sp.sub(RED_ZONE), sp), AvmaRange::with_len(sp, SEARCH)]
}

/// The stacks that a signal frame leads to: that of what was interrupted, and the alternate one that was set. `words`
/// is what goes before the segments in the kernel's `ucontext`: `uc_stack` (pointer, flags, size), then `sigcontext`:
/// r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, flags.
fn interrupted(words: &[u64; 21]) -> impl Iterator<Item = AvmaRange> {
    let [stack, flags, size, .., sp, _, _] = *words;
    let alternate = AvmaRange::with_len(Avma(stack).align_down(8), size.min(SEARCH));
    stack_at(Avma(sp)).into_iter().chain(Some(alternate).filter(|_| flags & DISABLED == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENTS: u64 = 0x002b_0000_0000_0033;
    const WANTED: Avma = Avma(0x40_1001);
    const MAIN: u64 = 0x7ffe_0000_0000;
    const ALTERNATE: u64 = 0x7f00_0000_0000;

    /// Stacks of a few words, each in mappings without a gap.
    struct Memory(BTreeMap<u64, Vec<u64>>);

    impl Memory {
        fn new(stacks: &[u64]) -> Self {
            Self(stacks.iter().map(|&at| (at, vec![0; 512])).collect())
        }

        fn put(&mut self, at: u64, words: &[u64]) {
            let (&base, stack) = self.0.range_mut(..=at).next_back().unwrap();
            let i = usize::try_from((at - base) / 8).unwrap();
            stack[i..i + words.len()].copy_from_slice(words);
        }

        /// A signal frame at `at`, of what was interrupted at `ip` with its stack at `sp`.
        fn frame(&mut self, at: u64, ip: u64, sp: u64, alternate: Option<u64>) {
            let mut words = [0; 25];
            (words[3], words[4], words[5]) = alternate.map_or((0, DISABLED, 0), |a| (a, 0, 4096));
            (words[21], words[22], words[23], words[24]) = (sp, ip, 0x246, SEGMENTS);
            self.put(at, &words);
        }

        fn read(&self, from: Avma, len: u64) -> Vec<u64> {
            let Some((&base, stack)) = self.0.range(..=from.0).next_back() else { return Vec::new() };
            let i = usize::try_from((from.0 - base) / 8).unwrap();
            let rest = stack.get(i..).unwrap_or_default();
            rest[..rest.len().min(usize::try_from(len / 8).unwrap())].to_vec()
        }

        fn found_from(&self, sp: u64) -> Vec<Avma> {
            let starts = [WANTED];
            let mut search = Search::new(&starts);
            search.stacks(Avma(sp), SEGMENTS, &mut |at, len| Ok(self.read(at, len))).unwrap();
            search.blocked
        }
    }

    #[test]
    fn a_frame_on_the_stack_itself() {
        let mut m = Memory::new(&[MAIN]);
        m.frame(MAIN + 0x400, WANTED.0, MAIN + 0x900, None);
        assert_eq!(m.found_from(MAIN + 0x300), [WANTED]);
        assert_eq!(m.found_from(MAIN), [WANTED], "the red zone is below the mapping");
        assert_eq!(m.found_from(MAIN + 0x600), [], "what is below the stack pointer is free");
    }

    /// A plain handler was itself interrupted by one on the alternate stack, on which the thread is now.
    #[test]
    fn a_frame_on_the_stack_below_the_alternate_one() {
        let mut m = Memory::new(&[MAIN, ALTERNATE]);
        m.frame(MAIN + 0x400, WANTED.0, MAIN + 0x900, Some(ALTERNATE));
        m.frame(ALTERNATE + 0x800, 0x40_5000, MAIN + 0x300, Some(ALTERNATE));
        assert_eq!(m.found_from(ALTERNATE + 0x700), [WANTED]);
    }

    /// A handler on the alternate stack left it for a coroutine, which was interrupted in turn.
    #[test]
    fn a_frame_on_the_alternate_stack_that_was_left() {
        let coroutine = 0x6000_0000_0000;
        let mut m = Memory::new(&[MAIN, ALTERNATE, coroutine]);
        m.frame(ALTERNATE + 0x800, WANTED.0, MAIN + 0x900, Some(ALTERNATE));
        m.frame(coroutine + 0x400, 0x40_5000, coroutine + 0x900, Some(ALTERNATE));
        assert_eq!(m.found_from(coroutine + 0x300), [WANTED]);
        m.frame(coroutine + 0x400, 0x40_5000, coroutine + 0x900, None);
        assert_eq!(m.found_from(coroutine + 0x300), []);
    }

    /// What looks like frames may lead anywhere: round in circles, to no memory, over the end of the address space.
    #[test]
    fn any_words_are_searched_in_bounded_time() {
        arbtest::arbtest(|u| {
            let mut m = Memory::new(&[MAIN, MAIN + 0x1000, ALTERNATE]);
            for _ in 0..u.int_in_range(0..=200)? {
                let place = |u: &mut arbtest::arbitrary::Unstructured<'_>| {
                    let base = *u.choose(&[MAIN, MAIN + 0x1000, ALTERNATE])?;
                    Ok(base + 8 * u.int_in_range(0..=480)?)
                };
                let (at, to) = (place(u)?, place(u)?);
                let to = if u.ratio(1, 4)? { u.arbitrary()? } else { to };
                m.frame(at, 0, to, Some(u.arbitrary()?));
            }
            let mut reads = 0;
            let starts = [WANTED];
            let mut search = Search::new(&starts);
            let mut read = |at, len| {
                reads += 1;
                Ok(m.read(at, len))
            };
            search.stacks(Avma(u.arbitrary()?), SEGMENTS, &mut read).unwrap();
            search.stacks(Avma(MAIN), SEGMENTS, &mut read).unwrap();
            // Each of a frame's two ranges may be cut by each that was searched before.
            assert!(reads <= 8 * FRAMES * FRAMES, "{reads}");
            let ranges: Vec<_> = search.seen.iter().collect();
            assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0), "{ranges:x?}");
            Ok(())
        })
        .budget_ms(500);
    }
}
