//! Chooses the places of originals that redirects to clones change.

use crate::analyse::module_code::ModuleCode;
use crate::analyse::program::{FuncId, Program};
use addr::{Addr, AvmaRange};
use code::{BlockId, Cfg, RedirectSites};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Returns the places of a function at which control can be redirected to a clone with the blocks of `order`.
pub(crate) fn choose(program: &Program<'_>, id: FuncId, cfg: &Cfg, order: &[BlockId]) -> RedirectSites {
    let mut cloned = vec![false; cfg.blocks.len()];
    for b in order {
        if let Some(c) = cloned.get_mut(b.index()) {
            *c = true;
        }
    }
    let is_cloned = |b: BlockId| cloned.get(b.index()) == Some(&true);
    code::redirect_sites(cfg, &is_cloned, &|range| is_free(program.module(id), range))
}

/// Returns the places at which control can be redirected to a counting clone so that counters determine all
/// counts. If there are none, returns the places that [`choose`] finds, except for a function that only
/// redirected calls enter (`only_called`).
#[must_use]
pub(crate) fn countable(program: &Program<'_>, id: FuncId, cfg: &Cfg, only_called: bool) -> RedirectSites {
    let found = code::countable_sites(cfg, &|range| is_free(program.module(id), range));
    if found.sites.is_empty() && !only_called {
        let all: Vec<BlockId> = cfg.block_ids().collect();
        return choose(program, id, cfg, &all);
    }
    found
}

/// Returns whether bytes may change: no known branch or address leads into them, and no instruction reads
/// them as data. Unknown branches lead to the first byte of an instruction, which never changes.
fn is_free(module: &ModuleCode, range: AvmaRange) -> bool {
    range.start.align_down(PAGE) == range.end.sub(1).align_down(PAGE)
        && module.branches.jumps_into(range).len() == 0
        && module.branches.calls_into(range).len() == 0
        && module.branches.taken_in(range).len() == 0
        && !module.branches.is_read(range)
        && module.held_in(range).is_empty()
        && module.in_data_in(range).is_empty()
}
