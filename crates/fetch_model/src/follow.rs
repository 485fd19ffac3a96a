//! The same path, with the clones in force.
//!
//! A path through originals names, at each instruction, the next one. The follower computes where the same
//! thread would be with the redirects written. It is in a clone, at the instruction that stands for the
//! original's, or it is in the original, if no redirect was passed. Jumps that only one side has are executed
//! or skipped. An inlined or guarded call is executed as the clone has it. Stubs that clones bypass are left
//! out. The follower decodes the bytes that are in memory. Where data decides that is not known (does this
//! pointer come from a virtual table that was changed?), it assumes what the redirects say.
//!
//! INVARIANT(stands-for): before each instruction of the path, the follower is at the clone instruction that
//! stands for it, at extra instructions that lead there, or at the original instruction itself. Or it is in
//! code that only one side has: a stub, or an inlined callee. If this does not hold, the follower counts it
//! ([`Follower::lost`]) and continues in the original.

use crate::step::{Flow, Inst, Pointer, Step};
use addr::{Addr, Avma, AvmaRange};
use emit::{AddressMap, Link};
use iced_x86::{Code, Decoder, DecoderOptions};
use rustc_hash::{FxHashMap, FxHashSet};

/// Limit of the instructions that only the clones' side executes before one instruction of the path, such as
/// jumps to jumps.
const MOST_EXTRA: usize = 64;

/// A clone as it lies in memory.
#[derive(Clone, Debug)]
pub struct CloneCode<'a> {
    /// Which clone instruction stands for which original one.
    pub map: &'a AddressMap,
    /// Its fragments with their bytes.
    pub bytes: Vec<(AvmaRange, Vec<u8>)>,
}

/// The redirects that lead into clones.
#[derive(Clone, Debug, Default)]
pub struct Redirects {
    /// Jumps that replace instructions of originals: their destinations, by the instruction's address.
    pub entries: FxHashMap<Avma, Avma>,
    /// Direct calls and jumps of originals that are redirected where they are taken: their destinations, by
    /// the address behind the instruction.
    pub branches: FxHashMap<Avma, Avma>,
    /// Redirected entries of virtual tables: their destinations, by the original function's entry.
    pub tables: FxHashMap<Avma, Avma>,
    /// Redirected slots of procedure linkage tables: their destinations, by the slot's address.
    pub slots: FxHashMap<Avma, Avma>,
}

/// The clones, redirects and memory that a path is followed in.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// Addresses of the originals' jumps whose jump tables are cloned.
    pub switches: &'a FxHashSet<Avma>,
    /// The clones.
    pub clones: &'a [CloneCode<'a>],
    /// The redirects into the clones.
    pub redirects: &'a Redirects,
    /// Returns the word at an address, as it is without redirects.
    pub word: &'a dyn Fn(Avma) -> Option<Avma>,
    /// Returns whether an instruction belongs to a stub of the procedure linkage table.
    pub in_stub: &'a dyn Fn(Avma) -> bool,
    /// The most frequent callee of indirect calls, by the call's address. Decides guards whose expected
    /// callee is not visible in the clone.
    pub mostly: &'a FxHashMap<Avma, Avma>,
}

impl std::fmt::Debug for Setting<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setting").field("clones", &self.clones.len()).finish_non_exhaustive()
    }
}

/// An instruction of a clone.
#[derive(Clone, Copy, Debug)]
struct Own {
    inst: Inst,
    link: Link,
    original: Avma,
}

/// The place of a thread, with clones in force.
#[derive(Debug)]
pub struct Follower<'a> {
    setting: Setting<'a>,
    insts: FxHashMap<Avma, Own>,
    /// Clone instructions, by the original instruction's address.
    clones: FxHashMap<Avma, Avma>,
    /// Addresses behind the `endbr64` with which clones begin, by the original's entry. Direct branches lead
    /// there.
    behind_marks: FxHashMap<Avma, Avma>,
    /// Original instructions that have no bytes in the clone.
    dropped: FxHashSet<Avma>,
    /// The thread's address; `None` before the first step: where the path begins.
    at: Option<Avma>,
    returns: Vec<Avma>,
    /// The address of the inlined call, while the path is in its callee.
    within: Option<Avma>,
    lost: u64,
}

impl<'a> Follower<'a> {
    /// Makes a follower at the start of a path.
    #[must_use]
    pub fn new(setting: Setting<'a>) -> Self {
        let mut this = Self {
            setting,
            insts: FxHashMap::default(),
            clones: FxHashMap::default(),
            behind_marks: FxHashMap::default(),
            dropped: FxHashSet::default(),
            at: None,
            returns: Vec::new(),
            within: None,
            lost: 0,
        };
        setting.clones.iter().for_each(|c| this.take(c));
        this
    }

    fn take(&mut self, clone: &CloneCode<'_>) {
        let fragments = clone.map.fragments();
        for e in clone.map.entries() {
            let at = fragments.address(e.at);
            if matches!(e.link, Link::Copy | Link::Dropped) {
                self.clones.insert(e.original, at);
            }
            if e.link == Link::Dropped {
                self.dropped.insert(e.original);
                continue;
            }
            let bytes = clone.bytes.iter().find(|(r, _)| r.contains(at)).and_then(|(r, bytes)| {
                let from = usize::try_from(at.since(r.start)?).ok()?;
                bytes.get(from..)
            });
            let decoded =
                Decoder::with_ip(64, bytes.unwrap_or_default(), at.0, DecoderOptions::NONE).decode();
            if e.at == 0 && e.link == Link::Copy && decoded.code() == Code::Endbr64 {
                self.behind_marks.insert(e.original, Avma(decoded.next_ip()));
            }
            if !decoded.is_invalid() {
                self.insts.insert(at, Own { inst: Inst::of(&decoded), link: e.link, original: e.original });
            }
        }
    }

    /// Returns how often the thread was not where the path was. It is 0, except where data that is not known
    /// decides.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Follows one step of the path. Passes each instruction that is executed on the clones' side to `tell`.
    pub fn follow(&mut self, path: &Step, tell: &mut dyn FnMut(Step)) {
        if let Some(call) = self.within {
            return self.inlined(call, path, tell);
        }
        let mut at = self.at.unwrap_or(path.at);
        if self.behind_marks.get(&path.at) == Some(&at) {
            // A return at this address stands for the whole callee.
            if path.flow == Flow::Return {
                self.passed_by(at, path, tell);
            }
            return;
        }
        for _ in 0..MOST_EXTRA {
            if self.dropped.contains(&path.at) && self.clones.get(&path.at) == Some(&at) {
                if path.flow == Flow::Return {
                    return self.passed_by(at, path, tell);
                }
                if path.flow.is_call() {
                    self.within = Some(path.at);
                }
                self.at = Some(at);
                return;
            }
            at = match self.insts.get(&at).copied() {
                Some(own) if own.link == Link::Extra => self.extra(at, own, tell),
                Some(own) if own.original != path.at => break,
                Some(own) if own.link == Link::Within => match self.guard(at, own, path, tell) {
                    Some(to) => to,
                    None => return,
                },
                Some(own) => return self.copy(at, own, path, tell),
                None => match self.setting.redirects.entries.get(&at) {
                    Some(&to) => {
                        tell(Step { at, len: JUMP_LEN, flow: Flow::Jump, next: to });
                        to
                    }
                    None if at == path.at => return self.original(path, tell),
                    None => break,
                },
            };
        }
        self.at = Some(at);
        // Clones call the destination of a stub, so the stub's instructions have no counterpart.
        if !(self.setting.in_stub)(path.at) {
            self.lost += 1;
            tell(*path);
            self.at = Some(path.next);
        }
    }

    /// Executes an instruction that only the clone has. Returns the address of the next one.
    fn extra(&self, at: Avma, own: Own, tell: &mut dyn FnMut(Step)) -> Avma {
        let after = at.add(u64::from(own.inst.len));
        let next = own.inst.target.filter(|_| own.inst.flow == Flow::Jump).unwrap_or(after);
        tell(own.inst.step(at, next));
        next
    }

    /// Continues in the callee that is inlined for the call at `call`, up to the branch or return that the
    /// path has reached.
    fn inlined(&mut self, call: Avma, path: &Step, tell: &mut dyn FnMut(Step)) {
        if !matches!(path.flow, Flow::Conditional | Flow::Return) {
            return;
        }
        let mut at = self.at.unwrap_or(path.at);
        while let Some(Own { inst, .. }) =
            self.insts.get(&at).copied().filter(|o| o.link == Link::Within && o.original == call)
        {
            let next = at.add(u64::from(inst.len));
            if inst.flow != Flow::Conditional {
                tell(inst.step(at, next));
                at = next;
                continue;
            }
            // Where control leaves the inlined path, the rest of the callee is called.
            let aside = inst.target.and_then(|at| Some((at, self.insts.get(&at)?.inst)));
            let rest = aside.and_then(|(at, inst)| Some((at, inst, inst.target?)));
            match rest.filter(|r| path.flow == Flow::Conditional && self.is_at(r.2, path.next)) {
                Some((aside, rest, to)) => {
                    tell(inst.step(at, aside));
                    tell(rest.step(aside, to));
                    self.returns.push(aside.add(u64::from(rest.len)));
                    self.within = None;
                    self.at = Some(to);
                    return;
                }
                None => {
                    tell(inst.step(at, next));
                    at = next;
                    if path.flow == Flow::Conditional {
                        break;
                    }
                }
            }
        }
        if path.flow == Flow::Return {
            self.within = None;
        }
        self.at = Some(at);
    }

    /// Executes the branch of a guard. If the guard holds, also executes the direct call behind it or enters
    /// the inlined callee, and returns `None`. Otherwise returns the address of the unchanged call.
    fn guard(&mut self, at: Avma, own: Own, path: &Step, tell: &mut dyn FnMut(Step)) -> Option<Avma> {
        let after = at.add(u64::from(own.inst.len));
        let direct = self.insts.get(&after).filter(|o| o.link == Link::Within && o.inst.flow == Flow::Call);
        let holds = match direct.and_then(|o| o.inst.target) {
            Some(to) => self.is_at(to, path.next),
            None => self.setting.mostly.get(&path.at).is_none_or(|callee| *callee == path.next),
        };
        if let Some(otherwise) = own.inst.target.filter(|_| !holds) {
            tell(own.inst.step(at, otherwise));
            return Some(otherwise);
        }
        tell(own.inst.step(at, after));
        self.at = Some(match direct.copied() {
            Some(Own { inst, .. }) => {
                let to = inst.target.unwrap_or(path.next);
                tell(inst.step(after, to));
                self.returns.push(after.add(u64::from(inst.len)));
                to
            }
            None => {
                self.within = Some(path.at);
                after
            }
        });
        None
    }

    /// Returns whether a thread at `at` is where the path is at `original`.
    fn is_at(&self, at: Avma, original: Avma) -> bool {
        at == original
            || self.clones.get(&original) == Some(&at)
            || self.behind_marks.get(&original) == Some(&at)
            || self.insts.get(&at).is_some_and(|o| o.original == original && o.link != Link::Within)
            || self.setting.redirects.entries.get(&original) == Some(&at)
    }

    /// Executes the clone's copy of the path's instruction.
    fn copy(&mut self, at: Avma, own: Own, path: &Step, tell: &mut dyn FnMut(Step)) {
        let inst = own.inst;
        if path.flow == Flow::Return && inst.flow != Flow::Return {
            return self.passed_by(at, path, tell);
        }
        let after = at.add(u64::from(inst.len));
        let next = match inst.flow {
            Flow::On => after,
            Flow::Conditional => inst.target.filter(|&to| self.is_at(to, path.next)).unwrap_or(after),
            Flow::Jump | Flow::Call => inst.target.unwrap_or(path.next),
            Flow::IndirectJump(_) if self.setting.switches.contains(&path.at) => {
                self.clones.get(&path.next).copied().unwrap_or(path.next)
            }
            Flow::IndirectJump(p) | Flow::IndirectCall(p) => self.redirected(p, path.next),
            Flow::Return => self.returns.pop().unwrap_or(path.next),
        };
        if inst.flow.is_call() {
            self.returns.push(after);
        }
        tell(inst.step(at, next));
        self.at = Some(next);
    }

    /// Executes the path's instruction itself.
    fn original(&mut self, path: &Step, tell: &mut dyn FnMut(Step)) {
        let next = match path.flow {
            Flow::On => path.next,
            Flow::Conditional | Flow::Jump | Flow::Call => {
                let to = self.setting.redirects.branches.get(&path.after()).copied();
                to.filter(|_| path.next != path.after()).unwrap_or(path.next)
            }
            Flow::IndirectJump(p) | Flow::IndirectCall(p) => self.redirected(p, path.next),
            Flow::Return => self.returns.pop().unwrap_or(path.next),
        };
        if path.flow.is_call() {
            self.returns.push(path.after());
        }
        tell(Step { next, ..*path });
        self.at = Some(next);
    }

    /// Executes a return that stands for a whole callee: the path contains nothing else of it.
    fn passed_by(&mut self, at: Avma, path: &Step, tell: &mut dyn FnMut(Step)) {
        let next = self.returns.pop().unwrap_or(path.next);
        tell(Step { at, next, ..*path });
        self.at = Some(next);
    }

    /// Returns the destination of a pointer with redirects, if `next` is its destination without redirects.
    fn redirected(&self, pointer: Pointer, next: Avma) -> Avma {
        let redirects = self.setting.redirects;
        match pointer {
            Pointer::Slot(slot) => {
                redirects.slots.get(&slot).copied().or_else(|| (self.setting.word)(slot)).unwrap_or(next)
            }
            Pointer::Table => redirects.tables.get(&next).copied().unwrap_or(next),
            Pointer::Other => next,
        }
    }
}

/// Size of the jump that replaces an instruction, in bytes: in most cases a prefix, which stays, and a `jmp rel32`.
const JUMP_LEN: u8 = 6;

#[cfg(test)]
mod tests;
