//! The proof for calls that get where they go more directly: does what stands in the clone come to what the call does?
//!
//! 1. A call that is dropped is a direct one of a function whose body ([`shortcut::body`]) follows, instruction by
//!    instruction, and then ~ behind the call.
//! 2. Behind a comparison that ~ an indirect call comes a `jne` to the copy of that call. The two are come to from nowhere
//!    else, so where control goes on the register holds the table, which is constant and leads to the callee; there
//!    follows a direct call whose destination ~ the callee, or the callee's body, and then ~ behind the call.
//!
//! In between a status flag is changed (which the call leaves to nobody) and no return address is written (a word that the
//! call overwrites and nobody reads); see [`crate::shortcut`].

use crate::map::Link;
use crate::request::{Shortcut, Stub};
use crate::shortcut;
use crate::steps::Step;
use crate::verify::Verifier;
use addr::{Addr, Avma};
use code::Inst;
use iced_x86::{Code, Mnemonic};

/// The steps behind one.
type Rest<'a> = std::vec::IntoIter<Step<'a>>;

impl Verifier<'_> {
    /// Point 1: `call` is dropped at the place of `step`.
    pub(crate) fn in_place(&self, step: &Step<'_>, call: &Inst, steps: &mut Rest<'_>) -> Option<()> {
        let shortcut = self.shortcut_of(step.entry.original)?;
        let to = Avma(call.decoded.near_branch_target());
        let called =
            to == shortcut.callee || self.clones.stubs.get(&to) == Some(&Stub::Function(shortcut.callee));
        if call.decoded.code() != Code::Call_rel32_64 || !called || shortcut.guard.is_some() {
            return None;
        }
        self.body(shortcut, call, step.at, steps)
    }

    /// Point 2: `compare` is the first instruction.
    pub(crate) fn guarded(&self, compare: &Step<'_>, steps: &mut Rest<'_>) -> Option<()> {
        let at = compare.entry.original;
        let shortcut = self.shortcut_of(at)?;
        let call = self.f.cfg.insts.get(shortcut.call as usize)?;
        let guard = shortcut.guard?;
        let got = &compare.got;
        let offset = Avma(got.ip_rel_memory_address()).since(self.places.constants)?;
        let constant = self.plan.constants.get(usize::try_from(offset / 8).ok()?)?;
        let (base, displacement) = shortcut::table_call(&call.decoded)?;
        let asks = got.code() == Code::Cmp_r64_rm64
            && got.is_ip_rel_memory_operand()
            && offset.is_multiple_of(8)
            && *constant == guard.table.0
            && got.op0_register().number() == usize::from(base)
            && base == guard.register;
        let slot = Avma(guard.table.0.wrapping_add(displacement));
        if !asks || (self.clones.constant)(slot) != Some(shortcut.callee) {
            return None;
        }
        let otherwise = within(steps.next()?, at)?.got;
        let to = self.map.entries_at(Avma(otherwise.near_branch_target())).last()?;
        if otherwise.mnemonic() != Mnemonic::Jne || to.link != Link::Copy || to.original != at {
            return None;
        }
        if shortcut.body.is_some() {
            return self.body(shortcut, call, Avma(otherwise.next_ip()), steps);
        }
        let direct = within(steps.next()?, at)?.got;
        let goes = direct.code() == Code::Call_rel32_64
            && self.stands_for(Avma(direct.near_branch_target()), shortcut.callee)
            && self.stands_for(Avma(direct.next_ip()), call.end());
        goes.then_some(())
    }

    /// The callee's body from `at` on, and behind it what is behind the call.
    fn body(&self, shortcut: &Shortcut<'_>, call: &Inst, mut at: Avma, steps: &mut Rest<'_>) -> Option<()> {
        let callee = shortcut.body.filter(|cfg| cfg.entry == shortcut.callee)?;
        for inst in shortcut::body(callee)? {
            let step = within(steps.next()?, call.at)?;
            let same = match inst.decoded.is_ip_rel_memory_operand() {
                // The decoder keeps such a displacement as the address that it leads to.
                true => step.bytes.len() == inst.bytes.as_slice().len() && step.got == inst.decoded,
                false => step.bytes == inst.bytes.as_slice(),
            };
            if !same {
                return None;
            }
            at = Avma(step.got.next_ip());
        }
        self.stands_for(at, call.end()).then_some(())
    }

    fn shortcut_of(&self, call: Avma) -> Option<&Shortcut<'_>> {
        let at = |s: &&Shortcut<'_>| self.f.cfg.insts.get(s.call as usize).is_some_and(|i| i.at == call);
        self.f.shortcuts.iter().find(at)
    }
}

/// A step that is a part of what is done for the call at `call`.
fn within<'a>(step: Step<'a>, call: Avma) -> Option<Step<'a>> {
    (step.entry.link == Link::Within && step.entry.original == call).then_some(step)
}
