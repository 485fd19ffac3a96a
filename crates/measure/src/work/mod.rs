//! What a target does for others, as a number that grows.

mod command;
mod mysql;
mod system_calls;

pub use command::Command;
pub use mysql::{MySql, MySqlOptions};
pub use system_calls::SystemCalls;

use crate::WorkError;

/// Counts what a target has done so far.
pub trait Work {
    /// What is counted, for people.
    fn what(&self) -> String;

    /// A stable name of the kind, for JSON.
    fn kind(&self) -> &'static str;

    /// The count so far, from any beginning, without what the reading itself added. Should it ever fall, the window in
    /// which it does is left out.
    ///
    /// # Errors
    /// [`WorkError`]; the comparison ends with it.
    fn read(&mut self) -> Result<f64, WorkError>;
}
