//! Which hosts contribute: those with the lowest ranks.
//!
//! A rank is a hash of host and program. So a host gains nothing by contributing early or often, and hostile hosts are
//! as rare among the chosen hosts as in the fleet. No host needs the number of hosts: it compares its rank with the
//! ranks of those that have contributed.

use crate::{HostId, Program};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// How many hosts' contributions are used for a program.
pub const SAMPLE: usize = 64;

/// The place of a host among all hosts, evenly distributed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank(pub u64);

impl Rank {
    /// Returns the rank of a host among those that may contribute.
    #[must_use]
    pub fn of_host(host: HostId, program: &Program) -> Self {
        Self::of(host, &format!("host {program}"))
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

/// Returns hosts by their ranks, the lowest first, each once.
#[must_use]
pub fn by_rank(program: &Program, hosts: impl IntoIterator<Item = HostId>) -> Vec<HostId> {
    let ranked: BTreeSet<(Rank, HostId)> =
        hosts.into_iter().map(|host| (Rank::of_host(host, program), host)).collect();
    ranked.into_iter().map(|(_, host)| host).collect()
}

/// Returns whether a host should contribute. `there` are the hosts that have contributed.
#[must_use]
pub fn should_contribute(host: HostId, program: &Program, there: impl IntoIterator<Item = HostId>) -> bool {
    let all = by_rank(program, there.into_iter().chain([host]));
    all.iter().take(SAMPLE).any(|h| *h == host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Build, Class};

    #[test]
    fn the_same_hosts_are_chosen_in_any_order_and_few_others_upload() {
        let program = Program { build: Build::parse("0a").unwrap(), class: Class::default() };
        let hosts: Vec<HostId> = (0..5000).map(|i| HostId::of(&i.to_string())).collect();
        let chosen = |order: &[HostId]| {
            let mut there = Vec::new();
            for &host in order {
                if should_contribute(host, &program, there.iter().copied()) {
                    there.push(host);
                }
            }
            let uploads = there.len();
            let mut ranked = by_rank(&program, there);
            ranked.truncate(SAMPLE);
            (ranked, uploads)
        };
        let (one, uploads) = chosen(&hosts);
        let backwards: Vec<HostId> = hosts.iter().rev().copied().collect();
        assert_eq!(chosen(&backwards).0, one);
        // 64 (1 + ln(5000 / 64)) is 343.
        assert!((SAMPLE..500).contains(&uploads), "{uploads}");
        assert!(should_contribute(one[9], &program, one.clone()), "again, with a newer profile");
        let next = Program { build: Build::parse("0b").unwrap(), class: Class::default() };
        assert_ne!(Rank::of_host(hosts[0], &program), Rank::of_host(hosts[0], &next));
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
