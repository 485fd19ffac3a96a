//! The profiles of all targets: their exchange with the fleet, votes on aggregates, and warm starts.

use crate::supervisor::{Daemon, Entry};
use crate::warm::Warm;
use crate::watch::Identity;
use fleet::Vote;
use std::collections::BTreeMap;

impl Daemon {
    /// Exchanges profiles with the spool folder.
    pub(crate) fn exchange_profiles(&mut self) {
        if self.config.fleet.spool.is_none() {
            return;
        }
        let builds: BTreeMap<String, String> =
            self.targets.values().filter_map(|e| Some((e.build_id.clone()?, e.exe.clone()))).collect();
        self.counted.unwritten += u64::from(self.exchange.exchange(&builds));
        let has: Vec<bool> = self.targets.values().map(|e| self.warm_profile(e).is_some()).collect();
        for (entry, has) in self.targets.values_mut().zip(has) {
            entry.life.has_profile = has;
        }
    }

    /// Votes on the aggregate that a target was started by, if its comparison showed something. `fell_back`: the
    /// rebuild did not use it after all.
    pub(crate) fn vote(&mut self, id: Identity, fell_back: bool, judged: bool) {
        let Some(entry) = self.targets.get_mut(&id.pid) else { return };
        if fell_back {
            entry.warm = None;
        }
        let (Some(digest), Some(build), Some(verdict)) = (
            entry.warm.filter(|_| judged).and_then(|w| w.aggregate),
            entry.build_id.clone(),
            entry.life.verdict,
        ) else {
            return;
        };
        let harm = entry.life.is_harmful();
        let factor = [verdict.factor, verdict.low, verdict.high];
        self.exchange.vote(Vote { build, digest, harm, factor });
    }

    /// Returns the profile from which a target would be started warm.
    pub(crate) fn warm_profile(&self, entry: &Entry) -> Option<Warm> {
        self.exchange.warm_profile(entry.build_id.as_deref()?, entry.other_build.as_deref())
    }
}
