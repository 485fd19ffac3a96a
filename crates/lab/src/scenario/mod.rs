//! The scenarios, one in each file.

pub mod fixed_rate;
pub mod interpreters;
pub mod key_value;
pub mod oltp_rw;
pub mod pgbench;
pub mod scaling;
pub mod stalls;
pub mod tpcc;
pub mod web;

mod imp;
mod loads;
pub use imp::Scenario;
