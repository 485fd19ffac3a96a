//! The layout of clones: from counts to all decisions about a clone, in the only order that the types allow.

use crate::analyse::program::Program;
use crate::base::passes::Style;
use crate::plan::candidate::Counted;
use crate::plan::laid_out::{LaidOut, Layout, Linked, Ordered};
use crate::plan::through_redirects::Stays;
use crate::plan::{block_order, inlining, loops, sites};

/// Makes all decisions about the clones of some functions.
pub(crate) fn lay_out(program: &Program<'_>, counted: Vec<Counted>, style: Style) -> Vec<LaidOut> {
    let ordered = block_order::choose(counted, style);
    let linked = link(program, ordered, style);
    let inlined = inlining::choose(program, linked, style);
    loops::choose(inlined, style)
}

/// Chooses where clones are entered, and which of their calls go through redirects.
fn link(program: &Program<'_>, ordered: Vec<Ordered>, style: Style) -> Vec<Linked> {
    let mut stays = Stays::new(ordered.iter().map(|c| &***c), style);
    let linked = |Ordered { counted, order }: Ordered| {
        let sites = sites::choose(program, counted.id, &counted.analysed.cfg, order.all());
        let layout = Layout { order, sites, through_redirects: stays.calls(&counted) };
        Linked { counted, layout }
    };
    ordered.into_iter().map(linked).collect()
}
