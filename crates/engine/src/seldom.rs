//! Blocks that a compiler itself takes for seldom run: they need no place in a clone unless samples say otherwise.

use code::{BlockId, Cfg, Dest, Term};

/// Which blocks are so: those of `.cold` fragments, those that only exceptions reach, and those from which control
/// only gets to calls that do not return.
#[must_use]
pub fn seldom(cfg: &Cfg) -> Vec<bool> {
    let n = cfg.blocks.len();
    let mut successors: Vec<Vec<usize>> = vec![Vec::new(); n];
    let mut leaves = vec![false; n];
    for (b, out) in successors.iter_mut().enumerate() {
        cfg.successors(BlockId(u32::try_from(b).unwrap_or(u32::MAX)), |dest| match dest {
            Dest::Block(to) => out.push(to.index()),
            Dest::Outside(_) => leaves[b] = true,
        });
    }
    let reached = reached(&successors);
    let main = cfg.parts.first().copied().unwrap_or_default();
    // Control that gets to an ordinary end from here, backwards from all such ends.
    let mut ends: Vec<bool> = cfg
        .blocks
        .iter()
        .zip(&leaves)
        .map(|(b, &leaves)| leaves || matches!(b.term, Term::Return | Term::Indirect | Term::Switch { .. }))
        .collect();
    let mut changed = true;
    while changed {
        changed = false;
        for b in (0..n).rev() {
            if !ends[b] && successors[b].iter().any(|&s| ends[s]) {
                ends[b] = true;
                changed = true;
            }
        }
    }
    // A loop without an end is as good as any code.
    let in_loop = |b: usize| !matches!(cfg.blocks[b].term, Term::NoReturnCall { .. } | Term::Trap) && !reaches_stop(cfg, &successors, b);
    (0..n)
        .map(|b| b != 0 && (!main.contains(cfg.blocks[b].range.start) || !reached[b] || !(ends[b] || in_loop(b))))
        .collect()
}

/// What is reached from the entry without an exception.
fn reached(successors: &[Vec<usize>]) -> Vec<bool> {
    let mut seen = vec![false; successors.len()];
    let mut todo = vec![0];
    while let Some(b) = todo.pop() {
        if seen.get(b).is_some_and(|s| !s) {
            seen[b] = true;
            todo.extend(&successors[b]);
        }
    }
    seen
}

/// Whether control can get from `from` to a call that does not return or a trap.
fn reaches_stop(cfg: &Cfg, successors: &[Vec<usize>], from: usize) -> bool {
    let mut seen = vec![false; successors.len()];
    let mut todo = vec![from];
    while let Some(b) = todo.pop() {
        if std::mem::replace(&mut seen[b], true) {
            continue;
        }
        if matches!(cfg.blocks[b].term, Term::NoReturnCall { .. } | Term::Trap) {
            return true;
        }
        todo.extend(&successors[b]);
    }
    false
}
