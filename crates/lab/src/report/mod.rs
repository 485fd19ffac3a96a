//! From raw data to a page: figures, charts, one HTML file with all in it. Measures nothing.

mod charts;
mod compare;
mod figures;
mod headline;
mod page;
mod scaling;
mod side_by_side;
mod tables;

pub use compare::compare;
pub use page::{summary, write};
