//! Events of a CPU's front end: counted by the hardware where it has counters, else modelled by whet.

mod counts;
mod model;
mod perf_output;
mod perf_stat;
mod probe;
mod table;

pub use counts::{Counts, IPC, METRICS, Metric};
pub use model::{Modelled, PENALTIES};
pub use perf_stat::Counting;
pub use probe::{Uncounted, probe};
pub use table::{Table, table};
