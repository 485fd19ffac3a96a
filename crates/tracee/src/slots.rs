//! Routines in the target that finish an interrupted system call for the program.
//!
//! A slot is one routine and its words of data. A thread enters at [`Slot::entry`], a `syscall` instruction,
//! with the arguments of the rest of its call. Behind the call the routine computes the result that the
//! program expects of the whole call. It restores the six argument registers and jumps back behind the
//! program's own `syscall` instruction. It changes no flag, no stack and only the registers that any system
//! call changes (`rax`, `rcx`, `r11`). So a thread returns without whet, which may have ended long before.
//!
//! The routine marks its slot as free by its last store. The instruction behind that store is the same in all
//! uses, so a new use harms no thread that is still about to execute it.
//!
//! A thread that leaves the routine in another way (by cancellation, or a jump out of a signal handler) keeps
//! its slot. When no slot is left, the slots of ended threads are freed, if the process has no signal
//! handlers of its own. Only such a handler can read the registers of a thread in a routine, and restore them
//! in another thread.
//!
//! LIMIT: one kind of handler is missed. It was installed after the thread had entered the routine, kept the
//! registers past the end of the thread, and was removed before the slot was needed.
//!
//! One byte lies before the entry. A signal handler may interrupt a thread at the entry, also because the
//! kernel restarts its call there. LLVM's libunwind takes that address for a return address and looks for the
//! byte before it (`UnwindCursor::setInfoBasedOnIPRegister`, LLVM 14), which must be in the routine's frame.
//!
//! Two adjacent mappings hold all slots of an area: code (`r-x`, filled from outside) and words (`rw-`), with
//! guards on both sides. A later whet finds an area by its shape and its mark. In areas of an earlier whet no byte
//! lies before the entry. They are used until this whet has made an area, and where its areas are full.

use crate::group::Group;
use crate::process::mapping_range;
use crate::remote::Gadgets;
use crate::{Error, Process, Status, clib};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use std::collections::BTreeSet;

const GUARD: u64 = 4096;
/// How many slots an area has: small slots for at most 16 pieces of memory, large slots for as many as a call
/// may name.
const SMALL: u64 = 96;
const LARGE: u64 = 32;
const SLOTS: u64 = SMALL + LARGE;
/// The number of threads for which one area is made.
const IN_AN_AREA: usize = 128;
/// The size of a routine with the byte before it. Bytes.
const CODE_EACH: u64 = 192;
/// The size of what lies before a routine. Bytes.
const LEAD: u64 = 1;
/// The space behind the routines for the frame tables that unwinders need. Bytes.
const TABLES: u64 = 16 << 10;
const CODE_LEN: u64 = SLOTS * CODE_EACH + TABLES;
/// The size of the words of a slot of each kind. Bytes.
const SMALL_EACH: u64 = 512;
const LARGE_EACH: u64 = VECTOR + 16 * UIO_MAXIOV;
/// The first bytes of an area's words; the marks of use follow.
const MARK: [u8; 16] = *b"whet's slots 4\0\0";
/// The same in areas of an earlier whet, which have no [`LEAD`].
const EARLIER_MARK: [u8; 16] = *b"whet's slots 3\0\0";
const BUSY: u64 = 64;
const SMALL_AT: u64 = 2048;
const LARGE_AT: u64 = SMALL_AT + SMALL * SMALL_EACH;
const WORDS_LEN: u64 = (LARGE_AT + LARGE * LARGE_EACH).next_multiple_of(4096);
/// The maximum number of areas in one target.
pub const MOST_AREAS: usize = 16;

const _: () = assert!(SLOTS == 128 && CODE_LEN.is_multiple_of(4096) && BUSY + 8 * SLOTS <= SMALL_AT);

/// The byte that fills the space between routines: `int3`.
const INT3: u8 = 0xcc;

/// Returns the [`LEAD`] of new areas. Tests set `WHET_EARLIER_SLOTS` for areas as an earlier whet made them.
fn new_lead() -> u64 {
    if std::env::var_os("WHET_EARLIER_SLOTS").is_some() { 0 } else { LEAD }
}

/// The kernel's limit for pieces of memory in one call.
pub(crate) const UIO_MAXIOV: u64 = 1024;

// Offsets of the words of a slot.
/// Added to the result of the call; the result itself if the call fails and [`PASS`] is 0.
pub(crate) const MOVED: u64 = 0;
/// 1 if the program gets the error of a failure.
pub(crate) const PASS: u64 = 8;
/// The program's own `syscall` instruction, if the call in the slot only waits until the program's call need
/// not.
pub(crate) const AGAIN: u64 = 16;
/// The result if the call in the slot ends by timeout.
pub(crate) const EXPIRED: u64 = 24;
/// The address behind the program's own `syscall` instruction.
pub(crate) const BACK: u64 = 32;
/// The number of the program's system call, and its arguments in order.
pub(crate) const NUMBER: u64 = 40;
pub(crate) const ARGS: u64 = 48;
/// When the timeout of the call ends, by `CLOCK_MONOTONIC`; 0 for never. Nanoseconds.
pub(crate) const DEADLINE: u64 = 96;
/// Identifies the files of a transfer's descriptors at its first interruption.
pub(crate) const FILES: u64 = 104;
/// The number of words up to here.
pub(crate) const WORDS: usize = 14;
// The data that arguments point to.
pub(crate) const TIME: u64 = 112;
pub(crate) const POLL: u64 = 128;
pub(crate) const MESSAGE: u64 = 136;
pub(crate) const CONTROL: u64 = 192;
pub(crate) const CONTROL_LEN: u64 = 64;
pub(crate) const VECTOR: u64 = 256;
/// Pieces of memory for which a small slot has room.
const SMALL_VECTOR: u64 = (SMALL_EACH - VECTOR) / 16;

/// The offset at which the routine continues behind a call that the kernel must not restart: see
/// [`Slot::once`].
const ONCE: u64 = 6;

/// An area of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Area {
    /// The start of its code.
    start: Avma,
    /// What lies before each routine: [`LEAD`], or 0 in an area of an earlier whet. Bytes.
    lead: u64,
}

/// Code in a target that finishes system calls which a stop has ended early. A thread in this code has its
/// program's stack pointer, and continues behind its program's system call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FinishingCode {
    /// The mapping.
    pub text: AvmaRange,
    /// The part of the mapping for frame tables.
    pub tables: AvmaRange,
    /// The frames of its routines, ascending, each with the address of the word that holds the routine's
    /// continuation.
    pub routines: Vec<(AvmaRange, Avma)>,
}

/// The areas of slots that a target is known to have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Areas {
    pub(crate) known: Vec<Area>,
    /// The areas whose frame tables are listed for unwinders.
    listed: Vec<Area>,
    /// Unwinders read that list, so threads may be sent to listed areas.
    open: bool,
    /// Whether the target's C library cancels threads at any instruction; `None` until that has been
    /// determined.
    cancels_anywhere: Option<bool>,
}

impl Areas {
    /// Returns whether threads may be sent to some area.
    pub(crate) fn can_be_used(&self) -> bool {
        self.open && !self.listed.is_empty()
    }
}

/// One routine with its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    area: Area,
    index: u64,
}

impl Area {
    /// Returns whether its routines are as this version makes them.
    fn is_current(self) -> bool {
        self.lead == LEAD
    }

    fn code(self) -> AvmaRange {
        AvmaRange::with_len(self.start, CODE_LEN)
    }

    fn words(self) -> Avma {
        self.start.add(CODE_LEN)
    }

    fn finishing_code(self) -> FinishingCode {
        let routine = |index| {
            let slot = Slot { area: self, index };
            (slot.frame(), slot.words().add(BACK))
        };
        FinishingCode {
            text: self.code(),
            tables: AvmaRange::with_len(self.start.add(SLOTS * CODE_EACH), TABLES),
            routines: (0..SLOTS).map(routine).collect(),
        }
    }

    /// Reserves a free slot with room for `pieces` pieces of memory.
    fn take(self, process: &Process, pieces: usize, user: User) -> Option<Slot> {
        let first = if pieces as u64 <= SMALL_VECTOR { 0 } else { SMALL };
        let users = self.users(process)?;
        let (index, _) = (0..SLOTS).zip(users).find(|&(index, word)| index >= first && word == 0)?;
        let slot = Slot { area: self, index };
        process.write(slot.busy(), &user.word().to_le_bytes()).ok()?;
        Some(slot)
    }

    /// Returns the marks of use, by slot; 0 for a free slot.
    fn users(self, process: &Process) -> Option<Vec<u64>> {
        let words = process.bytes(AvmaRange::with_len(self.words().add(BUSY), 8 * SLOTS)).ok()?;
        Some(words.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect())
    }

    /// Frees the slots of threads that have ended.
    fn reclaim(self, process: &Process, living: &BTreeSet<u32>) {
        for (index, word) in (0..SLOTS).zip(self.users(process).unwrap_or_default()) {
            if User::of(word).is_some_and(|user| !user.handlers && !living.contains(&user.thread)) {
                Slot { area: self, index }.free(process);
            }
        }
    }
}

/// The thread that uses a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct User {
    /// Its id in the target's own pid namespace, which is the same for whets in all pid namespaces.
    thread: u32,
    /// Whether the process had signal handlers of its own at that time.
    handlers: bool,
}

impl User {
    const HANDLERS: u64 = 1 << 32;

    fn new(status: &Status) -> Option<Self> {
        let thread = u32::try_from(*status.ns_pid.last()?).ok().filter(|&id| id != 0)?;
        Some(Self { thread, handlers: status.has_handlers() })
    }

    fn word(self) -> u64 {
        u64::from(self.thread) | if self.handlers { Self::HANDLERS } else { 0 }
    }

    fn of(word: u64) -> Option<Self> {
        let thread = u32::try_from(word & !Self::HANDLERS).ok().filter(|&id| id != 0)?;
        Some(Self { thread, handlers: word & Self::HANDLERS != 0 })
    }
}

impl Slot {
    /// Returns the slot that an instruction belongs to.
    pub(crate) fn of(process: &Process, ip: Avma) -> Option<Self> {
        let holds = |area: &&Area| area.code().contains(ip);
        let area = process.change_slot_areas(|areas| areas.known.iter().find(holds).copied())?;
        let index = ip.since(area.start)? / CODE_EACH;
        (index < SLOTS).then_some(Self { area, index })
    }

    /// Returns the addresses at which unwinders look for the routine.
    fn frame(self) -> AvmaRange {
        AvmaRange::with_len(self.area.start.add(self.index * CODE_EACH), CODE_EACH)
    }

    /// Returns the address of the `syscall` instruction at which a thread enters.
    pub(crate) fn entry(self) -> Avma {
        self.frame().start.add(self.area.lead)
    }

    /// Returns the address behind the `syscall` instruction. The kernel restarts a call from here at
    /// [`Slot::entry`].
    pub(crate) fn behind(self) -> Avma {
        self.entry().add(2)
    }

    /// As [`Slot::behind`], for a call that the kernel must not restart. The instruction before leads to the
    /// end of the routine. So the next wake-up of the thread ends the call with what it has moved, as for an
    /// uninterrupted call.
    pub(crate) fn once(self) -> Avma {
        self.entry().add(ONCE)
    }

    pub(crate) fn words(self) -> Avma {
        let words = self.area.words();
        match self.index.checked_sub(SMALL) {
            None => words.add(SMALL_AT + self.index * SMALL_EACH),
            Some(large) => words.add(LARGE_AT + large * LARGE_EACH),
        }
    }

    /// Returns for how many pieces of memory the slot has room.
    pub(crate) fn room(self) -> u64 {
        if self.index < SMALL { SMALL_VECTOR } else { UIO_MAXIOV }
    }

    fn busy(self) -> Avma {
        self.area.words().add(BUSY + 8 * self.index)
    }

    /// Returns whether the slot is free; true if its mark cannot be read.
    pub(crate) fn is_free(self, process: &Process) -> bool {
        process.u64(self.busy()).unwrap_or(0) == 0
    }

    /// Frees a slot that no thread has entered.
    pub(crate) fn free(self, process: &Process) {
        // If the process has ended, nothing has to be freed.
        let _ = process.write(self.busy(), &[0; 8]);
    }

    /// Returns the bytes of the routine.
    fn routine(self) -> Vec<u8> {
        let mut a = Routine { at: self.entry(), bytes: Vec::new(), jumps: Vec::new(), labels: Vec::new() };
        let word = |offset| self.words().add(offset);
        a.put(&[0x0f, 0x05]); // syscall
        a.jump(JMP, "done");
        a.jump(JMP, "part"); // once: the kernel restarts a call from `done` here
        a.label("done");
        a.put(&[0x48, 0x99]); // cqo
        a.put(&[0x48, 0x89, 0xd1]); // mov rcx, rdx
        a.jump(JRCXZ, "good");
        a.load(RCX, word(PASS));
        a.jump(JRCXZ, "part");
        a.jump(JMP, "restore");
        a.label("good");
        a.load(RCX, word(AGAIN));
        a.jump(JRCXZ, "sum");
        a.put(&[0x48, 0x89, 0xc1]); // mov rcx, rax
        a.jump(JRCXZ, "expired");
        a.load(RAX, word(NUMBER));
        a.load(RCX, word(AGAIN));
        a.jump(JMP, "leave");
        a.label("expired");
        a.load(RAX, word(EXPIRED));
        a.jump(JMP, "restore");
        a.label("sum");
        a.load(RCX, word(MOVED));
        a.put(&[0x48, 0x8d, 0x04, 0x08]); // lea rax, [rax + rcx]
        a.jump(JMP, "restore");
        a.label("part");
        a.load(RAX, word(MOVED));
        a.label("restore");
        a.load(RCX, word(BACK));
        a.label("leave");
        for (i, register) in [RDI, RSI, RDX, R10, R8, R9].into_iter().enumerate() {
            a.load(register, word(ARGS + 8 * i as u64));
        }
        a.clear(self.busy());
        a.put(&[0xff, 0xe1]); // jmp rcx
        a.finish()
    }
}

/// The second and the first byte of `mov r64, [rip + disp32]`, by register: ModRM and REX.
type Register = (u8, u8);
const RAX: Register = (0x05, 0x48);
const RCX: Register = (0x0d, 0x48);
const RDX: Register = (0x15, 0x48);
const RSI: Register = (0x35, 0x48);
const RDI: Register = (0x3d, 0x48);
const R8: Register = (0x05, 0x4c);
const R9: Register = (0x0d, 0x4c);
const R10: Register = (0x15, 0x4c);
/// Two-byte jumps.
const JMP: u8 = 0xeb;
const JRCXZ: u8 = 0xe3;

/// A routine under construction, of instructions that change no flag.
struct Routine {
    at: Avma,
    bytes: Vec<u8>,
    jumps: Vec<(usize, &'static str)>,
    labels: Vec<(&'static str, usize)>,
}

impl Routine {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    fn label(&mut self, name: &'static str) {
        self.labels.push((name, self.bytes.len()));
    }

    fn jump(&mut self, opcode: u8, to: &'static str) {
        self.put(&[opcode, 0]);
        self.jumps.push((self.bytes.len(), to));
    }

    fn load(&mut self, (modrm, rex): Register, from: Avma) {
        self.put(&[rex, 0x8b, modrm]);
        self.displacement(from, 4);
    }

    /// `mov qword [rip + disp32], 0`
    fn clear(&mut self, at: Avma) {
        self.put(&[0x48, 0xc7, 0x05]);
        self.displacement(at, 8);
        self.put(&[0; 4]);
    }

    /// Appends a displacement to `to`; the instruction ends `rest` bytes behind the start of the
    /// displacement.
    fn displacement(&mut self, to: Avma, rest: u64) {
        let next = self.at.add(self.bytes.len() as u64 + rest);
        let bytes = to.0.wrapping_sub(next.0).to_le_bytes();
        self.put(&bytes[..4]);
    }

    fn finish(mut self) -> Vec<u8> {
        for (end, name) in self.jumps {
            let to = self.labels.iter().find(|(label, _)| *label == name).map_or(end, |(_, at)| *at);
            let distance = to.wrapping_sub(end);
            debug_assert!(i8::try_from(distance.cast_signed()).is_ok());
            self.bytes[end - 1] = distance.to_le_bytes()[0];
        }
        self.bytes
    }
}

impl Process {
    /// Returns the code that finishes system calls in this process and was not passed to
    /// [`Process::finishing_code_is_listed`] yet.
    #[must_use]
    pub fn unlisted_finishing_code(&self) -> Vec<FinishingCode> {
        let areas = self.slot_areas();
        let unlisted = areas.known.iter().filter(|a| !areas.listed.contains(a));
        unlisted.map(|a| a.finishing_code()).collect()
    }

    /// Records that the frame tables of this code are on the list that unwinders read.
    pub fn finishing_code_is_listed(&self, code: &FinishingCode) {
        self.change_slot_areas(|areas| {
            let is_meant = |a: &&Area| a.start == code.text.start && !areas.listed.contains(a);
            let listed = areas.known.iter().find(is_meant).copied();
            areas.listed.extend(listed);
        });
    }

    /// Lets stops through this handle send threads into listed code. The caller ensures that unwinders read
    /// the list.
    pub fn open_slots(&self) {
        self.change_slot_areas(|areas| areas.open = true);
        // Determined before the first stop that needs it.
        self.cancels_anywhere();
    }

    /// Returns whether [`Process::open_slots`] was called.
    #[must_use]
    pub fn has_open_slots(&self) -> bool {
        self.change_slot_areas(|areas| areas.open)
    }

    /// Returns whether the C library cancels a waiting thread at any instruction; determined once.
    pub(crate) fn cancels_anywhere(&self) -> bool {
        let known = self.change_slot_areas(|areas| areas.cancels_anywhere);
        known.unwrap_or_else(|| {
            let found = clib::cancels_anywhere(self);
            self.change_slot_areas(|areas| areas.cancels_anywhere = Some(found));
            found
        })
    }
}

/// Finds the areas that earlier whets have made.
pub(crate) fn find(process: &Process, maps: &str) -> Areas {
    let marked = |start| {
        let area = |lead| Area { start, lead };
        let mark = process.bytes(AvmaRange::with_len(area(LEAD).words(), MARK.len() as u64)).ok()?;
        if mark == MARK {
            return Some(area(LEAD));
        }
        (mark == EARLIER_MARK).then(|| area(0))
    };
    Areas { known: shaped(maps).into_iter().filter_map(marked).collect(), ..Areas::default() }
}

/// Returns the start of the code of each group of mappings with the shape of an area.
fn shaped(maps: &str) -> Vec<Avma> {
    let parsed: Vec<(AvmaRange, &str)> =
        maps.lines().filter_map(|l| Some((mapping_range(l)?, l.split(' ').nth(1)?))).collect();
    parsed
        .windows(4)
        .filter(|w| (w[1].0.len(), w[2].0.len()) == (CODE_LEN, WORDS_LEN))
        .filter(|w| [w[0].1, w[1].1, w[2].1, w[3].1] == ["---p", "r-xp", "rw-p", "---p"])
        .filter(|w| w.windows(2).all(|w| w[0].0.end == w[1].0.start))
        .map(|w| w[1].0.start)
        .collect()
}

impl Group {
    /// Returns a free slot for a thread with that status. Returns `None` if no slot is free, or if unwinders
    /// do not read the list of areas yet ([`Process::open_slots`]).
    pub(crate) fn slot(&mut self, pieces: usize, status: &Status) -> Option<Slot> {
        let user = User::new(status)?;
        let areas = self.process.slot_areas();
        let (current, earlier): (Vec<Area>, Vec<Area>) = areas.listed.iter().partition(|a| a.is_current());
        let by_preference = [current, earlier].concat();
        let take = |group: &Self| by_preference.iter().find_map(|a| a.take(&group.process, pieces, user));
        if !areas.open {
            return None;
        }
        let slot = take(self);
        if slot.is_some() || user.handlers || std::mem::replace(&mut self.reclaimed, true) {
            return slot;
        }
        let living = self.living()?;
        areas.listed.iter().for_each(|a| a.reclaim(&self.process, &living));
        take(self)
    }

    /// Returns the ids of all threads in the target's pid namespace; `None` if an id cannot be determined.
    fn living(&self) -> Option<BTreeSet<u32>> {
        let id = |tid| match self.process.thread_status(tid) {
            Ok(status) => User::new(&status).map(|u| Some(u.thread)),
            Err(Error::ThreadGone(_)) => Some(None),
            Err(_) => None,
        };
        let ids: Option<Vec<Option<u32>>> = self.process.threads().ok()?.into_iter().map(id).collect();
        Some(ids?.into_iter().flatten().collect())
    }

    /// Makes a thread at rest map areas until `threads` threads have room, as far as the target can map them.
    pub(crate) fn make_areas_for(&mut self, threads: usize) {
        let wanted = (threads / IN_AN_AREA + 1).min(MOST_AREAS);
        let known = self.process.slot_areas().known;
        let missing = wanted.saturating_sub(known.iter().filter(|a| a.is_current()).count());
        if missing == 0 {
            return;
        }
        if let Ok(areas) = Gadgets::of(&self.process).and_then(|g| self.make_areas(g, missing as u64)) {
            self.process.change_slot_areas(|known| known.known.extend(areas));
        }
    }

    /// Maps all areas by one mapping, as each call delays the threads. Returns the areas that could be made.
    fn make_areas(&mut self, gadgets: Gadgets, count: u64) -> Result<Vec<Area>, Error> {
        let arg = |i: i32| i64::from(i).cast_unsigned();
        let flags = arg(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        let each = CODE_LEN + WORDS_LEN + 2 * GUARD;
        let map = [0, each * count, arg(libc::PROT_NONE), flags, u64::MAX, 0];
        let at = Avma(self.syscall_anywhere(gadgets, libc::SYS_mmap, map)?.cast_unsigned());
        let mut made = Vec::new();
        for i in 0..count {
            let start = at.add(i * each);
            let area = Area { start: start.add(GUARD), lead: new_lead() };
            if let Err(e) = self.fill(gadgets, area) {
                let rest = [start.0, (count - i) * each, 0, 0, 0, 0];
                self.syscall_anywhere(gadgets, libc::SYS_munmap, rest)?;
                return if made.is_empty() { Err(e) } else { Ok(made) };
            }
            made.push(area);
        }
        Ok(made)
    }

    fn fill(&mut self, gadgets: Gadgets, area: Area) -> Result<(), Error> {
        let arg = |i: i32| i64::from(i).cast_unsigned();
        for (range, access) in [
            (area.code(), libc::PROT_READ | libc::PROT_EXEC),
            (AvmaRange::with_len(area.words(), WORDS_LEN), libc::PROT_READ | libc::PROT_WRITE),
        ] {
            let protect = [range.start.0, range.len(), arg(access), 0, 0, 0];
            self.syscall_anywhere(gadgets, libc::SYS_mprotect, protect)?;
        }
        let mut code = Vec::new();
        for index in 0..SLOTS {
            let upto = |bytes| usize::try_from(index * CODE_EACH + bytes).unwrap_or(0);
            code.resize(upto(area.lead), INT3);
            code.extend(Slot { area, index }.routine());
            code.resize(upto(CODE_EACH), INT3);
        }
        self.process.write(area.start, &code)?;
        self.process.write(area.words(), if area.is_current() { &MARK } else { &EARLIER_MARK })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: Area = Area { start: Avma(0x7000_0000_1000), lead: LEAD };

    #[test]
    fn mappings_are_recognized_by_shape() {
        let (code, words) = (0x1000 + CODE_LEN, 0x1000 + CODE_LEN + WORDS_LEN);
        let maps = |perms: &str| {
            format!(
                "0-1000 ---p 0 00:00 0 \n1000-{code:x} {perms} 0 00:00 0 \n{code:x}-{words:x} rw-p 0 00:00 0 \n\
                {words:x}-{:x} ---p 0 00:00 0 \n",
                words + 0x1000
            )
        };
        assert_eq!(shaped(&maps("r-xp")), [Avma(0x1000)]);
        // The guards between two areas are one mapping.
        let second = words + 0x2000;
        let (code, end) = (second + CODE_LEN, second + CODE_LEN + WORDS_LEN);
        let both = maps("r-xp")
            .replace(&format!("{words:x}-{:x} ---p", words + 0x1000), &format!("{words:x}-{second:x} ---p"));
        let both = format!(
            "{both}{second:x}-{code:x} r-xp 0 00:00 0 \n{code:x}-{end:x} rw-p 0 00:00 0 \n{end:x}-{:x} ---p 0 00:00 0 \n",
            end + 0x1000
        );
        assert_eq!(shaped(&both), [Avma(0x1000), Avma(second)]);
        assert_eq!(shaped(&maps("r--p")), []);
    }

    #[test]
    fn a_user_reads_back() {
        let status = |sig_cgt| Status { ns_pid: vec![4_000_000, 17], sig_cgt, ..Status::default() };
        for sig_cgt in [0, 1 << 31 | 1 << 32, 1 << 9] {
            let user = User::new(&status(sig_cgt)).unwrap();
            assert_eq!((user.thread, user.handlers), (17, sig_cgt == 1 << 9));
            assert_eq!(User::of(user.word()), Some(user));
        }
        assert_eq!(User::of(0), None);
    }

    #[test]
    fn the_byte_before_an_entry_belongs_to_its_frame() {
        let code = AREA.finishing_code();
        for (index, (frame, back)) in (0..SLOTS).zip(&code.routines) {
            let slot = Slot { area: AREA, index };
            assert!(frame.contains(slot.entry().offset(-1)) && code.text.contains(frame.start));
            assert!(frame.contains(slot.entry().add(slot.routine().len() as u64 - 1)));
            assert_eq!(*back, slot.words().add(BACK));
        }
        assert!(code.routines.windows(2).all(|w| w[0].0.end == w[1].0.start));
    }

    #[test]
    fn routines_fit_and_jump_to_their_labels() {
        for index in [0, SMALL - 1, SMALL, SLOTS - 1] {
            let slot = Slot { area: AREA, index };
            let code = slot.routine();
            assert!(LEAD + code.len() as u64 <= CODE_EACH, "{}", code.len());
            assert_eq!(code[..2], [0x0f, 0x05]);
            // `done`, where a call that is not restarted continues, lies right behind a two-byte jump.
            let done = usize::try_from(ONCE).unwrap();
            assert_eq!((code[2], usize::from(code[3]) + 4), (JMP, done));
            assert_eq!((code[4], &code[done..done + 2]), (JMP, &[0x48, 0x99][..]));
            assert_eq!(code[code.len() - 2..], [0xff, 0xe1]);
        }
        let last = Slot { area: AREA, index: SLOTS - 1 };
        let end = last.words().add(VECTOR + 16 * last.room());
        assert!(end <= AREA.words().add(WORDS_LEN));
        let small = Slot { area: AREA, index: SMALL - 1 };
        assert_eq!(small.words().add(VECTOR + 16 * small.room()), Slot { area: AREA, index: SMALL }.words());
    }
}
