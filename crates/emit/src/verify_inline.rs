//! The proof for calls that get where they go more directly: does what stands in the clone come to what the call does?
//!
//! 1. A call that is dropped is a direct one of a function; there follows a way through that, from its entry along its jumps to a
//!    plain return, each instruction of which does the same without a frame ([`is_plain`]), and then ~ behind the call.
//! 2. Behind a comparison that ~ an indirect call comes a `jne` to the copy of that call. The two are come to from nowhere
//!    else, so where control goes on the register holds the table, which is constant and leads to the callee; there
//!    follows a direct call whose destination ~ the callee, or a way through the callee, and then ~ behind the call.
//! 3. Where that way is left there is a jump, on the same condition, to a direct call whose destination ~ where the callee's jump
//!    leads, and then ~ behind the call. On that way nothing has touched the stack, so that call leaves the state that
//!    there is in the original.
//!
//! A part of an inlined or guarded call ([`Link::Within`]) stands for no instruction, so nothing of what is proven leads to one but what is said here.
//!
//! In between a status flag is changed (which the call leaves to nobody) and no return address is written (a word that the
//! call overwrites and nobody reads); see [`crate::inline`].

use crate::encode::behind_mark;
use crate::inline;
use crate::inline_body::{is_guarded, is_plain, is_plain_return};
use crate::map::{AddressMap, Link};
use crate::request::{InlineSite, Stub};
use crate::steps::Step;
use crate::verify::{Verifier, ways};
use addr::{Addr, Avma, AvmaRange};
use code::Inst;
use iced_x86::{Code, FlowControl, InstructionInfoFactory, Mnemonic};
use rustc_hash::{FxHashMap, FxHashSet};

/// The steps behind one.
type Rest<'a> = std::vec::IntoIter<Step<'a>>;

/// Calls that lie aside.
#[derive(Default)]
pub(crate) struct Asides {
    /// Where one has to be, for which call of the original, and whereto.
    asked: Vec<(Avma, Avma, Avma)>,
    /// Where one is, for which call, and where it leads.
    given: FxHashMap<Avma, (Avma, Avma)>,
}

impl Verifier<'_> {
    /// Point 1: `call` is dropped at the place of `step`.
    pub(crate) fn inlined(
        &self,
        step: &Step<'_>,
        call: &Inst,
        steps: &mut Rest<'_>,
        asides: &mut Asides,
    ) -> Option<()> {
        let inline_site = self.inline_site_of(step.entry.original)?;
        let to = Avma(call.decoded.near_branch_target());
        let called = to == inline_site.callee
            || self.clones.stubs.get(&to) == Some(&Stub::Function(inline_site.callee));
        if call.decoded.code() != Code::Call_rel32_64 || !called || inline_site.guard.is_some() {
            return None;
        }
        self.body(inline_site, call, step.at, steps, asides)
    }

    /// Point 2: `compare` is the first instruction.
    pub(crate) fn guarded(
        &self,
        compare: &Step<'_>,
        steps: &mut Rest<'_>,
        asides: &mut Asides,
    ) -> Option<()> {
        let at = compare.entry.original;
        let inline_site = self.inline_site_of(at)?;
        let call = self.f.cfg.insts.get(inline_site.call as usize)?;
        let guard = inline_site.guard?;
        let got = &compare.got;
        let offset = Avma(got.ip_rel_memory_address()).since(self.places.constants)?;
        let constant = self.plan.constants.get(usize::try_from(offset / 8).ok()?)?;
        let (base, displacement) = inline::table_call(&call.decoded)?;
        let asks = got.code() == Code::Cmp_r64_rm64
            && got.is_ip_rel_memory_operand()
            && offset.is_multiple_of(8)
            && *constant == guard.table.0
            && got.op0_register().number() == usize::from(base)
            && base == guard.register;
        let slot = Avma(guard.table.0.wrapping_add(displacement));
        if !asks || (self.clones.constant)(slot) != Some(inline_site.callee) {
            return None;
        }
        let otherwise = within(steps.next()?, at)?.got;
        let to = self.map.entries_at(Avma(otherwise.near_branch_target())).last()?;
        if otherwise.mnemonic() != Mnemonic::Jne || to.link != Link::Copy || to.original != at {
            return None;
        }
        let is_call = |s: &Step<'_>| s.entry.link == Link::Within && s.got.is_call_near();
        if !steps.as_slice().first().is_some_and(is_call) {
            return self.body(inline_site, call, Avma(otherwise.next_ip()), steps, asides);
        }
        let direct = within(steps.next()?, at)?.got;
        let goes = direct.code() == Code::Call_rel32_64
            && self.stands_for(Avma(direct.near_branch_target()), inline_site.callee)
            && self.stands_for(Avma(direct.next_ip()), call.end());
        goes.then_some(())
    }

    /// A way through the callee from `at` on, and behind it what is behind the call.
    fn body(
        &self,
        inline_site: &InlineSite<'_>,
        call: &Inst,
        mut at: Avma,
        steps: &mut Rest<'_>,
        asides: &mut Asides,
    ) -> Option<()> {
        let body = inline_site.body.filter(|body| body.cfg.entry == inline_site.callee)?;
        let mut factory = InstructionInfoFactory::new();
        let mut original = behind_mark(body.cfg, body.cfg.entry);
        // More of them are none that end.
        for _ in 0..=body.cfg.insts.len() {
            let inst = body.cfg.insts.iter().find(|i| i.at == original)?;
            let was = &inst.decoded;
            if was.is_jmp_short_or_near() {
                original = Avma(was.near_branch_target());
                continue;
            }
            if was.flow_control() == FlowControl::Return {
                return (is_plain_return(inst) && self.stands_for(at, call.end())).then_some(());
            }
            let step = within(steps.next()?, call.at)?;
            at = Avma(step.got.next_ip());
            original = inst.end();
            if was.is_jcc_short_or_near() {
                let [off, on] = ways(inst, &step.got)?;
                original = on;
                asides.asked.push((Avma(step.got.near_branch_target()), call.at, off));
                continue;
            }
            let same = match was.is_ip_rel_memory_operand() {
                // The decoder keeps such a displacement as the address that it leads to.
                true => step.bytes.len() == inst.bytes.as_slice().len() && step.got == *was,
                false => step.bytes == inst.bytes.as_slice(),
            };
            if !same || !is_plain(was, &mut factory) || is_guarded(inst, body.lsda) {
                return None;
            }
        }
        None
    }

    /// A call that lies aside; whether it leads where it should is seen once all is known.
    pub(crate) fn aside(&self, step: &Step<'_>, asides: &mut Asides) -> Option<()> {
        let for_call = step.entry.original;
        let inline_site = self.inline_site_of(for_call)?;
        let call = self.f.cfg.insts.get(inline_site.call as usize)?;
        let is_call = step.got.code() == Code::Call_rel32_64;
        asides.given.insert(step.at, (for_call, Avma(step.got.near_branch_target())));
        (is_call && self.stands_for(Avma(step.got.next_ip()), call.end())).then_some(())
    }

    /// Point 3: each call is there and leads where it should.
    pub(crate) fn hold(&self, asides: &Asides) -> bool {
        asides.asked.iter().all(|(at, call, to)| {
            asides.given.get(at).is_some_and(|(of, leads)| of == call && self.stands_for(*leads, *to))
        })
    }

    fn inline_site_of(&self, call: Avma) -> Option<&InlineSite<'_>> {
        let at = |s: &&InlineSite<'_>| self.f.cfg.insts.get(s.call as usize).is_some_and(|i| i.at == call);
        self.f.inline_sites.iter().find(at)
    }
}

/// A step that is a part of what is done for the call at `call`.
fn within<'a>(step: Step<'a>, call: Avma) -> Option<Step<'a>> {
    (step.entry.link == Link::Within && step.entry.original == call).then_some(step)
}

/// Those of the places that others call ([`crate::encode::Clones::rests`]) that are not what they are called for, by finished maps.
pub(crate) fn wrong_rests<'a>(
    rests: &FxHashMap<Avma, Avma>,
    maps: impl Iterator<Item = &'a AddressMap>,
) -> FxHashSet<Avma> {
    let mut places: Vec<(AvmaRange, &AddressMap)> =
        maps.flat_map(|m| m.fragments().ranges().map(move |r| (r, m))).collect();
    places.sort_unstable_by_key(|(range, _)| range.start);
    let is_right = |original: Avma, at: Avma| {
        let before = places.partition_point(|(range, _)| range.start <= at).checked_sub(1);
        before.and_then(|i| places.get(i)).is_some_and(|(range, map)| {
            range.contains(at)
                && (map.to_original(at) == Some(original) || map.to_clone(original) == Some(at))
        })
    };
    rests.iter().filter(|&(&original, &at)| !is_right(original, at)).map(|(&original, _)| original).collect()
}
