//! The scenarios, one in each file.

pub mod fixed_rate;
pub mod oltp_rw;
pub mod scaling;
pub mod stalls;
pub mod tpcc;

mod imp;
pub use imp::Scenario;
