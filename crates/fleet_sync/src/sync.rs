//! The host's part: contributes profiles and votes, accepts the aggregates for this host.

use crate::{Changed, Error, Memory, ProgramMemory, Remote, Spool, pack, unpack};
use fleet::{
    Build, Class, Day, Digest, Head, HostId, HostReport, Key, Keys, Policy, Profile, Program, Purpose, Rank,
    Refused, Slot, Vote, prepare, read, should_contribute,
};
use serde::{Deserialize, Serialize};

mod former;

/// A host whose rank is up to this many times the last known limit checks again whether it should contribute:
/// the number of hosts may have fallen since.
const MARGIN: u64 = 4;

/// This host.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its id.
    pub id: HostId,
    /// Its class.
    pub class: Class,
    /// The keys it trusts.
    pub keys: Keys,
}

/// The results of a run, as messages for people.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Synced {
    /// The profiles and votes that this host contributed.
    pub contributed: Vec<String>,
    /// The aggregates that this host accepted or removed.
    pub accepted: Vec<String>,
    /// What was refused, and why.
    pub refused: Vec<String>,
    /// What was not done, and why.
    pub kept_back: Vec<String>,
}

/// One run.
struct Run<'a, S> {
    remote: &'a Remote,
    host: &'a Host,
    spool: &'a mut S,
    memory: &'a mut Memory,
    now: u64,
    done: &'a mut Synced,
    /// The first error; the run continues with the remaining steps.
    failed: Option<Error>,
}

/// Runs once. `now` is this host's clock, in seconds of the Unix epoch; it only names the day of a
/// contribution. In every case `done` lists the steps done, and each file of the inbox is the old one or a
/// newer one.
///
/// # Errors
/// The first error. The run has done everything else that was possible.
pub async fn sync<S: Spool>(
    remote: &Remote,
    host: &Host,
    spool: &mut S,
    memory: &mut Memory,
    now: u64,
    done: &mut Synced,
) -> Result<(), Error> {
    let mut run = Run { remote, host, spool, memory, now, done, failed: None };
    let report = match run.spool.report() {
        Ok(report) => report,
        Err(e) => {
            run.note(e);
            HostReport::default()
        }
    };
    run.all(&report).await;
    run.failed.map_or(Ok(()), Err)
}

impl<S: Spool> Run<'_, S> {
    /// Keeps the first error. Returns whether the run should end, because the store is out of reach.
    fn note(&mut self, e: Error) -> bool {
        if let Error::Refused { .. } = e {
            self.done.refused.push(e.to_string());
        }
        let ends = e.is_outage();
        self.failed.get_or_insert(e);
        ends
    }

    async fn all(&mut self, report: &HostReport) {
        if let Err(e) = self.policy(report).await
            && self.note(e)
        {
            return;
        }
        for listed in &report.builds {
            let Some(build) = Build::parse(&listed.build) else { continue };
            let program = Program { build, class: self.host.class.clone() };
            let votes: Vec<&Vote> =
                report.votes.iter().filter(|v| v.build == program.build.to_string()).collect();
            if let Err(e) = self.program(&program, &listed.exe, &votes).await
                && self.note(e)
            {
                return;
            }
        }
    }

    fn refused(object: &Key, program: &Program) -> impl Fn(Refused) -> Error {
        let object = object.path(program);
        move |why| Error::Refused { object: object.clone(), why }
    }

    /// Reads the policy, if it has changed.
    async fn policy(&mut self, report: &HostReport) -> Result<(), Error> {
        // The path of the policy is the same for all programs.
        let Some(build) = report.builds.first().and_then(|b| Build::parse(&b.build)) else { return Ok(()) };
        let program = Program { build, class: self.host.class.clone() };
        let known = self.memory.policy.as_ref();
        let tag = known.and_then(|(_, tag)| tag.as_deref());
        let Changed::New(bytes, tag) = self.remote.get_if_changed(&program, &Key::Policy, tag).await? else {
            return Ok(());
        };
        let refused = Self::refused(&Key::Policy, &program);
        let content = self.host.keys.open(&bytes, &Purpose::Policy).map_err(&refused)?;
        let policy = Policy::parse(content).map_err(&refused)?;
        let seen = known.map_or(0, |(p, _)| p.serial);
        if policy.serial < seen {
            return Err(refused(Refused::Older { found: policy.serial, seen }));
        }
        self.memory.policy = Some((policy, tag));
        Ok(())
    }

    fn policy_in_force(&self) -> Policy {
        self.memory.policy.clone().map(|(policy, _)| policy).unwrap_or_default()
    }

    fn of(&mut self, program: &Program) -> &mut ProgramMemory {
        self.memory.programs.entry(program.build.to_string()).or_default()
    }

    async fn program(&mut self, program: &Program, exe: &str, votes: &[&Vote]) -> Result<(), Error> {
        let head = self.head(program).await?;
        self.vote(program, votes).await?;
        self.take(program, head.as_ref()).await?;
        self.take_former(program, exe).await?;
        self.give(program, head.as_ref()).await
    }

    /// Returns the head. If it cannot be used, returns the head that was read before.
    async fn head(&mut self, program: &Program) -> Result<Option<Head>, Error> {
        match self.read_head(program).await {
            Err(e) if !e.is_outage() => {
                self.note(e);
                Ok(self.of(program).head.clone().map(|(head, _)| head))
            }
            result => result,
        }
    }

    /// Reads the head, if it has changed.
    async fn read_head(&mut self, program: &Program) -> Result<Option<Head>, Error> {
        let known = self.of(program).head.clone();
        let tag = known.as_ref().and_then(|(_, tag)| tag.as_deref());
        match self.remote.get_if_changed(program, &Key::Current, tag).await? {
            Changed::Missing | Changed::Same => Ok(known.map(|(head, _)| head)),
            Changed::New(bytes, tag) => {
                let refused = Self::refused(&Key::Current, program);
                let content =
                    self.host.keys.open(&bytes, &Purpose::Head(program.clone())).map_err(&refused)?;
                let seen = known.as_ref().map_or(0, |(head, _)| head.serial);
                let head = Head::parse(content, seen).map_err(&refused)?;
                self.of(program).head = Some((head.clone(), tag));
                Ok(Some(head))
            }
        }
    }

    /// Writes the votes that were not written yet.
    async fn vote(&mut self, program: &Program, votes: &[&Vote]) -> Result<(), Error> {
        for vote in votes {
            // A host whose first comparison found no harm may find harm later.
            let harm = if vote.harm { " harm" } else { "" };
            let name = format!("{} {}{harm}", vote.build, vote.digest);
            if vote.harm && !self.of(program).harmful.contains(&vote.digest) {
                self.of(program).harmful.push(vote.digest);
            }
            if self.memory.voted.contains(&name) {
                continue;
            }
            let key = Key::Vote { digest: vote.digest, harm: vote.harm, host: self.host.id };
            let body = serde_json::to_vec(vote).unwrap_or_default();
            self.remote.create(program, &key, body).await?;
            self.done
                .contributed
                .push(format!("a vote for {}: {name}", if vote.harm { "harm" } else { "no harm" }));
            self.memory.voted.insert(name);
        }
        Ok(())
    }

    /// Takes the aggregate that is meant for this host, or removes one that no host may use.
    async fn take(&mut self, program: &Program, head: Option<&Head>) -> Result<(), Error> {
        let build = &program.build;
        let policy = self.policy_in_force();
        let own = self.of(program).harmful.clone();
        let there = self.spool.inbox(build, Slot::Own)?;
        let chosen = head.and_then(|h| h.choose(self.host.id, program, &policy, &own));
        let barred = |d: &Digest| {
            own.contains(d) || policy.denies(program, d) || head.is_some_and(|h| h.withdrawn.contains(d))
        };
        if let Some(digest) = chosen.filter(|d| Some(*d) != there) {
            if policy.pause {
                self.done.kept_back.push(format!("{build}: the policy says pause"));
            } else {
                let fits = |text: &[u8]| read(text, &digest, build);
                match self.fetch(program, digest, fits).await {
                    Ok(bytes) => {
                        self.spool.put(build, Slot::Own, &bytes)?;
                        self.done.accepted.push(format!("{build}: aggregate {digest}"));
                        return Ok(());
                    }
                    Err(e @ Error::Refused { .. }) => {
                        self.note(e);
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        if let Some(digest) = there.filter(barred) {
            self.spool.remove(build, Slot::Own)?;
            self.done.accepted.push(format!("{build}: aggregate {digest} was removed"));
        }
        Ok(())
    }

    /// Reads an aggregate, and checks its text by `fits`.
    async fn fetch(
        &self,
        program: &Program,
        digest: Digest,
        fits: impl Fn(&[u8]) -> Result<Profile, Refused>,
    ) -> Result<Vec<u8>, Error> {
        let key = Key::Aggregate(digest);
        let refused = Self::refused(&key, program);
        let Some(packed) = self.remote.get(program, &key).await? else {
            return Err(refused(Refused::Form("the head names it, but it is not there")));
        };
        let bytes = unpack(&packed).map_err(&refused)?;
        let text = self.host.keys.open(&bytes, &Purpose::Aggregate(program.clone())).map_err(&refused)?;
        fits(text).map_err(&refused)?;
        Ok(bytes)
    }

    /// Gives the host's profile, if it is new and the host is among the chosen ones of the day.
    async fn give(&mut self, program: &Program, head: Option<&Head>) -> Result<(), Error> {
        let build = &program.build;
        let day = Day::of(self.now);
        if self.of(program).passed == Some(day.0) {
            return Ok(());
        }
        let Some(bytes) = self.spool.profile(build)? else { return Ok(()) };
        let path = format!("the profile of {build}");
        let refused = |why| Error::Refused { object: path.clone(), why };
        let profile = Profile::read(&bytes).map_err(|e| refused(e.into()))?;
        let (text, digest) = prepare(profile, build).map_err(refused)?;
        if self.of(program).given == Some(digest) {
            return Ok(());
        }
        let rank = Rank::of_host(self.host.id, program).0;
        let limit = head.and_then(|h| h.rank).map_or(u64::MAX, |r| r.saturating_mul(MARGIN));
        let is_chosen = rank <= limit && {
            let folder = format!("v1/{}/{}/c", program.build, program.class);
            should_contribute(self.host.id, program, self.remote.hosts(&folder).await?)
        };
        if !is_chosen {
            self.of(program).passed = Some(day.0);
            self.done.kept_back.push(format!("{build}: this host is not among the contributors"));
            return Ok(());
        }
        let key = Key::Contribution { day, host: self.host.id, digest };
        self.remote.create(program, &key, pack(text.as_bytes())).await?;
        self.done.contributed.push(format!("{build}: profile {digest}"));
        let stored = self.remote.stored(program, &key).await;
        self.of(program).given = Some(digest);
        self.of(program).passed = Some(day.0);
        if Day::of(stored?) != day {
            self.done.kept_back.push(format!(
                "{build}: this host's clock is on another day (UTC) than the store's, so its profile is not used"
            ));
        }
        Ok(())
    }
}
