//! Blocks that the compiler itself treats as rarely executed. They are not cloned unless samples show that
//! they run.

use code::{BlockId, Cfg, Dest, Term};

/// Returns for each block whether it is rare. Rare blocks are in `.cold` fragments, are reached only by
/// exceptions, or lead only to calls that do not return.
#[must_use]
pub fn rare_blocks(cfg: &Cfg) -> Vec<bool> {
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
    let stops: Vec<bool> =
        cfg.blocks.iter().map(|b| matches!(b.term, Term::NoReturnCall { .. } | Term::Trap)).collect();
    let ends: Vec<bool> = cfg
        .blocks
        .iter()
        .zip(&leaves)
        .map(|(b, &leaves)| leaves || matches!(b.term, Term::Return | Term::Indirect | Term::Switch { .. }))
        .collect();
    // A loop without an end that calls no such function is not rare.
    let (to_end, to_stop) = (reaching(&successors, ends), reaching(&successors, stops));
    (0..n)
        .map(|b| {
            let only_stops = to_stop[b] && !to_end[b];
            b != 0 && (!main.contains(cfg.blocks[b].range.start) || !reached[b] || only_stops)
        })
        .collect()
}

/// Returns for each block whether control can get from it to one of `goals`.
fn reaching(successors: &[Vec<usize>], goals: Vec<bool>) -> Vec<bool> {
    let mut can = goals;
    let mut changed = true;
    while changed {
        changed = false;
        for b in (0..can.len()).rev() {
            if !can[b] && successors[b].iter().any(|&s| can[s]) {
                can[b] = true;
                changed = true;
            }
        }
    }
    can
}

/// Returns for each block whether control reaches it from the entry without an exception.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// 0: a branch to 2 or on to 1; 1: a call that does not return; 2: a branch to 4 or on to 3; 3: ret; 4:
    /// an endless loop; 5: a landing pad; 6: a cold fragment, to which 3 would jump.
    const FUNCTION: &str = "\
function 0x1000
part 0x1000..0x1020
part 0x2000..0x2001
block b0 0x1000
  75 05
  cond ne b2 else b1
block b1 0x1002
  e8 f9 2f 00 00
  noreturn 0x1007
block b2 0x1007
  74 09
  cond e b4 else b3
block b3 0x1009
  0f 84 f1 0f 00 00
  cond e b6 else 0x100f
block b4 0x1012
  eb fe
  jump b4
block b5 0x1014 pad
  c3
  return
block b6 0x2000
  c3
  return
";

    #[test]
    fn blocks_that_the_compiler_treats_as_rare_are_found() {
        let cfg = code::parse(FUNCTION).unwrap();
        assert_eq!(rare_blocks(&cfg), [false, true, false, false, false, true, true]);
    }
}
