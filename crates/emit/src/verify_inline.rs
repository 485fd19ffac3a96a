//! The proof for inlined and guarded calls: the clone's code has the same result as the call.
//!
//! 1. A dropped call is a direct call of a function. Behind it in the clone is a path through that function,
//!    from its entry along its jumps to a plain return. Each instruction on the path does the same without a
//!    frame ([`is_plain`]). The address behind the path ~ the address behind the call.
//! 2. Behind a comparison that ~ an indirect call is a `jne` to the copy of that call. Control reaches the
//!    two from nowhere else. So if the `jne` is not taken, the register holds the table, which is constant
//!    and leads to the callee. A direct call whose destination ~ the callee follows, or a path through the
//!    callee; then an address ~ behind the call.
//! 3. Where control leaves that path, a jump on the same condition leads to a direct call. The call's
//!    destination ~ the destination of the callee's jump, and its next ~ behind the call. Nothing on the path
//!    has used the stack, so the call creates the state that the original has.
//!
//! A part of an inlined or guarded call ([`Link::Within`]) stands for no instruction. So only the code
//! described here leads to such a part.
//!
//! In between, a status flag changes (a call does not preserve it), and no return address is written (a
//! call overwrites this word, and nothing reads it); see [`crate::inline`].

use crate::encode::behind_mark;
use crate::inline;
use crate::inline_body::{is_guarded, is_plain, is_plain_return};
use crate::map::{AddressMap, Link};
use crate::request::InlineSite;
use crate::steps::Step;
use crate::verify::{Verifier, ways};
use addr::{Avma, AvmaRange};
use code::{Gpr, Inst};
use iced_x86::{Code, FlowControl, InstructionInfoFactory, Mnemonic};
use rustc_hash::{FxHashMap, FxHashSet};

/// The remaining steps of a fragment.
type Rest<'a> = std::vec::IntoIter<Step<'a>>;

/// Out-of-line calls.
#[derive(Default)]
pub(crate) struct OutOfLineCalls {
    /// Required: the clone address of the call, the original call that it is for, and its original
    /// destination.
    required: Vec<(Avma, Avma, Avma)>,
    /// Found: for a clone address, the original call that it is for, and its destination.
    found: FxHashMap<Avma, (Avma, Avma)>,
}

impl Verifier<'_> {
    /// Checks point 1: `call` is dropped at the place of `step`.
    pub(crate) fn inlined(
        &self,
        step: &Step<'_>,
        call: &Inst,
        steps: &mut Rest<'_>,
        calls: &mut OutOfLineCalls,
    ) -> Option<()> {
        let inline_site = self.inline_site_of(step.entry.original)?;
        let to = Avma(call.decoded.near_branch_target());
        if call.decoded.code() != Code::Call_rel32_64
            || to != inline_site.callee
            || inline_site.guard.is_some()
        {
            return None;
        }
        self.body(inline_site, call, step.at, steps, calls)
    }

    /// Checks point 2: `compare` is the first instruction.
    pub(crate) fn guarded(
        &self,
        compare: &Step<'_>,
        steps: &mut Rest<'_>,
        calls: &mut OutOfLineCalls,
    ) -> Option<()> {
        let at = compare.entry.original;
        let inline_site = self.inline_site_of(at)?;
        let call = self.f.cfg.insts.get(inline_site.call.index())?;
        let guard = inline_site.guard?;
        let got = &compare.got;
        let (base, displacement) = inline::table_call(&call.decoded)?;
        let asks = got.code() == Code::Cmp_r64_rm64
            && got.is_ip_rel_memory_operand()
            && self.data_word(Avma(got.ip_rel_memory_address()))? == guard.table.0
            && Gpr::of(got.op0_register()) == Some(base)
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
            return self.body(inline_site, call, Avma(otherwise.next_ip()), steps, calls);
        }
        let direct = within(steps.next()?, at)?.got;
        let goes = direct.code() == Code::Call_rel32_64
            && self.stands_for(Avma(direct.near_branch_target()), inline_site.callee)
            && self.stands_for(Avma(direct.next_ip()), call.end());
        goes.then_some(())
    }

    /// Checks a path through the callee from `at` on, and that what follows it stands for the address behind
    /// the call.
    fn body(
        &self,
        inline_site: &InlineSite<'_>,
        call: &Inst,
        mut at: Avma,
        steps: &mut Rest<'_>,
        calls: &mut OutOfLineCalls,
    ) -> Option<()> {
        let body = inline_site.body.filter(|body| body.cfg.entry == inline_site.callee)?;
        let mut factory = InstructionInfoFactory::new();
        let mut original = behind_mark(body.cfg, body.cfg.entry);
        // A path with more steps than instructions would never end.
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
                calls.required.push((Avma(step.got.near_branch_target()), call.at, off));
                continue;
            }
            let same = match was.is_ip_rel_memory_operand() {
                // The decoder stores a RIP-relative displacement as its effective address.
                true => step.bytes.len() == inst.bytes.as_slice().len() && step.got == *was,
                false => step.bytes == inst.bytes.as_slice(),
            };
            if !same || !is_plain(was, &mut factory) || is_guarded(inst, body.lsda) {
                return None;
            }
        }
        None
    }

    /// Records an out-of-line call. Its destination is checked once all calls are known.
    pub(crate) fn out_of_line(&self, step: &Step<'_>, calls: &mut OutOfLineCalls) -> Option<()> {
        let for_call = step.entry.original;
        let inline_site = self.inline_site_of(for_call)?;
        let call = self.f.cfg.insts.get(inline_site.call.index())?;
        let is_call = step.got.code() == Code::Call_rel32_64;
        calls.found.insert(step.at, (for_call, Avma(step.got.near_branch_target())));
        (is_call && self.stands_for(Avma(step.got.next_ip()), call.end())).then_some(())
    }

    /// Checks point 3: each required call is there and leads to the right destination.
    pub(crate) fn hold(&self, calls: &OutOfLineCalls) -> bool {
        calls.required.iter().all(|(at, call, to)| {
            calls.found.get(at).is_some_and(|(of, leads)| of == call && self.stands_for(*leads, *to))
        })
    }

    fn inline_site_of(&self, call: Avma) -> Option<&InlineSite<'_>> {
        let at = |s: &&InlineSite<'_>| self.f.cfg.insts.get(s.call.index()).is_some_and(|i| i.at == call);
        self.f.inline_sites.iter().find(at)
    }
}

/// Returns the step if it belongs to the code for the call at `call`.
fn within<'a>(step: Step<'a>, call: Avma) -> Option<Step<'a>> {
    (step.entry.link == Link::Within && step.entry.original == call).then_some(step)
}

/// Returns the call targets inside other clones ([`crate::encode::Clones::rests`]) that do not map to the
/// expected original address, by the finished maps.
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
