//! A target's work, as a number that grows.

mod command;
mod mysql;
mod system_calls;

pub use command::Command;
pub use mysql::{MySql, MySqlOptions};
pub use system_calls::SystemCalls;

use crate::WorkError;

/// A counter of the work that a target has done.
pub trait Work {
    /// Returns a description of what is counted, for display.
    fn what(&self) -> String;

    /// Returns a stable name of the kind of work, for JSON.
    fn kind(&self) -> &'static str;

    /// Returns the count so far, from any start. The work that this read itself causes is not included, except
    /// for what a command causes. If the count falls, the window in which it falls is left out.
    ///
    /// # Errors
    /// [`WorkError`]; it ends the comparison.
    fn read(&mut self) -> Result<f64, WorkError>;
}
