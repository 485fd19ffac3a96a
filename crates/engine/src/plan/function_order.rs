//! The order of the functions in a code cache.

use crate::base::passes::{Pass, Style};
use crate::plan::candidate::SiteTargets;
use crate::plan::laid_out::ToClone;
use crate::plan::shuffle::Rng;
use addr::Avma;
use iced_x86::{FlowControl, OpKind};
use layout::{CallEdge, FuncNode};
use rustc_hash::FxHashMap;

/// Orders functions: those with hot code first, by the call graph or by address; or all at random.
pub(crate) fn function_order<'a>(members: Vec<ToClone<'a>>, style: Style) -> Vec<ToClone<'a>> {
    if let Some(seed) = style.shuffle {
        let mut all = members;
        Rng::new(seed ^ 0x5eed).shuffle(&mut all);
        return all;
    }
    let is_hot = |c: &ToClone<'_>| !c.layout().order.hot().is_empty();
    let (hot, warm): (Vec<ToClone<'a>>, Vec<ToClone<'a>>) = members.into_iter().partition(is_hot);
    if !style.passes.has(Pass::Functions) {
        return [hot, warm].concat();
    }
    [call_order(&hot), call_order(&warm)].concat()
}

/// Orders functions by the call graph between their first fragments.
fn call_order<'a>(members: &[ToClone<'a>]) -> Vec<ToClone<'a>> {
    let index: FxHashMap<Avma, usize> =
        members.iter().enumerate().map(|(i, c)| (c.measured().analysed.cfg.entry, i)).collect();
    // Inferred counts have another unit than exact counts; samples have the same unit for all functions.
    let one_scale = members.windows(2).all(|w| w[0].measured().is_counted() == w[1].measured().is_counted());
    let nodes: Vec<FuncNode> = members.iter().map(|c| node(*c, one_scale)).collect();
    let mut edges = Vec::new();
    for (caller, c) in members.iter().enumerate() {
        calls(*c, &mut |to, count, offset| {
            if let Some(&callee) = index.get(&to).filter(|&&callee| callee != caller) {
                edges.push(CallEdge { caller, callee, count, offset });
            }
        });
    }
    layout::best_function_order(&nodes, &edges).order.into_iter().map(|i| members[i]).collect()
}

/// Returns the size of a clone's first fragment, and how often its function ran.
fn node(clone: ToClone<'_>, one_scale: bool) -> FuncNode {
    let c = clone.measured();
    let first = clone.layout().order.first_fragment();
    let size = first.iter().map(|b| c.analysed.cfg.blocks[b.index()].range.len()).sum();
    let ran = c.counts.blocks.iter().fold(0, |sum: u64, b| sum.saturating_add(b.count));
    FuncNode { size, samples: if one_scale { ran } else { c.samples } }
}

/// Reports the destination, the number of executions and the offset of each call in a clone's first fragment.
fn calls(clone: ToClone<'_>, tell: &mut dyn FnMut(Avma, u64, u64)) {
    let c = clone.measured();
    let insts = &c.analysed.cfg.insts;
    let led: FxHashMap<Avma, &SiteTargets> =
        c.targets.iter().filter_map(|s| Some((insts.get(s.inst.index())?.at, s))).collect();
    let mut offset = 0;
    for &b in clone.layout().order.first_fragment() {
        let count = c.counts.block(b);
        for inst in c.analysed.cfg.insts_of(b) {
            let d = &inst.decoded;
            let direct = d.op_count() > 0 && d.op0_kind() == OpKind::NearBranch64;
            let leads = matches!(d.flow_control(), FlowControl::Call | FlowControl::UnconditionalBranch);
            if direct && leads && count > 0 {
                tell(Avma(d.near_branch64()), count, offset);
            }
            for (to, count) in led.get(&inst.at).into_iter().flat_map(|s| s.parts(count)) {
                tell(to, count, offset);
            }
            offset += inst.bytes.as_slice().len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::passes::Passes;
    use crate::plan::laid_out::Instrumented;
    use crate::plan::test_candidate::{instrumented, ordered};

    #[test]
    fn functions_without_hot_code_come_last() {
        let hots = [(0, 90), (2, 10), (0, 99), (1, 20)];
        let functions: Vec<_> = (0..)
            .zip(hots)
            .map(|(index, (hot, samples))| (ordered(index, &[0, 1], &[samples; 4], samples), hot))
            .collect();
        let clones: Vec<Instrumented<'_>> =
            functions.iter().map(|(f, hot)| instrumented(f, &[0, 1], *hot)).collect();
        let order = |style| {
            let ordered = function_order(clones.iter().map(ToClone::ToCount).collect(), style);
            ordered.iter().map(|c| c.measured().id.index).collect::<Vec<_>>()
        };
        // Each of the two has its place by executions per byte of its first fragment.
        assert_eq!(order(Style::default()), [3, 1, 2, 0]);
        let passes = Passes::without(&[Pass::Functions]);
        assert_eq!(order(Style { passes, ..Style::default() }), [1, 3, 0, 2]);
        let mut random = order(Style { shuffle: Some(1), ..Style::default() });
        random.sort_unstable();
        assert_eq!(random, [0, 1, 2, 3]);
    }
}
