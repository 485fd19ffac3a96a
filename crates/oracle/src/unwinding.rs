//! Unwinds the stacks of both executions, each by its own tables.

use crate::frame::{MAX_FRAMES, SAVED, WalkEnd, World, walk};
use crate::lockstep::{Depth, Lockstep, Verdict};
use crate::report::Difference;

/// How often the stack is unwound at one instruction: the rule is the same each time.
const UNWINDS: u8 = 3;

impl Lockstep<'_> {
    /// Unwinds both stacks if the clones' side is in a clone, and compares their frames. Frames of an inlined
    /// callee, which only the originals' side has, are left out: in the clone the frame is the caller's, as
    /// at the call.
    pub(crate) fn unwind(&mut self, depth: Depth) -> Option<Verdict> {
        let b = self.b.now.ip();
        self.atlas.clone_of(b)?;
        let times = self.memo.unwound.entry(b).or_default();
        if *times >= UNWINDS {
            return None;
        }
        *times += 1;
        let until = self.entry_sp;
        let deeper = depth.frames();
        let most = (until, MAX_FRAMES + deeper);
        let (fa, ea) = walk(self.atlas, World::Originals, &self.a.now, self.a.memory(), most);
        let (fb, eb) = walk(self.atlas, World::Clones, &self.b.now, self.b.memory(), (until, MAX_FRAMES));
        let fa = fa.get(deeper..).unwrap_or_default();
        let wrong = |what: String| Some(Difference::Frames { what });
        let mut difference = None;
        for (i, (a, b)) in fa.iter().zip(&fb).enumerate() {
            let same = |x: Option<u64>, y: Option<u64>| match (x, y) {
                (Some(x), Some(y)) => self.atlas.same(x, y),
                (x, y) => x == y,
            };
            if a.cfa != b.cfa {
                difference =
                    wrong(format!("frame {i} at {} and {}: {:#x} and {:#x}", a.pc, b.pc, a.cfa, b.cfa));
            } else if !same(a.caller[16], b.caller[16]) {
                let (x, y) = (a.caller[16], b.caller[16]);
                difference =
                    wrong(format!("frame {i} at {} and {} returns to {x:x?} and {y:x?}", a.pc, b.pc));
            } else if let Some(n) = SAVED.into_iter().find(|&n| {
                !same(a.caller[n], b.caller[n]) && !self.stains.is_stained(if n == 6 { 5 } else { n })
            }) {
                let (x, y) = (a.caller[n], b.caller[n]);
                difference = wrong(format!(
                    "register {n} of the caller of frame {i} at {} and {}: {x:x?} and {y:x?}",
                    a.pc, b.pc
                ));
            }
            if difference.is_some() {
                break;
            }
        }
        if difference.is_none() && fa.len() != fb.len() {
            difference = wrong(format!("{} and {} frames: {ea:?} and {eb:?}", fa.len(), fb.len()));
        }
        if ea == WalkEnd::Reached && eb == WalkEnd::Reached {
            self.report.unwound += 1;
        } else if fa.is_empty() {
            // The original's tables give no frame here, so the clone's tables may give any.
            self.report.not_unwound += 1;
            difference = None;
        } else {
            self.report.not_unwound += 1;
        }
        difference.map(|d| self.mismatch(d))
    }
}
