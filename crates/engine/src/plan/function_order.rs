//! The order of the functions in a code cache.

use crate::base::passes::{Pass, Style};
use crate::plan::candidate::{Candidate, SiteTargets};
use crate::plan::shuffle::Rng;
use addr::Avma;
use iced_x86::{FlowControl, OpKind};
use layout::{CallEdge, FuncNode};
use rustc_hash::FxHashMap;

/// Orders functions: those with hot code first, by the call graph or by address; or all at random.
pub(crate) fn function_order(members: &[&Candidate], style: Style) -> Vec<usize> {
    let mut all: Vec<usize> = (0..members.len()).collect();
    if let Some(seed) = style.shuffle {
        Rng::new(seed ^ 0x5eed).shuffle(&mut all);
        return all;
    }
    let (hot, warm): (Vec<usize>, Vec<usize>) = all.into_iter().partition(|&i| members[i].hot > 0);
    let order = |places: Vec<usize>| {
        if !style.passes.has(Pass::Functions) {
            return places;
        }
        let group: Vec<&Candidate> = places.iter().map(|&i| members[i]).collect();
        call_order(&group).into_iter().map(|i| places[i]).collect::<Vec<_>>()
    };
    [order(hot), order(warm)].concat()
}

/// Orders functions by the call graph between their first fragments.
fn call_order(members: &[&Candidate]) -> Vec<usize> {
    let index: FxHashMap<Avma, usize> =
        members.iter().enumerate().map(|(i, c)| (c.analysed.cfg.entry, i)).collect();
    // Inferred counts have another unit than exact counts; samples have the same unit for all functions.
    let one_scale = members.windows(2).all(|w| w[0].counted == w[1].counted);
    let nodes: Vec<FuncNode> = members
        .iter()
        .map(|c| {
            let size = c.first_fragment().iter().map(|b| c.analysed.cfg.blocks[b.index()].range.len()).sum();
            let ran = c.counts.blocks.iter().fold(0, |sum: u64, &n| sum.saturating_add(n));
            FuncNode { size, samples: if one_scale { ran } else { c.samples } }
        })
        .collect();
    let mut edges = Vec::new();
    for (caller, c) in members.iter().enumerate() {
        let insts = &c.analysed.cfg.insts;
        let led: FxHashMap<Avma, &SiteTargets> =
            c.targets.iter().filter_map(|s| Some((insts.get(s.inst as usize)?.at, s))).collect();
        let mut offset = 0;
        for &b in c.first_fragment() {
            let count = c.counts.block(b);
            for inst in c.analysed.cfg.insts_of(b) {
                let d = &inst.decoded;
                let direct = d.op_count() > 0 && d.op0_kind() == OpKind::NearBranch64;
                let leads = matches!(d.flow_control(), FlowControl::Call | FlowControl::UnconditionalBranch);
                if direct
                    && leads
                    && count > 0
                    && let Some(&callee) = index.get(&Avma(d.near_branch64()))
                    && callee != caller
                {
                    edges.push(CallEdge { caller, callee, count, offset });
                }
                for (to, count) in led.get(&inst.at).into_iter().flat_map(|s| s.parts(count)) {
                    if let Some(&callee) = index.get(&to).filter(|&&callee| callee != caller) {
                        edges.push(CallEdge { caller, callee, count, offset });
                    }
                }
                offset += inst.bytes.as_slice().len() as u64;
            }
        }
    }
    layout::best_function_order(&nodes, &edges).order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::passes::Passes;
    use crate::plan::test_candidate::candidate;

    #[test]
    fn functions_without_hot_code_come_last() {
        let with = |index, hot, samples| Candidate {
            hot,
            ..candidate(index, &[0, 1], &[samples; 4], true, samples)
        };
        let all = [with(0, 0, 90), with(1, 2, 10), with(2, 0, 99), with(3, 1, 20)];
        let members: Vec<&Candidate> = all.iter().collect();
        // Each of the two has its place by executions per byte of its first fragment.
        assert_eq!(function_order(&members, Style::default()), [3, 1, 2, 0]);
        let passes = Passes::without(&[Pass::Functions]);
        assert_eq!(function_order(&members, Style { passes, ..Style::default() }), [1, 3, 0, 2]);
        let mut random = function_order(&members, Style { shuffle: Some(1), ..Style::default() });
        random.sort_unstable();
        assert_eq!(random, [0, 1, 2, 3]);
    }
}
