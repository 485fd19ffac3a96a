//! What goes where: block order inside a function, function order in the code cache, and what the order costs the
//! CPU's front end.
//!
//! You give plain weighted graphs by index (sizes in bytes, execution counts); it gives permutations and scores. It
//! knows no instruction, no address and no process, and the same input always gives the same output.
#![forbid(unsafe_code)]

mod cache_sort;
mod chains;
mod ext_tsp;
mod footprint;
mod function_order;
mod misses;
#[cfg(test)]
mod test_support;

pub use cache_sort::cache_sort;
pub use ext_tsp::{Edge, EdgeKind, Graph, ext_tsp, score};
pub use footprint::{Footprint, LINE_BYTES, PAGE_BYTES, Span, hottest};
pub use function_order::{
    CallEdge, FuncNode, OrderOptions, call_distance, function_order, function_order_with,
};
pub use misses::{BestOrder, CORE, CodeCache, OrderBy, best_function_order, miss_cost};
