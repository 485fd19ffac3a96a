//! Computes the length of each branch and the position of each item.
//!
//! The state problem: an 8-bit displacement depends on the sizes of the branches it spans, and these depend
//! on their displacements. Rule: every branch that may be short starts short; a branch that does not reach
//! becomes long and stays long; repeat. The loop ends because each round but the last makes at least one
//! branch long. The result is the smallest: by induction over the rounds, a branch that is made long is long
//! in every solution.
//!
//! Positions are counted in the clone. Their differences are distances only while both ends are in one
//! fragment; no short branch leads out of its fragment.

use crate::items::{Item, Kind, Plan, Target, branch_len};
use code::Refusal;

/// Makes branches long where they must be, and sets the position of each item in the clone.
///
/// # Errors
/// [`Refusal::TooLarge`] beyond 1 GiB.
pub(crate) fn relax(plan: &mut Plan) -> Result<(), Refusal> {
    place(&mut plan.items)?;
    let short = |i: &Item| matches!(i.kind, Kind::Branch { long: false, .. });
    let mut candidates: Vec<usize> = (0..plan.items.len()).filter(|&i| short(&plan.items[i])).collect();
    loop {
        let before = candidates.len();
        candidates.retain(|&i| {
            let Kind::Branch { op, to: Target::Place(p), .. } = plan.items[i].kind else { return false };
            let to = i64::from(plan.block_position(p));
            let item = &mut plan.items[i];
            let reaches = i8::try_from(to - i64::from(item.at + item.len)).is_ok();
            if !reaches {
                item.kind = Kind::Branch { op, to: Target::Place(p), long: true };
                item.len = branch_len(op, true);
            }
            reaches
        });
        if candidates.len() == before {
            return Ok(());
        }
        place(&mut plan.items)?;
    }
}

/// Computes positions from the current sizes.
fn place(items: &mut [Item]) -> Result<(), Refusal> {
    let mut at = 0u32;
    for item in items {
        item.at = at;
        at = at.checked_add(item.len).filter(|&a| a <= 1 << 30).ok_or(Refusal::TooLarge)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::{FragmentPlan, Op, Place, PlannedBlock, Zone};
    use addr::Avma;
    use code::BlockId;
    use proptest::prelude::*;

    /// Builds blocks of a body and a branch to a block. From the block `split` on, they are in a second
    /// fragment.
    fn build_split(blocks: &[(u32, bool, u32)], split: usize) -> Plan {
        let mut plan = Plan::default();
        let push = |plan: &mut Plan, kind, len| plan.push(kind, len, None, Avma(0));
        for (b, &(body, cond, to)) in blocks.iter().enumerate() {
            if b == 0 || b == split {
                let zone = if b < split { Zone::Hot } else { Zone::Warm };
                let first = plan.next_item().unwrap();
                plan.fragments.push(FragmentPlan { zone, first });
            }
            let id = BlockId(u32::try_from(b).unwrap());
            plan.blocks.push(PlannedBlock { id, first: plan.next_item().unwrap() });
            push(&mut plan, Kind::Verbatim, body);
            let op = if cond { Op::Cond(4) } else { Op::Jump };
            let to = to % u32::try_from(blocks.len()).unwrap();
            let long = (b < split) != ((to as usize) < split);
            push(&mut plan, Kind::Branch { op, to: Target::Place(Place(to)), long }, branch_len(op, long));
        }
        plan
    }

    fn build(blocks: &[(u32, bool, u32)]) -> Plan {
        build_split(blocks, blocks.len())
    }

    /// Returns whether each short branch reaches, and sizes and positions agree.
    fn sound(plan: &Plan) -> bool {
        let mut at = 0;
        plan.items.iter().all(|item| {
            let consistent = item.at == at;
            at += item.len;
            consistent
                && match item.kind {
                    Kind::Branch { op, to: Target::Place(p), long } => {
                        let to = i64::from(plan.block_position(p));
                        item.len == branch_len(op, long)
                            && (long || (-128..=127).contains(&(to - i64::from(at))))
                    }
                    _ => true,
                }
        })
    }

    proptest! {
        #[test]
        fn each_short_branch_reaches(blocks in prop::collection::vec((0u32..90, any::<bool>(), 0u32..40), 1..40),
            split in 0usize..40) {
            let mut plan = build_split(&blocks, split);
            relax(&mut plan).unwrap();
            prop_assert!(sound(&plan));
        }

        #[test]
        fn no_choice_of_branches_is_smaller(blocks in prop::collection::vec((0u32..70, any::<bool>(), 0u32..8), 1..8)) {
            let mut plan = build(&blocks);
            relax(&mut plan).unwrap();
            let size = plan.text_len();
            // Brute force: all choices of long branches.
            let mut least = u32::MAX;
            for choice in 0..1u32 << blocks.len() {
                let mut p = build(&blocks);
                let mut n = 0;
                for it in &mut p.items {
                    if let Kind::Branch { op, long, .. } = &mut it.kind {
                        *long = choice >> n & 1 == 1;
                        it.len = branch_len(*op, *long);
                        n += 1;
                    }
                }
                place(&mut p.items).unwrap();
                if sound(&p) {
                    least = least.min(p.text_len());
                }
            }
            prop_assert_eq!(size, least);
        }
    }

    #[test]
    fn the_edges_of_a_short_branch() {
        // A short branch reaches over a body of 127 bytes, but not of 128. A backward displacement includes
        // the branch itself.
        for (body, len) in [(127, 2), (128, 6)] {
            let mut plan = build(&[(0, true, 2), (body - 2, false, 1), (1, false, 2)]);
            relax(&mut plan).unwrap();
            assert_eq!(plan.items[1].len, len, "forward over {body}");
        }
        for (body, len) in [(126, 2), (127, 5)] {
            let mut plan = build(&[(body, false, 0)]);
            relax(&mut plan).unwrap();
            assert_eq!(plan.items[1].len, len, "backward over {body}");
        }
    }
}
