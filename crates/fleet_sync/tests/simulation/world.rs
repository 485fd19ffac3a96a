//! A fleet in one process: the real code of hosts and mergers, on a store with weather, in virtual time.
//!
//! A new build is deployed on all hosts within half an hour. Of the build before, one aggregate is in force and
//! one is in its first wave. Each host runs `sync` every 15 minutes, and 5 s after it started the new build. It
//! counts its own load, as its daemon would (75 s after the start). Of the hosts that start from the former
//! build's aggregate, one in two counts: the others fit. Two mergers run every 5 minutes, sometimes
//! in the same second. A share of the hosts is hostile. These contribute profiles of their own making,
//! several a day and for other days. They vote against everything. If they have more rights than hosts need, they
//! also write nonsense and old heads over the head.

#![allow(dead_code, reason = "the test and the bench read different figures")]

use crate::weather::{Climate, Traffic, Weather};
use addr::Svma;
use fleet::{
    Build, BuildReport, Class, Day, Digest, Head, HostId, HostReport, Key, Keys, Name, Newest, Offer, Policy,
    Program, Purpose, Slot, Vote,
};
use fleet_sync::{Error, Host, Memory, Merger, Remote, SigningKey, Spool, Synced, merge, pack, sync, unpack};
use object_store::path::Path;
use profile::{BlockProfile, FunctionKey, FunctionProfile, ModuleProfile, Origin, Profile};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::Rng;
use tokio::time::{Instant, sleep, sleep_until};

const EPOCH: u64 = 20_000 * 86_400 + 3600;
const SYNC: Duration = Duration::from_secs(900);
const MERGE: Duration = Duration::from_secs(300);
const DEPLOY: u64 = 1800;
/// From the start of a server until its daemon has listed it.
const LISTED: Duration = Duration::from_secs(5);
/// From the start of a server until its daemon has counted.
const COUNTED: u64 = 75;
const EXE: &str = "/usr/sbin/server";
/// The functions of the program. The last quarter runs on one host in three only.
const FUNCTIONS: u64 = 40;
/// The first function that only hostile hosts claim to have.
const FORGED: u64 = 1000;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub hosts: usize,
    pub hours: u64,
    pub hostile_percent: usize,
    /// Whether hostile hosts may write over the head.
    pub may_write_heads: bool,
    pub climate: Climate,
    /// After this time, a merger's key offers an aggregate that does harm.
    pub harmful_after: Option<Duration>,
    pub seed: u64,
}

/// What came out.
#[derive(Debug, Default)]
pub struct Outcome {
    pub traffic: Traffic,
    /// Seconds from a host's start of the new build to its aggregate in the inbox; honest hosts.
    pub waits: Vec<u64>,
    pub never: usize,
    pub contributions: usize,
    pub heads: usize,
    pub aggregates: usize,
    /// Two heads of one number, holes in the numbers, sets with two aggregates, aggregates that cannot be verified.
    pub wrong_merges: usize,
    /// Functions in aggregates that no honest host has.
    pub forged_functions: usize,
    /// Branches whose more frequent way differs from that of the honest hosts.
    pub turned_branches: usize,
    /// Branches looked at.
    pub branches: usize,
    /// Honest hosts that ever had the harmful aggregate.
    pub harmed: usize,
    /// Hosts that had it at the end.
    pub still_harmed: usize,
    /// Seconds from a host's start of the new build to the former build's aggregate in the inbox; honest hosts.
    pub former_waits: Vec<u64>,
    /// Times that a host took another aggregate of the former build than the one in force.
    pub wrong_formers: usize,
    /// Whether the record of the newest build names the new build at the end.
    pub newest_is_right: bool,
    pub late_mergers: usize,
    pub refused_by_mergers: usize,
}

impl Outcome {
    /// Returns the time within which a share of the honest hosts had an aggregate, in seconds.
    pub fn within(&self, percent: usize) -> Option<u64> {
        self.share(&self.waits, percent)
    }

    /// The same for the aggregate of the former build.
    pub fn former_within(&self, percent: usize) -> Option<u64> {
        self.share(&self.former_waits, percent)
    }

    fn share(&self, waits: &[u64], percent: usize) -> Option<u64> {
        let mut all = waits.to_vec();
        all.sort_unstable();
        let hosts = self.waits.len() + self.never;
        all.get((hosts * percent).div_ceil(100).saturating_sub(1)).copied()
    }
}

fn program() -> Program {
    Program { build: Build::parse("0123456789abcdef").unwrap(), class: Class::default() }
}

fn former() -> Program {
    Program { build: Build::parse("fedcba9876543210").unwrap(), class: Class::default() }
}

/// A function that takes its first way `n` times and its second `m` times.
fn function(n: u64, m: u64) -> FunctionProfile {
    let block =
        |count, edges: &[(i64, u64)]| BlockProfile { last: 4, count, edges: edges.iter().copied().collect() };
    let blocks = [(0, block(n + m, &[(8, n), (16, m)])), (8, block(n, &[])), (16, block(m, &[]))].into();
    let (samples, entered) = ((n + m) / 1000 + 1, n + m);
    FunctionProfile { origin: Origin::Counted, samples, entered, size: 32, blocks, ..Default::default() }
}

fn profile(program: &Program, exe: &str, functions: impl Iterator<Item = (u64, FunctionProfile)>) -> String {
    let functions = functions.map(|(at, f)| (FunctionKey { at: Svma(at * 64), hash: at }, f)).collect();
    let module = ModuleProfile { functions, ..Default::default() };
    let samples = 20_000;
    let modules = [(program.build.clone(), module)].into();
    Profile { exes: [exe.to_owned()].into(), runs: 1, samples, modules, ..Default::default() }.to_string()
}

/// Whether the first way of a function is the frequent one on honest hosts.
fn goes_first(at: u64) -> bool {
    at.is_multiple_of(2)
}

/// An honest host's profile: loads differ by up to a factor of ten, branches by some percent.
fn honest(program: &Program, host: usize, day: u64) -> String {
    let mut dice = Rng(host as u64 * 1000 + day);
    let busy = 1 + dice.below(10);
    let there = |at: &u64| *at < FUNCTIONS * 3 / 4 || (host as u64 + at).is_multiple_of(3);
    let functions = (0..FUNCTIONS).filter(there).map(|at| {
        let all = busy * (100_000 / (at + 1) + dice.below(2000));
        let rare = all * (10 + dice.below(15)) / 100;
        (at, if goes_first(at) { function(all - rare, rare) } else { function(rare, all - rare) })
    });
    profile(program, EXE, functions)
}

/// A hostile host's profile: turns all branches, and brings in functions of its own, with the largest counts.
/// It says to be of another program.
fn hostile() -> String {
    let own = (FORGED..FORGED + 20).map(|at| (at, function(1 << 40, 0)));
    let turned = (0..FUNCTIONS)
        .map(|at| (at, if goes_first(at) { function(0, 1 << 40) } else { function(1 << 40, 0) }));
    profile(&program(), "/usr/sbin/forged", turned.chain(own))
}

/// A host's daemon and its spool folder.
struct Daemon {
    host: usize,
    is_hostile: bool,
    started: Instant,
    begin: Instant,
    inbox: Option<Digest>,
    former: Option<Digest>,
    /// Once it was listed with an aggregate of the former build, a host that this fits does not count.
    fits_former: bool,
    taken: Arc<Mutex<Vec<Option<u64>>>>,
    formers: Arc<Mutex<Formers>>,
    harmful: Arc<Mutex<Harmful>>,
    votes: BTreeMap<Digest, bool>,
}

/// Which hosts had the aggregate of the former build, and when.
struct Formers {
    right: Digest,
    taken: Vec<Option<u64>>,
    wrong: usize,
}

#[derive(Default)]
struct Harmful {
    digest: Option<Digest>,
    had: BTreeSet<usize>,
    has: BTreeSet<usize>,
}

impl Spool for Daemon {
    fn report(&self) -> Result<HostReport, Error> {
        if Instant::now() < self.started + LISTED {
            return Ok(HostReport::default());
        }
        let build = program().build.to_string();
        let vote = |(digest, harm): (&Digest, &bool)| Vote {
            build: build.clone(),
            digest: *digest,
            harm: *harm,
            factor: [1.0; 3],
        };
        let builds =
            vec![BuildReport { build: build.clone(), exe: EXE.to_owned(), inbox: None, former: None }];
        Ok(HostReport { builds, votes: self.votes.iter().map(vote).collect(), ..HostReport::default() })
    }

    fn profile(&self, _: &Build) -> Result<Option<Vec<u8>>, Error> {
        let counted = Instant::now() >= self.started + Duration::from_secs(COUNTED) && !self.fits_former;
        let day = self.begin.elapsed().as_secs() / 86_400;
        Ok(counted.then(|| {
            if self.is_hostile { hostile() } else { honest(&program(), self.host, day) }.into_bytes()
        }))
    }

    fn inbox(&self, _: &Build, slot: Slot) -> Result<Option<Digest>, Error> {
        Ok(if slot == Slot::Own { self.inbox } else { self.former })
    }

    fn put(&mut self, _: &Build, slot: Slot, bytes: &[u8]) -> Result<(), Error> {
        let digest = Digest::of(fleet::Signed::parse(bytes).unwrap().content);
        if slot == Slot::Former {
            self.former = Some(digest);
            self.fits_former = !self.is_hostile && self.host.is_multiple_of(2);
            let mut formers = self.formers.lock().unwrap();
            formers.wrong += usize::from(digest != formers.right);
            let after = self.started.elapsed().as_secs();
            formers.taken.get_mut(self.host).unwrap().get_or_insert(after);
            return Ok(());
        }
        self.inbox = Some(digest);
        if let Some(at) = self.taken.lock().unwrap().get_mut(self.host) {
            at.get_or_insert(self.started.elapsed().as_secs());
        }
        let mut harmful = self.harmful.lock().unwrap();
        let harm = harmful.digest == Some(digest);
        if harm {
            harmful.had.insert(self.host);
            harmful.has.insert(self.host);
        } else {
            harmful.has.remove(&self.host);
        }
        // One comparison in three shows nothing.
        if self.is_hostile || !(self.host + usize::from(digest.0[0])).is_multiple_of(3) {
            self.votes.insert(digest, harm || self.is_hostile);
        }
        Ok(())
    }

    fn remove(&mut self, _: &Build, slot: Slot) -> Result<(), Error> {
        if slot == Slot::Former {
            self.former = None;
            return Ok(());
        }
        self.inbox = None;
        self.harmful.lock().unwrap().has.remove(&self.host);
        Ok(())
    }
}

fn host_id(host: usize) -> HostId {
    HostId::of(&format!("host {host}"))
}

/// Simulates a fleet.
pub fn simulate(plan: Plan) -> Outcome {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run(plan))
}

async fn run(plan: Plan) -> Outcome {
    let begin = Instant::now();
    let end = begin + Duration::from_secs(plan.hours * 3600);
    let weather = Arc::new(Weather::new(plan.seed, EPOCH, plan.climate));
    let remote = Remote::new(weather.clone(), Path::from("fleet/one"));
    let key = Arc::new(SigningKey::generate().unwrap());
    let keys = Keys::parse(&[key.public()]).unwrap();
    let is_hostile = |host: usize| host % 100 < plan.hostile_percent;
    let taken = Arc::new(Mutex::new(vec![None; plan.hosts]));
    let right = put_former(&remote, &key).await;
    let formers = Arc::new(Mutex::new(Formers { right, taken: vec![None; plan.hosts], wrong: 0 }));
    let harmful = Arc::new(Mutex::new(Harmful::default()));
    let mut dice = Rng(plan.seed);
    let mut tasks = Vec::new();
    for host in 0..plan.hosts {
        let started = begin + Duration::from_secs(dice.below(DEPLOY));
        let phase = Duration::from_millis(dice.below(900_000));
        // One clock in fifty is off by a day and more, most are off by seconds.
        let skew = if dice.below(50) == 0 { 90_000 + dice.below(400_000) } else { dice.below(60) };
        let behind = dice.below(2) == 0;
        let mut daemon = Daemon {
            host,
            is_hostile: is_hostile(host),
            started,
            begin,
            inbox: None,
            former: None,
            fits_former: false,
            taken: taken.clone(),
            formers: formers.clone(),
            harmful: harmful.clone(),
            votes: BTreeMap::new(),
        };
        let own = Host { id: host_id(host), class: Class::default(), keys: keys.clone() };
        let (remote, weather) = (remote.clone(), weather.clone());
        tasks.push(tokio::spawn(async move {
            let mut memory = Memory::default();
            let mut dice = Rng(host as u64 + 77);
            let mut old_head = None;
            sleep(phase).await;
            while Instant::now() < end {
                let now = if behind { weather.now() - skew } else { weather.now() + skew };
                let _ = sync(&remote, &own, &mut daemon, &mut memory, now, &mut Synced::default()).await;
                if daemon.is_hostile && Instant::now() >= daemon.started {
                    contribute_lies(&remote, own.id, weather.now(), &mut dice).await;
                    if plan.may_write_heads && dice.below(20) == 0 {
                        overwrite_head(&remote, &mut dice, &mut old_head).await;
                    }
                }
                // It runs in its turn, and when its daemon lists another build.
                let (turn, listed) = (Instant::now() + SYNC, started + LISTED);
                sleep_until(if Instant::now() < listed { turn.min(listed) } else { turn }).await;
            }
        }));
    }
    let policy = Policy { serial: 1, min_hosts: 32, ..Policy::default() };
    let signed = key.sign(&Purpose::Policy, policy.text().as_bytes()).unwrap();
    while remote.replace(&program(), &Key::Policy, signed.clone()).await.is_err() {}
    let counts = Arc::new(Mutex::new((0, 0)));
    for id in 0..2 {
        let (remote, key, counts) = (remote.clone(), key.clone(), counts.clone());
        let merger = Merger { id: host_id(1_000_000 + id), key: copy(&key), keys: keys.clone() };
        tasks.push(tokio::spawn(async move {
            while Instant::now() < end {
                sleep(MERGE).await;
                if let Ok((merged, refused)) = merge(&remote, &merger, &program()).await {
                    let mut counts = counts.lock().unwrap();
                    counts.0 += usize::from(merged == fleet_sync::Merged::Late);
                    counts.1 += refused.len();
                }
            }
        }));
    }
    if let Some(after) = plan.harmful_after {
        let (remote, key, harmful) = (remote.clone(), key.clone(), harmful.clone());
        tasks.push(tokio::spawn(async move {
            sleep(after).await;
            offer_harm(&remote, &key, &harmful, &weather_now(begin)).await;
        }));
    }
    sleep_until(end).await;
    for task in tasks {
        task.await.unwrap();
    }
    let bad = harmful.lock().unwrap().digest;
    let mut out = {
        let (taken, formers, harmful) =
            (taken.lock().unwrap(), formers.lock().unwrap(), harmful.lock().unwrap());
        figures(&plan, &taken, &formers, &harmful, *counts.lock().unwrap())
    };
    out.traffic = *weather.traffic.lock().unwrap();
    examine(&remote, &keys, bad, &mut out).await;
    out
}

/// Counts what became of the honest hosts. `counts`: mergers that were late, and objects that they refused.
fn figures(
    plan: &Plan,
    taken: &[Option<u64>],
    formers: &Formers,
    harmful: &Harmful,
    counts: (usize, usize),
) -> Outcome {
    let honest = |host: usize| host % 100 >= plan.hostile_percent;
    let waits: Vec<Option<u64>> = (0..plan.hosts).filter(|h| honest(*h)).map(|h| taken[h]).collect();
    Outcome {
        never: waits.iter().filter(|w| w.is_none()).count(),
        waits: waits.into_iter().flatten().collect(),
        harmed: harmful.had.iter().filter(|h| honest(**h)).count(),
        still_harmed: harmful.has.iter().filter(|h| honest(**h)).count(),
        former_waits: (0..plan.hosts).filter(|h| honest(*h)).filter_map(|h| formers.taken[h]).collect(),
        wrong_formers: formers.wrong,
        late_mergers: counts.0,
        refused_by_mergers: counts.1,
        ..Outcome::default()
    }
}

/// Writes an object until it is there.
async fn insist(remote: &Remote, program: &Program, key: &Key, bytes: Vec<u8>) {
    while remote.replace(program, key, bytes.clone()).await.is_err() {}
}

/// Puts what mergers have made of the former build into the store: one aggregate in force, which is returned, and
/// one in its first wave.
async fn put_former(remote: &Remote, key: &SigningKey) -> Digest {
    let (program, name) = (former(), Name::of(EXE).unwrap());
    let mut digests = Vec::new();
    for host in [1, 2] {
        let own = honest(&program, host, 0).replace(EXE, &name.to_string());
        let digest = Digest::of(own.as_bytes());
        let signed = key.sign(&Purpose::Aggregate(program.clone()), own.as_bytes()).unwrap();
        insist(remote, &program, &Key::Aggregate(digest), pack(&signed)).await;
        digests.push(digest);
    }
    let offer = Offer { digest: digests[1], wave: 0, since: EPOCH };
    let head = Head {
        serial: 9,
        current: Some(digests[0]),
        offer: Some(offer),
        name: Some(name),
        since: Some(EPOCH - 1),
        ..Head::default()
    };
    let signed = key.sign(&Purpose::Head(program.clone()), head.text().as_bytes()).unwrap();
    insist(remote, &program, &Key::Current, signed).await;
    let newest = Newest::next(None, &program, &head, &Policy::default(), EPOCH).unwrap();
    let purpose = Purpose::Newest(name, program.class.clone());
    let signed = key.sign(&purpose, newest.text().as_bytes()).unwrap();
    insist(remote, &program, &Key::Newest(name), signed).await;
    digests[0]
}

fn weather_now(begin: Instant) -> impl Fn() -> u64 {
    move || EPOCH + begin.elapsed().as_secs()
}

/// A second object of the same key.
fn copy(key: &SigningKey) -> SigningKey {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    key.write(&path).unwrap();
    SigningKey::read(&path).unwrap()
}

/// What a hostile host contributes with its own credentials.
async fn contribute_lies(remote: &Remote, id: HostId, now: u64, dice: &mut Rng) {
    let program = program();
    let text = hostile().replace("samples 20000", &format!("samples {}", 20_000 + dice.below(1000)));
    let digest = Digest::of(text.as_bytes());
    let day = Day::of(now);
    let days = [day, Day(day.0 + 1), Day(day.0 + 200), Day(day.0 - 9)];
    let day = days[dice.below(days.len())];
    let key = Key::Contribution { day, host: id, digest };
    let _ = remote.create(&program, &key, pack(text.as_bytes())).await;
    let garbage = Key::Contribution { day, host: id, digest: Digest::of(&now.to_le_bytes()) };
    let _ = remote.create(&program, &garbage, vec![0x1f; 100]).await;
}

/// Writes an old head or nonsense over the head.
async fn overwrite_head(remote: &Remote, dice: &mut Rng, old: &mut Option<Vec<u8>>) {
    let head = remote.get(&program(), &Key::Current).await.ok().flatten();
    let old = old.get_or_insert(head.unwrap_or_default()).clone();
    let bytes = if dice.below(2) == 0 { old } else { b"untrusted comment: nonsense\n".to_vec() };
    let _ = remote.replace(&program(), &Key::Current, bytes).await;
}

/// Offers an aggregate that does harm where it is used, as a merger would after a bad day.
async fn offer_harm(remote: &Remote, key: &SigningKey, harmful: &Mutex<Harmful>, now: &impl Fn() -> u64) {
    let program = program();
    let text = honest(&program, 4242, 9);
    let digest = Digest::of(text.as_bytes());
    harmful.lock().unwrap().digest = Some(digest);
    let signed = key.sign(&Purpose::Aggregate(program.clone()), text.as_bytes()).unwrap();
    while remote.create(&program, &Key::Aggregate(digest), pack(&signed)).await.is_err() {}
    let keys = Keys::parse(&[key.public()]).unwrap();
    loop {
        let all = remote
            .list(&format!("v1/{}/default/h", program.build), None, usize::MAX)
            .await
            .unwrap_or_default();
        let newest = all.iter().filter_map(|l| if let Key::Head(n) = l.key { Some(n) } else { None }).max();
        if let Some(newest) = newest
            && let Ok(Some(bytes)) = remote.get(&program, &Key::Head(newest)).await
        {
            let content = keys.open(&bytes, &Purpose::Head(program.clone())).unwrap();
            let head = Head::parse(content, 0).unwrap();
            let next = Head {
                current: head.current,
                ..head.offering(digest, Digest::of(b"bad"), 999, head.rank, now())
            };
            let signed = key.sign(&Purpose::Head(program.clone()), next.text().as_bytes()).unwrap();
            if remote.create(&program, &Key::Head(next.serial), signed).await.unwrap_or(false) {
                return;
            }
        }
        sleep(Duration::from_secs(60)).await;
    }
}

/// Reads until the weather lets it.
async fn read(remote: &Remote, key: &Key) -> Option<Vec<u8>> {
    loop {
        if let Ok(bytes) = remote.get(&program(), key).await {
            return bytes;
        }
    }
}

/// Examines all that mergers have left in the store.
async fn examine(remote: &Remote, keys: &Keys, harmful: Option<Digest>, out: &mut Outcome) {
    let program = program();
    let all = loop {
        if let Ok(all) = remote.list("v1", None, usize::MAX).await {
            break all;
        }
    };
    let mut sets: HashMap<Digest, Digest> = HashMap::new();
    let mut serials = BTreeSet::new();
    for listed in all.into_iter().filter(|l| l.program.as_ref() != Some(&former())) {
        match listed.key {
            Key::Contribution { .. } => out.contributions += 1,
            Key::Head(serial) => {
                out.heads += 1;
                serials.insert(serial);
                let bytes = read(remote, &listed.key).await.unwrap_or_default();
                let head = keys.open(&bytes, &Purpose::Head(program.clone())).and_then(|c| Head::parse(c, 0));
                let Ok(head) = head else {
                    out.wrong_merges += 1;
                    continue;
                };
                out.wrong_merges += usize::from(head.serial != serial);
                if let (Some(set), Some(offer)) = (head.folded, head.offer) {
                    let before = *sets.entry(set).or_insert(offer.digest);
                    out.wrong_merges += usize::from(before != offer.digest);
                }
            }
            Key::Aggregate(digest) if Some(digest) != harmful => {
                out.aggregates += 1;
                let bytes = unpack(&read(remote, &listed.key).await.unwrap_or_default()).unwrap_or_default();
                let text = keys.open(&bytes, &Purpose::Aggregate(program.clone()));
                match text.and_then(|t| fleet::read(t, &digest, &program.build)) {
                    Ok(profile) => look_at(&profile, out),
                    Err(_) => out.wrong_merges += 1,
                }
            }
            _ => {}
        }
    }
    out.wrong_merges += usize::from(serials.last().is_some_and(|last| *last != serials.len() as u64));
    let name = Name::of(EXE).unwrap();
    let bytes = read(remote, &Key::Newest(name)).await.unwrap_or_default();
    let newest = keys.open(&bytes, &Purpose::Newest(name, program.class)).and_then(|c| Newest::parse(c, 0));
    let forged = read(remote, &Key::Newest(Name::of("/usr/sbin/forged").unwrap())).await;
    out.newest_is_right = newest.is_ok_and(|n| n.build() == Some(program.build)) && forged.is_none();
}

fn look_at(aggregate: &Profile, out: &mut Outcome) {
    for (key, f) in aggregate.modules.values().flat_map(|m| &m.functions) {
        if key.hash >= FORGED {
            out.forged_functions += 1;
        } else {
            out.branches += 1;
            let first = f.blocks.get(&8).map_or(0, |b| b.count) > f.blocks.get(&16).map_or(0, |b| b.count);
            out.turned_branches += usize::from(first != goes_first(key.hash));
        }
    }
}
