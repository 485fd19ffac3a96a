//! The head of a program: which aggregate is in force, and which is on its way to all hosts.
//!
//! A merger writes a head with the next serial number, unless the store has a head of this number. So of two
//! mergers at once one succeeds, and the other begins again. All times are the store's.

use crate::{Digest, HostId, Name, Policy, Program, Rank, Refused, Verdict, Votes, versioned};
use serde::{Deserialize, Serialize};

/// The version of the form.
const VERSION: u32 = 1;
/// How many withdrawn aggregates a head lists.
const WITHDRAWN: usize = 64;

/// The head of a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Head {
    /// The version of the form.
    pub version: u32,
    /// The number of this head; each head has one more than the head before.
    pub serial: u64,
    /// The aggregate for all hosts.
    pub current: Option<Digest>,
    /// The aggregate that is offered in waves.
    pub offer: Option<Offer>,
    /// Aggregates that did harm, the newest last. No host uses them.
    pub withdrawn: Vec<Digest>,
    /// The digest of the set of contributions behind the newest aggregate, used or withdrawn.
    pub folded: Option<Digest>,
    /// The number of hosts in that set.
    pub hosts: usize,
    /// When that aggregate was made, or a later look found the same set: seconds of the Unix epoch, by the store's
    /// clock.
    pub folded_at: u64,
    /// The rank below which a host's contribution was used, if there were enough of them. Hosts with far greater
    /// ranks need not look whether they should contribute.
    pub rank: Option<u64>,
    /// The name of the program that most contributions state.
    pub name: Option<Name>,
    /// When an aggregate first was in force on all hosts: seconds of the Unix epoch, by the store's clock.
    pub since: Option<u64>,
}

/// An aggregate that is offered in waves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// The aggregate.
    pub digest: Digest,
    /// The wave: an index into the policy's waves.
    pub wave: usize,
    /// When the wave began: seconds of the Unix epoch, by the store's clock.
    pub since: u64,
}

/// The next action of a merger on a head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing changes, for this reason.
    Wait(&'static str),
    /// The head is replaced, for this reason.
    Replace(Box<Head>, &'static str),
    /// An aggregate may be offered, if the contributions have changed.
    Fold,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            version: VERSION,
            serial: 0,
            current: None,
            offer: None,
            withdrawn: Vec::new(),
            folded: None,
            hosts: 0,
            folded_at: 0,
            rank: None,
            name: None,
            since: None,
        }
    }
}

impl Head {
    /// Parses the content of a head, which must not be older than one that was seen before.
    ///
    /// # Errors
    /// [`Refused::Content`], [`Refused::Newer`], [`Refused::Older`]
    pub fn parse(content: &[u8], seen: u64) -> Result<Self, Refused> {
        let head: Self = versioned::parse(content, VERSION)?;
        if head.serial < seen {
            return Err(Refused::Older { found: head.serial, seen });
        }
        Ok(head)
    }

    /// Returns the text of the head.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns the aggregate that a host should use. `own` are aggregates that did harm on this host.
    #[must_use]
    pub fn choose(&self, host: HostId, program: &Program, policy: &Policy, own: &[Digest]) -> Option<Digest> {
        let offered = self.offer.as_ref().filter(|o| {
            let percent = policy.waves.get(o.wave).or(policy.waves.last()).copied().unwrap_or(0);
            Rank::of_offer(host, &o.digest).is_within(percent)
        });
        let usable = |d: &Digest| self.is_usable(d, program, policy, own);
        offered.map(|o| o.digest).filter(usable).or_else(|| self.in_force(program, policy, own))
    }

    /// Returns the aggregate in force on all hosts, unless it may not be used. Hosts with another build of the
    /// program may use this one, and none that is offered in waves. `own` are aggregates that did harm on this
    /// host.
    #[must_use]
    pub fn in_force(&self, program: &Program, policy: &Policy, own: &[Digest]) -> Option<Digest> {
        self.current.filter(|d| self.is_usable(d, program, policy, own))
    }

    fn is_usable(&self, digest: &Digest, program: &Program, policy: &Policy, own: &[Digest]) -> bool {
        !own.contains(digest) && !self.withdrawn.contains(digest) && !policy.denies(program, digest)
    }

    /// Returns the head after this one.
    fn next(&self) -> Self {
        Self { serial: self.serial + 1, ..self.clone() }
    }

    fn withdraw(&mut self, digest: Digest) {
        self.withdrawn.push(digest);
        let more = self.withdrawn.len().saturating_sub(WITHDRAWN);
        self.withdrawn.drain(..more);
    }

    /// Returns whether the contributions should be looked at: so many hosts have contributed as the policy requires,
    /// and these are twice as many as in the last aggregate, or the last look is older than the policy's interval.
    /// `hosts` is the number of hosts that have contributed, at most [`crate::SAMPLE`].
    #[must_use]
    pub fn is_due(&self, hosts: usize, policy: &Policy, now: u64) -> bool {
        let aged = now >= self.folded_at.saturating_add(policy.every);
        hosts >= policy.min_hosts.max(1) && (aged || hosts >= 2 * self.hosts)
    }

    /// Returns the head after a look that found no other contributions than the last aggregate has.
    #[must_use]
    pub fn looked(&self, now: u64) -> Self {
        Self { folded_at: now, ..self.next() }
    }

    /// Returns the head that offers a new aggregate. `set` is the digest of the set of contributions.
    #[must_use]
    pub fn offering(&self, digest: Digest, set: Digest, hosts: usize, rank: Option<u64>, now: u64) -> Self {
        let known = self.withdrawn.contains(&digest) || self.current == Some(digest);
        let offer = (!known).then_some(Offer { digest, wave: 0, since: now });
        Self { offer, folded: Some(set), hosts, folded_at: now, rank, ..self.next() }
    }
}

/// Decides the next step of a head. `now` is the store's time in seconds; the votes are on the offer and on
/// the aggregate in force.
#[must_use]
pub fn advance(head: &Head, policy: &Policy, now: u64, offered: Votes, current: Votes) -> Step {
    if let Some(digest) = head.current.filter(|_| current.verdict() == Verdict::Harmful) {
        let mut next = Head { current: None, ..head.next() };
        next.withdraw(digest);
        return Step::Replace(next.into(), "the aggregate in force does harm and is withdrawn");
    }
    let Some(offer) = &head.offer else {
        return if policy.pause { Step::Wait("the policy says pause") } else { Step::Fold };
    };
    let verdict = offered.verdict();
    if verdict == Verdict::Harmful {
        let mut next = Head { offer: None, ..head.next() };
        next.withdraw(offer.digest);
        return Step::Replace(next.into(), "the offered aggregate does harm and is withdrawn");
    }
    if policy.pause {
        return Step::Wait("the policy says pause");
    }
    if verdict == Verdict::Doubtful {
        return Step::Wait("a host voted for harm, and too few have voted to decide");
    }
    if now < offer.since.saturating_add(policy.step) {
        return Step::Wait("the wave has not lasted long enough");
    }
    let wave = offer.wave + 1;
    let mut next = head.next();
    if wave + 1 < policy.waves.len() {
        next.offer = Some(Offer { wave, since: now, ..offer.clone() });
        Step::Replace(next.into(), "the next wave begins")
    } else {
        next.current = Some(offer.digest);
        next.since.get_or_insert(now);
        next.offer = None;
        Step::Replace(next.into(), "the aggregate is in force on all hosts")
    }
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
