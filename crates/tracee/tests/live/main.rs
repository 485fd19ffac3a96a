//! Tests on live processes: guests that do what makes tracing hard.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod felt;
mod guest;
mod refusals;
mod remote;
mod sharing;
mod stops;
