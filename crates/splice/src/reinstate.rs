//! Puts an earlier generation in force again if there is no room for a new one.
//!
//! Its clones are still correct: each stands for its original. It gets the next number, so that it is the
//! newest generation from then on. Redirects of all others are undone in the same stops.

use crate::{Cache, Error, Header, Installed, Policy, State, ToggleReport, fault, toggle};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use tracee::Process;

impl Installed {
    /// Returns the generations whose caches are complete, counting generations excluded, with their caches;
    /// ascending.
    #[must_use]
    pub fn whole_generations(&self) -> Vec<(u32, Vec<&Cache>)> {
        let mut all: BTreeMap<u32, Vec<&Cache>> = BTreeMap::new();
        for cache in self.caches.iter().filter(|c| !c.header.counting) {
            all.entry(cache.header.generation).or_default().push(cache);
        }
        let all = all.into_iter();
        all.filter(|(_, caches)| {
            let wanted = caches.first().map(|c| c.header.caches as usize);
            wanted == Some(caches.len())
        })
        .collect()
    }
}

/// Puts a generation in force again as the newest. Returns its new number, and the redirects written.
///
/// # Errors
/// As [`crate::redo`]. If whet dies in between, an unfinished installation remains.
pub fn reinstate(
    process: &Process,
    installed: &Installed,
    generation: u32,
    policy: &Policy,
) -> Result<(u32, ToggleReport), Error> {
    crate::finishing::publish(process, &mut installed.anchor.clone())?;
    let number = installed.next_generation()?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    let mut now = installed.clone();
    for cache in &mut now.caches {
        if !cache.header.counting && cache.header.generation == generation {
            cache.header = Header { generation: number, state: State::Prepared, since_ns, ..cache.header };
            fault::point();
            toggle::write_checked(process, cache.header.data.start, &cache.header.write())?;
        }
    }
    let report = toggle::redo(process, &now, policy)?;
    Ok((number, report))
}
