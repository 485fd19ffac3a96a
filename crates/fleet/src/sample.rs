//! Which hosts contribute: those with the lowest ranks of a day.
//!
//! A rank is a hash of host, program and day. So other hosts contribute each day, and a host gains nothing by
//! contributing early or often. No host needs the number of hosts: it compares its rank with the ranks of the
//! contributions that the day already has.

use crate::{Day, HostId, Program};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// How many hosts' contributions of a day are used for a program.
pub const SAMPLE: usize = 64;

/// The place of a host among all hosts, evenly distributed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank(pub u64);

impl Rank {
    /// Returns the rank of a host among those that may contribute on a day.
    #[must_use]
    pub fn of_day(host: HostId, program: &Program, day: Day) -> Self {
        Self::of(host, &format!("day {program} {}", day.0))
    }

    /// Returns the rank of a host among those to which `what` is offered.
    #[must_use]
    pub fn of_offer(host: HostId, what: &crate::Digest) -> Self {
        Self::of(host, &format!("offer {what}"))
    }

    fn of(host: HostId, what: &str) -> Self {
        let sum: [u8; 32] = Sha256::new().chain_update(host.0).chain_update(what).finalize().into();
        let mut first = [0; 8];
        first.copy_from_slice(&sum[..8]);
        Self(u64::from_be_bytes(first))
    }

    /// Returns whether the rank is among the lowest `percent` of all ranks.
    #[must_use]
    pub fn is_within(self, percent: u8) -> bool {
        u128::from(self.0) * 100 < u128::from(percent) << 64
    }
}

/// Returns whether a host should contribute. `there` are the hosts that have contributed on this day already.
#[must_use]
pub fn should_contribute(
    host: HostId,
    program: &Program,
    day: Day,
    there: impl IntoIterator<Item = HostId>,
) -> bool {
    let own = Rank::of_day(host, program, day);
    let others: BTreeSet<HostId> = there.into_iter().collect();
    let before = others.iter().filter(|h| Rank::of_day(**h, program, day) < own).count();
    !others.contains(&host) && before < SAMPLE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Build, Class};

    #[test]
    fn the_same_hosts_are_chosen_in_any_order_and_few_others_upload() {
        let program = Program { build: Build::parse("0a").unwrap(), class: Class::default() };
        let hosts: Vec<HostId> = (0..5000).map(|i| HostId::of(&i.to_string())).collect();
        let day = Day(20_000);
        let chosen = |order: &[HostId]| {
            let mut there = Vec::new();
            for &host in order {
                if should_contribute(host, &program, day, there.iter().copied()) {
                    there.push(host);
                }
            }
            let uploads = there.len();
            there.sort_by_key(|h| Rank::of_day(*h, &program, day));
            there.truncate(SAMPLE);
            (there, uploads)
        };
        let (one, uploads) = chosen(&hosts);
        let backwards: Vec<HostId> = hosts.iter().rev().copied().collect();
        assert_eq!(chosen(&backwards).0, one);
        // 64 (1 + ln(5000 / 64)) is 343.
        assert!((SAMPLE..500).contains(&uploads), "{uploads}");
        assert_ne!(Rank::of_day(hosts[0], &program, day), Rank::of_day(hosts[0], &program, Day(20_001)));
    }

    #[test]
    fn a_wave_has_its_share_of_hosts() {
        let what = crate::Digest::of(b"x");
        for percent in [0, 1, 10, 100] {
            let within =
                (0..10_000).filter(|i| Rank::of_offer(HostId::of(&i.to_string()), &what).is_within(percent));
            let expected = usize::from(percent) * 100;
            assert!(within.count().abs_diff(expected) <= expected / 3, "{percent}");
        }
    }
}
