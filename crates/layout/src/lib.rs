//! Layout: block order in a function, function order in the code cache, and the cost of the order for the
//! CPU's front end.
//!
//! Input: plain weighted graphs by index (sizes in bytes, execution counts). Output: permutations and scores.
//! There are no instructions, addresses or processes here, and the same input always gives the same output.
#![forbid(unsafe_code)]

mod block_graph;
mod cache_sort;
mod chains;
mod ext_tsp;
mod footprint;
mod function_order;
mod misses;
mod score;

pub use block_graph::{Block, Edge, EdgeKind, Graph};
pub use ext_tsp::ext_tsp;
pub use footprint::{Footprint, LINE_BYTES, PAGE_BYTES, Span, hottest};
pub use function_order::{CallEdge, FuncNode};
pub use misses::{BestOrder, OrderBy, best_function_order};
pub use score::score;
