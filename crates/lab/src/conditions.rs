//! Consistency conditions of a load's data.

use crate::error::Error;
use crate::lab::ActiveStep;
use crate::record::Event;

/// A consistency condition.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// The condition.
    pub name: &'static str,
    /// The statement that counts the rows that break it.
    pub sql: &'static str,
}

/// Checks all conditions. `count` runs a statement that returns a count. All conditions are recorded before the
/// first broken condition is returned as an error. `when` is the moment: before or after the run.
///
/// # Errors
/// [`Error::Inconsistent`] if a condition does not hold; the errors of `count` and of the folder.
pub fn check<T>(
    on: &mut ActiveStep<'_, T>,
    conditions: &[Condition],
    when: &str,
    mut count: impl FnMut(&str) -> Result<u64, Error>,
) -> Result<(), Error> {
    on.lab.progress.doing("checking the data");
    let mut broken = None;
    for condition in conditions {
        on.lab.commands.interrupt.check()?;
        let rows = count(condition.sql)?;
        let name = format!("{} ({when} the run)", condition.name);
        let found = if rows == 0 { "no row breaks it".to_owned() } else { format!("{rows} rows break it") };
        if rows > 0 {
            broken.get_or_insert_with(|| format!("condition {name}: {found}"));
        }
        on.add(Event::Check { name, ok: rows == 0, found })?;
    }
    match broken {
        Some(what) => Err(Error::Inconsistent { load: on.step.load.clone(), what }),
        None => Ok(()),
    }
}
