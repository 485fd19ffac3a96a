//! From raw data to a page: figures, charts, and one HTML file that contains them all. Nothing is measured
//! here.

mod across;
mod charts;
mod compare;
mod events;
mod figures;
mod headline;
mod index;
mod layout;
mod over_time;
mod page;
mod power;
mod response;
mod scaling;
mod side_by_side;
mod tables;

pub use compare::compare;
pub use index::index;
pub use page::{summary, verdict, write};
pub use power::power;
