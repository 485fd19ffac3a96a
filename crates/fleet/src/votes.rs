//! The votes of hosts on an aggregate: did it gain where it was used?

use serde::{Deserialize, Serialize};

/// How many hosts voted, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Votes {
    /// Hosts whose comparison found no harm.
    pub good: u64,
    /// Hosts whose comparison found harm, and that undid the clones.
    pub harm: u64,
}

/// The verdict of the votes on an aggregate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It may be offered to more hosts.
    Fine,
    /// Too few votes to decide: it is not offered to more hosts.
    Doubtful,
    /// It is withdrawn.
    Harmful,
}

/// One vote for harm may be chance: a comparison's interval is wrong 1 time in 40 on this side.
const LEAST: u64 = 2;
/// The share of harm at which an aggregate is withdrawn. Percent. Far above chance and above the share of hosts
/// that may be hostile.
const SHARE: u64 = 20;

impl Votes {
    /// Returns the verdict.
    #[must_use]
    pub fn verdict(self) -> Verdict {
        let many = u128::from(self.harm) * 100
            >= u128::from(SHARE) * (u128::from(self.good) + u128::from(self.harm));
        match self.harm {
            0 => Verdict::Fine,
            _ if !many => Verdict::Fine,
            harm if harm < LEAST => Verdict::Doubtful,
            _ => Verdict::Harmful,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_votes_withdraws_and_one_vote_holds() {
        let verdict = |good, harm| Votes { good, harm }.verdict();
        assert_eq!([verdict(0, 0), verdict(9, 0), verdict(19, 1)], [Verdict::Fine; 3]);
        assert_eq!([verdict(0, 1), verdict(4, 1)], [Verdict::Doubtful; 2]);
        assert_eq!([verdict(0, 2), verdict(8, 2), verdict(80, 20)], [Verdict::Harmful; 3]);
        // A twentieth of hostile hosts does not withdraw it.
        assert_eq!(verdict(95, 5), Verdict::Fine);
        assert_eq!(verdict(u64::MAX, u64::MAX), Verdict::Harmful);
    }
}
