//! Tracks in what the twins may differ, and why.
//!
//! The state problem: the two worlds are equal except for code addresses. A `call` pushes one, so the stacks
//! differ. A program may read its return address, mangle it (`setjmp`), or look it up (the unwinder). A
//! comparison that accepts only "the two forms of one address" is wrong at the first mangled address. A
//! comparison that accepts more finds nothing. So differences are tracked like taint. A register or word that
//! differs has a [`Stain`]. An instruction may make a new difference only if it reads a stained value.
//!
//! | difference | allowed |
//! |---|---|
//! | a word pushed by a call, both forms of one address | yes: `Address` |
//! | the output of an instruction that reads an `Address` or `Derived` thing | yes: `Address` if both forms of one address, else `Derived` |
//! | a general register or flag while the clone is between the read of a cloned jump table and its jump | yes: `Dead` |
//! | a general register or flag changed by an instruction that only the clone has (of a counter or a guard) | yes: `Dead` |
//! | the word that was pushed by a call whose callee is inlined in the clone | yes: dead, byte by byte |
//! | any other | no |
//!
//! The analysis proves that a `Dead` value is dead. If an instruction reads the value after the jump, the
//! proof was wrong. A word below the stack pointer is dead by the ABI: the next user of the place writes it
//! first. But compilers lower and raise the stack by pushing and popping values that are not needed. This
//! moves a dead value elsewhere, where it is still dead.

use crate::decoded::{Access, FLAGS, State};
use addr::{Addr, Avma, AvmaRange};
use rustc_hash::FxHashMap;

/// Why something differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stain {
    /// The two forms of one code address.
    Address,
    /// Computed from a code address.
    Derived,
    /// Left by a cloned jump table, or by an instruction that only the clone has. No instruction may read it.
    Dead,
}

/// All stains.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stains {
    gprs: [Option<Stain>; 16],
    /// Flags that differ, as bits of `rflags`: derived ones here, dead ones in `dead_flags`.
    derived_flags: u64,
    dead_flags: u64,
    /// Vector registers whose low halves differ, as bits by number; bit 32 stands for all other extended
    /// state.
    vectors: u64,
    /// Stains of words of memory, by the word's address, a multiple of 8.
    memory: FxHashMap<u64, Stain>,
    /// The dead bytes of words, as bits, by the word's address.
    dead_memory: FxHashMap<u64, u8>,
}

/// The stained inputs of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Inputs {
    pub(crate) address: bool,
    pub(crate) derived: bool,
    /// A dead input: a general register's number, [`DEAD_FLAGS`] or [`DEAD_MEMORY`].
    pub(crate) dead: Option<usize>,
}

/// Stands for the flags in [`Inputs::dead`].
pub(crate) const DEAD_FLAGS: usize = 16;
/// Stands for memory in [`Inputs::dead`].
pub(crate) const DEAD_MEMORY: usize = 17;

impl Inputs {
    /// Returns whether the inputs can cause a difference in the outputs.
    pub(crate) fn explain(self) -> bool {
        self.address || self.derived
    }

    fn add(&mut self, stain: Stain) {
        match stain {
            Stain::Address => self.address = true,
            Stain::Derived | Stain::Dead => self.derived = true,
        }
    }
}

/// What allows a difference after an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause {
    /// The stained inputs of the instruction.
    pub(crate) inputs: Inputs,
    /// Flags that the instruction may have changed.
    pub(crate) flags: u64,
    /// True if a new difference is dead. Either the clone is now between the read of a cloned jump table and
    /// its jump, or a dead value was pushed or popped.
    pub(crate) dead: bool,
}

/// The bit for all extended state except the low halves of vector registers.
pub(crate) const REST: u32 = 32;

impl Stains {
    /// Returns the stained inputs of an instruction. In memory, the old difference of a word that is only
    /// written counts as well, because a part of the word may stay unchanged.
    pub(crate) fn inputs(&self, gprs: u16, flags: u64, vectors: Option<u32>, memory: &[Access]) -> Inputs {
        let mut inputs = Inputs::default();
        for (n, stain) in self.gprs.iter().enumerate().filter(|(n, _)| gprs >> n & 1 == 1) {
            match stain {
                Some(Stain::Dead) => inputs.dead = Some(n),
                Some(s) => inputs.add(*s),
                None => {}
            }
        }
        inputs.derived |= flags & self.derived_flags != 0;
        if flags & self.dead_flags != 0 {
            inputs.dead = Some(DEAD_FLAGS);
        }
        if let Some(read) = vectors {
            inputs.derived |= self.vectors & (u64::from(read) | 1 << REST) != 0;
        }
        if !self.memory.is_empty() {
            for word in memory.iter().flat_map(|m| words(&m.range)) {
                if let Some(s) = self.memory.get(&word) {
                    inputs.add(*s);
                }
            }
        }
        if !self.dead_memory.is_empty() {
            let dead = |(at, bytes)| self.dead_memory.get(&at).is_some_and(|dead| dead & bytes != 0);
            if memory.iter().filter(|m| m.reads).flat_map(|m| bytes_of_words(&m.range)).any(dead) {
                inputs.dead = Some(DEAD_MEMORY);
            }
        }
        inputs
    }

    /// Marks memory as dead that only one side has written: all of it may differ, and no instruction may read
    /// it.
    pub(crate) fn abandon(&mut self, range: &AvmaRange) {
        for (at, bytes) in bytes_of_words(range) {
            *self.dead_memory.entry(at).or_default() |= bytes;
        }
    }

    /// Marks memory as alive that has been overwritten.
    pub(crate) fn overwrite(&mut self, range: &AvmaRange) {
        if self.dead_memory.is_empty() {
            return;
        }
        for (at, bytes) in bytes_of_words(range) {
            if let Some(dead) = self.dead_memory.get_mut(&at) {
                *dead &= !bytes;
                if *dead == 0 {
                    self.dead_memory.remove(&at);
                }
            }
        }
    }

    /// Returns a mask of the bits of a word that are not dead.
    pub(crate) fn live_bits(&self, at: u64) -> u64 {
        let dead = self.dead_memory.get(&at).copied().unwrap_or(0);
        u64::from_le_bytes(std::array::from_fn(|i| if dead >> i & 1 == 1 { 0 } else { 0xff }))
    }

    /// Updates the stains of general registers after an instruction. Returns the number of the first register
    /// that differs without a reason.
    pub(crate) fn registers(
        &mut self,
        before: (&State, &State),
        now: (&State, &State),
        cause: Cause,
        same: &dyn Fn(u64, u64) -> bool,
    ) -> Option<usize> {
        for n in 0..16 {
            let (a, b) = (now.0.gprs[n], now.1.gprs[n]);
            if a == b {
                self.gprs[n] = None;
                continue;
            }
            let unchanged = (a, b) == (before.0.gprs[n], before.1.gprs[n]);
            // A dead register was not read. If it still differs, only a part of it was written.
            let dead = self.gprs[n] == Some(Stain::Dead) && !cause.inputs.explain();
            if (unchanged || dead) && self.gprs[n].is_some() {
                continue;
            }
            self.gprs[n] = Some(match cause {
                Cause { dead: true, .. } if !cause.inputs.explain() => Stain::Dead,
                _ if !cause.inputs.explain() => return Some(n),
                _ if same(a, b) => Stain::Address,
                _ => Stain::Derived,
            });
        }
        None
    }

    /// Updates the stains of flags after an instruction. Returns false if a flag differs without a reason.
    #[must_use]
    pub(crate) fn flags(&mut self, now: (&State, &State), cause: Cause) -> bool {
        let differ = (now.0.flags ^ now.1.flags) & FLAGS;
        let new = differ & cause.flags;
        self.derived_flags &= differ & !cause.flags;
        // As with registers: a shift by 0 leaves the flags as they are.
        self.dead_flags &= differ;
        if cause.inputs.explain() {
            self.derived_flags |= new;
        } else if cause.dead {
            self.dead_flags |= new;
        }
        differ & !(self.derived_flags | self.dead_flags) == 0
    }

    /// Records what an instruction that only the clones' side has did; `there` is the state of the originals'
    /// side. What the instruction changed is dead where it now differs. Returns false if the stack pointer
    /// changed.
    #[must_use]
    pub(crate) fn extra(&mut self, there: &State, before: &State, now: &State) -> bool {
        for n in (0..16).filter(|&n| before.gprs[n] != now.gprs[n]) {
            self.gprs[n] = (there.gprs[n] != now.gprs[n]).then_some(Stain::Dead);
        }
        let changed = (before.flags ^ now.flags) & FLAGS;
        let differ = (there.flags ^ now.flags) & changed;
        self.derived_flags &= !changed;
        self.dead_flags = self.dead_flags & !changed | differ;
        before.sp() == now.sp()
    }

    /// Updates the stains of the extended state after an instruction. `differ` has a bit for each part that
    /// differs (as in [`REST`]). Returns false if a part differs without a reason.
    #[must_use]
    pub(crate) fn vectors(&mut self, differ: u64, cause: Cause) -> bool {
        let old = self.vectors & differ;
        let fine = cause.inputs.explain() || differ == old;
        self.vectors = differ;
        fine
    }

    /// Removes the stain of a word of memory that is equal after an instruction.
    pub(crate) fn equal(&mut self, at: u64) {
        self.memory.remove(&at);
    }

    /// Updates the stain of a word of memory that differs after an instruction. `same`: the values are two
    /// forms of one code address. `pushed`: a call pushed the word. Returns false if there is no reason for
    /// the difference.
    #[must_use]
    pub(crate) fn word(&mut self, at: u64, same: bool, pushed: bool, inputs: Inputs) -> bool {
        let was = self.memory.get(&at).copied();
        let stain = match () {
            () if same && (pushed || inputs.explain()) => Stain::Address,
            // A part of the word was written; the rest still differs.
            () if !pushed && (inputs.explain() || was.is_some()) => Stain::Derived,
            () => return false,
        };
        self.memory.insert(at, stain);
        true
    }

    /// Returns whether a general register has a stain.
    pub(crate) fn is_stained(&self, n: usize) -> bool {
        self.gprs.get(n).is_some_and(Option::is_some)
    }

    /// Records a word that differs from the beginning, as a code address.
    pub(crate) fn begin_with(&mut self, at: u64) {
        self.memory.insert(at, Stain::Address);
    }
}

/// Returns the addresses, multiples of 8, of the words that have bytes in `range`.
pub(crate) fn words(range: &AvmaRange) -> impl Iterator<Item = u64> + use<> {
    let first = range.start.align_down(8).0;
    let count = if range.is_empty() { 0 } else { (range.end.sub(1).align_down(8).0 - first) / 8 + 1 };
    (0..count).map(move |i| first + 8 * i)
}

/// Returns the words that have bytes in `range`, each with its bytes in `range` as bits.
fn bytes_of_words(range: &AvmaRange) -> impl Iterator<Item = (u64, u8)> + use<> {
    let range = *range;
    words(&range).map(move |at| {
        let inside = |i: u64| range.contains(Avma(at).add(i));
        (at, (0..8).filter(|&i| inside(i)).fold(0, |bits, i| bits | 1u8 << i))
    })
}

/// Extends a range to whole words.
pub(crate) fn whole_words(range: &AvmaRange) -> AvmaRange {
    AvmaRange::with_len(range.start.align_down(8), words(range).count() as u64 * 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAME: &dyn Fn(u64, u64) -> bool = &|a, b| b == a + 0x1000;

    fn state(rax: u64, flags: u64) -> State {
        let mut s = State { flags, ..State::default() };
        s.gprs[0] = rax;
        s
    }

    fn access(at: u64, len: u64, reads: bool) -> Access {
        let range = AvmaRange::with_len(Avma(at), len);
        Access { range, reads, writes: !reads, overwrites: !reads }
    }

    fn cause(inputs: Inputs, dead: bool) -> Cause {
        Cause { inputs, flags: FLAGS, dead }
    }

    #[test]
    fn a_difference_needs_a_reason() {
        let (old, a, b) = (state(0, 0), state(5, 0), state(6, 0));
        let mut s = Stains::default();
        assert_eq!(s.registers((&old, &old), (&a, &b), cause(Inputs::default(), false), SAME), Some(0));
        assert!(!s.flags((&state(0, 1), &state(0, 0)), cause(Inputs::default(), false)));
        assert!(!s.vectors(1, cause(Inputs::default(), false)));
        assert!(!s.word(8, true, false, Inputs::default()));
        assert!(!s.word(8, false, true, Inputs::default()), "a call pushes both forms of one address");
    }

    #[test]
    fn address_stains_spread_through_reads() {
        let mut s = Stains::default();
        assert!(s.word(0x100, true, true, Inputs::default()));
        // pop %rax
        let read = |s: &Stains, at| s.inputs(0, 0, None, &[access(at, 8, true)]);
        let inputs = read(&s, 0x100);
        assert_eq!((inputs.address, inputs.derived), (true, false));
        assert!(read(&s, 0xfc).address && !read(&s, 0xf8).explain() && !read(&s, 0x108).explain());
        let (old, a, b) = (state(0, 0), state(0x10, 0), state(0x1010, 0));
        assert_eq!(s.registers((&old, &old), (&a, &b), cause(inputs, false), SAME), None);
        // rol %rax: no address any more.
        let inputs = s.inputs(1, 0, None, &[]);
        assert!(inputs.address);
        let (c, d) = (state(0x20, 1), state(0x2020, 0));
        assert_eq!(s.registers((&a, &b), (&c, &d), cause(inputs, false), SAME), None);
        assert!(s.flags((&c, &d), cause(inputs, false)));
        assert!(s.inputs(1, 0, None, &[]).derived && s.inputs(0, 1, None, &[]).derived);
        // Once overwritten, they are clean.
        assert_eq!(s.registers((&c, &d), (&a, &a), cause(Inputs::default(), false), SAME), None);
        assert!(s.flags((&a, &a), cause(Inputs::default(), false)));
        s.equal(0x100);
        assert_eq!(s.inputs(1, FLAGS, None, &[access(0x100, 8, true)]), Inputs::default());
    }

    #[test]
    fn the_read_of_a_dead_value_is_found() {
        let mut s = Stains::default();
        let (old, a, b) = (state(0, 0), state(5, 4), state(6, 0));
        assert_eq!(s.registers((&old, &old), (&a, &b), cause(Inputs::default(), true), SAME), None);
        assert!(s.flags((&a, &b), cause(Inputs::default(), true)));
        // The jump: nothing changes.
        let after = Cause { inputs: Inputs::default(), flags: 0, dead: false };
        assert_eq!(s.registers((&a, &b), (&a, &b), after, SAME), None);
        assert!(s.flags((&a, &b), after));
        assert_eq!(s.inputs(1, 0, None, &[]).dead, Some(0));
        assert_eq!(s.inputs(2, 4, None, &[]).dead, Some(16));
        assert_eq!(s.inputs(2, 1, None, &[]).dead, None);
    }

    #[test]
    fn changes_by_a_counter_are_dead() {
        let mut s = Stains::default();
        let (there, before, now) = (state(7, 0), state(7, 0), state(9, 4));
        assert!(s.extra(&there, &before, &now));
        assert_eq!((s.inputs(1, 0, None, &[]).dead, s.inputs(0, 4, None, &[]).dead), (Some(0), Some(16)));
        // `mov $1, %al` does not read the register; its other bytes still differ.
        let (a, b) = (state(0x101, 4), state(0x201, 0));
        assert_eq!(s.registers((&there, &now), (&a, &b), cause(Inputs::default(), false), SAME), None);
        assert!(s.flags((&a, &b), cause(Inputs::default(), false)));
        assert_eq!(s.inputs(1, 0, None, &[]).dead, Some(0));
        // With its old value again, it is clean.
        assert!(s.extra(&there, &now, &there));
        assert_eq!(s.inputs(1, FLAGS, None, &[]), Inputs::default());
        let mut pushed = there;
        pushed.gprs[4] = 8;
        assert!(!s.extra(&there, &there, &pushed));
    }

    #[test]
    fn a_word_pushed_on_one_side_is_dead_until_it_is_overwritten() {
        let mut s = Stains::default();
        s.abandon(&AvmaRange::with_len(Avma(0xfc), 8));
        let dead =
            |s: &Stains, at, len| s.inputs(0, 0, None, &[access(at, len, true)]).dead == Some(DEAD_MEMORY);
        assert!(dead(&s, 0xf8, 8) && dead(&s, 0xff, 1) && dead(&s, 0x103, 1));
        assert!(!dead(&s, 0xf8, 4) && !dead(&s, 0x104, 4) && !dead(&s, 0xf0, 8));
        assert_eq!(
            s.inputs(0, 0, None, &[access(0xf8, 16, false)]),
            Inputs::default(),
            "a store reads nothing"
        );
        assert_eq!((s.live_bits(0xf8), s.live_bits(0x100)), (0xffff_ffff, 0xffff_ffff_0000_0000));
        s.overwrite(&AvmaRange::with_len(Avma(0xfe), 4));
        assert!(dead(&s, 0xfc, 8) && dead(&s, 0xfd, 1) && !dead(&s, 0xfe, 4) && dead(&s, 0x102, 1));
        assert_eq!(s.live_bits(0xf8), 0xffff_0000_ffff_ffff);
        s.overwrite(&AvmaRange::with_len(Avma(0xf8), 16));
        assert!(s.dead_memory.is_empty());
    }

    #[test]
    fn words_of_ranges() {
        let of = |at, len| words(&AvmaRange::with_len(Avma(at), len)).collect::<Vec<_>>();
        assert_eq!(of(8, 8), [8]);
        assert_eq!(of(7, 2), [0, 8]);
        assert_eq!(of(15, 1), [8]);
        assert_eq!(of(16, 0), [] as [u64; 0]);
    }
}
