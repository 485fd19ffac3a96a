//! From raw data to a page: figures, charts, one HTML file with all in it. Measures nothing.

mod charts;
mod compare;
mod figures;
mod page;
mod scaling;
mod tables;

pub use compare::compare;
pub use page::write;
