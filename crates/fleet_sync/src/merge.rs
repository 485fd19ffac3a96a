//! The merger's part: folds the contributions of a program, signs, and advances the waves.
//!
//! Any number of mergers may run, at any time. Each step ends with a head, which is written only if the store
//! has no head of the same number. So a merger that is late, or that ends in the middle, changes nothing.

use crate::{Changed, Error, Listed, Remote, SigningKey, pack, unpack};
use fleet::{
    Contributed, Folded, Head, HostId, Key, Keys, Newest, Policy, Profile, Program, Purpose, Refused, SAMPLE,
    Step, Votes, advance, by_rank, fold, read,
};
use futures_util::future::join_all;

/// The most contributions of one host that are listed. A host makes at most one a day, and the store keeps them for
/// 40 days.
const MOST_OF_HOST: usize = 100;
/// How many hosts are listed at a time.
const AT_ONCE: usize = 16;
/// How often a request is made if the store is out of reach. A new aggregate takes some 130 requests, and would fail
/// with any of them.
const ATTEMPTS: usize = 4;

/// A merger.
#[derive(Debug)]
pub struct Merger {
    /// Its id, for the clock's object.
    pub id: HostId,
    /// The key it signs with.
    pub key: SigningKey,
    /// The keys it trusts, its own among them.
    pub keys: Keys,
}

/// What a run did for one program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Merged {
    /// Nothing, for this reason.
    Unchanged(String),
    /// The head was replaced, for this reason.
    Replaced(Box<Head>, String),
    /// Another merger replaced the head meanwhile. Nothing is lost.
    Late,
}

/// Does one step for a program. Returns what was done, and what was refused.
///
/// # Errors
/// [`Error`]; nothing has changed then, or the step was done and its copy for hosts follows with the next run.
pub async fn merge(
    remote: &Remote,
    merger: &Merger,
    program: &Program,
) -> Result<(Merged, Vec<String>), Error> {
    let mut run = Run { remote, merger, program, refused: Vec::new() };
    // The object's bytes are of no interest, only its time.
    remote.replace(program, &Key::Clock, merger.id.to_string().into_bytes()).await?;
    let now = remote.stored(program, &Key::Clock).await?;
    let policy = run.policy().await?;
    let head = run.head().await?;
    let merged = run.step(&policy, &head, now).await?;
    let head = match &merged {
        Merged::Unchanged(_) => &head,
        Merged::Replaced(next, _) => next,
        // The other merger does the rest.
        Merged::Late => return Ok((merged, run.refused)),
    };
    run.record_newest(&policy, head, now).await?;
    Ok((merged, run.refused))
}

/// One step of a merger for a program.
struct Run<'a> {
    remote: &'a Remote,
    merger: &'a Merger,
    program: &'a Program,
    /// What was refused so far.
    refused: Vec<String>,
}

impl Run<'_> {
    /// Advances the head by one step, if anything is to be done.
    async fn step(&mut self, policy: &Policy, head: &Head, now: u64) -> Result<Merged, Error> {
        let offered = match &head.offer {
            Some(offer) => self.remote.votes(self.program, &offer.digest).await?,
            None => Votes::default(),
        };
        let current = match &head.current {
            Some(digest) => self.remote.votes(self.program, digest).await?,
            None => Votes::default(),
        };
        let (next, why) = match advance(head, policy, now, offered, current) {
            Step::Wait(why) => return Ok(Merged::Unchanged(why.to_owned())),
            Step::Replace(next, why) => (*next, why.to_owned()),
            Step::Fold => match self.new_offer(policy, head, now).await? {
                Ok(offer) => offer,
                Err(why) => return Ok(Merged::Unchanged(why)),
            },
        };
        let signed = self.merger.key.sign(&Purpose::Head(self.program.clone()), next.text().as_bytes())?;
        if !self.remote.create(self.program, &Key::Head(next.serial), signed.clone()).await? {
            return Ok(Merged::Late);
        }
        self.remote.replace(self.program, &Key::Current, signed).await?;
        Ok(Merged::Replaced(next.into(), why))
    }

    /// Puts the record of the newest build right. If a merger ends before, the next step does it.
    async fn record_newest(&mut self, policy: &Policy, head: &Head, now: u64) -> Result<(), Error> {
        // Contributions of earlier versions state no name.
        let Some(name) = head.name else { return Ok(()) };
        let (key, purpose) = (Key::Newest(name), Purpose::Newest(name, self.program.class.clone()));
        let open = |bytes: &[u8]| {
            let newest = self.merger.keys.open(bytes, &purpose).and_then(|content| Newest::parse(content, 0));
            newest.map_err(|why| self.refusal(&key, why))
        };
        let found =
            self.remote.get(self.program, &key).await.and_then(|bytes| bytes.map(|b| open(&b)).transpose());
        let present = match found {
            // Somebody wrote nonsense over it. Of a later version it is no nonsense.
            Err(e @ Error::Refused { .. }) => {
                self.refused.push(e.to_string());
                if let Error::Refused { why: Refused::Newer(_), .. } = e {
                    return Ok(());
                }
                None
            }
            found => found?,
        };
        if let Some(next) = Newest::next(present.as_ref(), self.program, head, policy, now) {
            self.remote
                .replace(self.program, &key, self.merger.key.sign(&purpose, next.text().as_bytes())?)
                .await?;
        }
        Ok(())
    }

    async fn policy(&self) -> Result<Policy, Error> {
        let Some(bytes) = self.remote.get(self.program, &Key::Policy).await? else {
            return Ok(Policy::default());
        };
        let parsed = self.merger.keys.open(&bytes, &Purpose::Policy).and_then(Policy::parse);
        parsed.map_err(|why| self.refusal(&Key::Policy, why))
    }

    /// Returns the head in force: the one with the greatest number. Its copy for hosts is put right if a merger
    /// ended before it wrote it, or wrote an older one late.
    async fn head(&mut self) -> Result<Head, Error> {
        let open = |bytes: &[u8]| {
            self.merger
                .keys
                .open(bytes, &Purpose::Head(self.program.clone()))
                .and_then(|content| Head::parse(content, 0))
        };
        let copy = match self.remote.get_if_changed(self.program, &Key::Current, None).await? {
            Changed::New(bytes, _) => match open(&bytes) {
                Ok(head) => Some(head),
                // Somebody wrote nonsense over it. The numbered ones count.
                Err(why) => {
                    self.refused.push(self.refusal(&Key::Current, why).to_string());
                    None
                }
            },
            Changed::Missing | Changed::Same => None,
        };
        let known = copy.as_ref().map_or(0, |h| h.serial);
        let folder = format!("v1/{}/{}/h", self.program.build, self.program.class);
        let after = Key::Head(known).path(self.program);
        let mut serials: Vec<u64> = self
            .remote
            .list(&folder, Some(&after), usize::MAX)
            .await?
            .iter()
            .filter_map(|l| if let Key::Head(serial) = l.key { Some(serial) } else { None })
            .collect();
        serials.sort_unstable();
        let Some(&newest) = serials.last() else { return Ok(copy.unwrap_or_default()) };
        let key = Key::Head(newest);
        let bytes = self.remote.get(self.program, &key).await?.unwrap_or_default();
        let head = open(&bytes).map_err(|why| self.refusal(&key, why))?;
        self.remote.replace(self.program, &Key::Current, bytes).await?;
        Ok(head)
    }

    /// Makes an aggregate of the contributions, and returns the head that offers it; or the reason why there is
    /// none.
    async fn new_offer(
        &mut self,
        policy: &Policy,
        head: &Head,
        now: u64,
    ) -> Result<Result<(Head, String), String>, Error> {
        let folder = format!("v1/{}/{}/c", self.program.build, self.program.class);
        let there = by_rank(self.program, self.remote.hosts(&folder).await?);
        let not_due =
            |hosts: usize| Ok(Err(format!("no new aggregate is due: {hosts} hosts have contributed")));
        if !head.is_due(there.len().min(SAMPLE), policy, now) {
            return not_due(there.len());
        }
        let all = self.contributions(&folder, &there).await?;
        let folded = Folded::choose(self.program, &all);
        let (set, hosts) = (folded.set(), folded.chosen.len());
        if !head.is_due(hosts, policy, now) {
            return not_due(hosts);
        }
        if head.folded == Some(set) {
            return Ok(Ok((head.looked(now), "nothing new was contributed".to_owned())));
        }
        let mut profiles: Vec<(u64, Profile)> = Vec::with_capacity(hosts);
        for (c, weight) in &folded.chosen {
            let key = Key::Contribution { day: c.day, host: c.host, digest: c.digest };
            let bytes = insistently(|| self.remote.get(self.program, &key)).await?.unwrap_or_default();
            let profile = unpack(&bytes).and_then(|text| read(&text, &c.digest, &self.program.build));
            match profile {
                Ok(profile) => profiles.push((*weight, profile)),
                Err(why) => self.refused.push(self.refusal(&key, why).to_string()),
            }
        }
        if profiles.len() < policy.min_hosts {
            return Ok(Err(format!(
                "{} of the contributions can be used; the policy requires more",
                profiles.len()
            )));
        }
        let Some(aggregate) = fold(self.program, folded.newest, &profiles) else {
            return Ok(Err("no function is in enough contributions".to_owned()));
        };
        let digest = aggregate.digest;
        let signed =
            self.merger.key.sign(&Purpose::Aggregate(self.program.clone()), aggregate.text.as_bytes())?;
        // If another merger was first, its aggregate has the same text.
        self.remote.create(self.program, &Key::Aggregate(digest), pack(&signed)).await?;
        let offer = head.offering(digest, set, hosts, folded.rank, now);
        let next = Head { name: aggregate.name.or(head.name), ..offer };
        Ok(Ok((next, format!("an aggregate of {} hosts is offered", profiles.len()))))
    }

    /// Lists the contributions of the hosts with the lowest ranks. A host may have nothing that can be used; then the
    /// next one takes its place.
    async fn contributions(&self, folder: &str, hosts: &[HostId]) -> Result<Vec<Contributed>, Error> {
        let (mut all, mut usable) = (Vec::new(), 0);
        for some in hosts.chunks(AT_ONCE) {
            for of_host in join_all(some.iter().map(|host| self.of_host(folder, *host))).await {
                let of_host = of_host?;
                usable += usize::from(of_host.iter().any(Contributed::is_dated_right));
                all.extend(of_host);
            }
            if usable >= SAMPLE {
                break;
            }
        }
        Ok(all)
    }

    async fn of_host(&self, folder: &str, host: HostId) -> Result<Vec<Contributed>, Error> {
        let own = format!("{folder}/{host}");
        let listed = insistently(|| self.remote.list(&own, None, MOST_OF_HOST)).await?;
        let contributed = |l: Listed| match l.key {
            Key::Contribution { day, host, digest } => {
                Some(Contributed { day, host, digest, stored: l.stored })
            }
            _ => None,
        };
        Ok(listed.into_iter().filter_map(contributed).collect())
    }

    fn refusal(&self, key: &Key, why: Refused) -> Error {
        Error::Refused { object: key.path(self.program), why }
    }
}

/// Makes a request again if the store is out of reach for a moment.
async fn insistently<T, F>(request: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    for _ in 1..ATTEMPTS {
        match request().await {
            Err(e) if e.is_outage() => {}
            result => return result,
        }
    }
    request().await
}
