use super::*;
use crate::{Build, Class, prepare, read};
use addr::Svma;
use profile::{ModuleProfile, Place, SiteProfile};
use proptest::prelude::*;

const NOON: u64 = 43_200;

fn program() -> Program {
    Program { build: Build::parse("0a").unwrap(), class: Class::default() }
}

fn contributed(host: usize, day: u32) -> Contributed {
    Contributed {
        day: Day(day),
        host: HostId::of(&host.to_string()),
        digest: Digest::of(format!("{host} {day}").as_bytes()),
        stored: u64::from(day) * 86_400 + NOON,
    }
}

/// A function that takes one of two ways: `n` times the first, `m` times the second.
fn function(n: u64, m: u64) -> FunctionProfile {
    let block =
        |count, edges: &[(i64, u64)]| BlockProfile { last: 2, count, edges: edges.iter().copied().collect() };
    let blocks = [(0, block(n + m, &[(8, n), (16, m)])), (8, block(n, &[])), (16, block(m, &[]))].into();
    FunctionProfile { origin: Origin::Counted, samples: n + m, entered: n + m, blocks, ..Default::default() }
}

fn profile(functions: &[(u64, FunctionProfile)]) -> Profile {
    let key = |at| FunctionKey { at: Svma(at), hash: at };
    let functions = functions.iter().map(|(at, f)| (key(*at), f.clone())).collect();
    let module = ModuleProfile { functions, ..Default::default() };
    Profile { runs: 1, samples: 100, modules: [(program().build, module)].into(), ..Default::default() }
}

fn folded(hosts: &[(u64, Profile)]) -> Profile {
    fold(&program(), Day(20_000), hosts).unwrap().text.parse().unwrap()
}

fn one(p: &Profile, at: u64) -> Option<&FunctionProfile> {
    p.modules.values().next().unwrap().functions.iter().find(|(k, _)| k.hash == at).map(|(_, f)| f)
}

#[test]
fn each_host_weighs_the_same_and_new_ones_more() {
    let busy = profile(&[(1, function(1_000_000, 0))]);
    let idle = profile(&[(1, function(0, 10))]);
    let both = folded(&[(WHOLE, busy.clone()), (WHOLE, idle.clone())]);
    let f = one(&both, 1).unwrap();
    let [first, second] = [8, 16].map(|at| f.blocks[&at].count);
    assert!(first.abs_diff(second) <= first / 1000, "{first} {second}");
    let aged = folded(&[(WHOLE, busy), (weight(7), idle)]);
    let f = one(&aged, 1).unwrap();
    assert!(f.blocks[&8].count.abs_diff(2 * f.blocks[&16].count) <= f.blocks[&8].count / 1000);
    assert_eq!((both.runs, both.when), (2, 20_000 * 86_400));
}

/// 18 honest hosts, and 2 that bring in a function of their own and turn the branch of another.
#[test]
fn a_few_hosts_decide_nothing() {
    let honest = profile(&[(1, function(900, 100)), (2, function(10, 0))]);
    let hostile = profile(&[(2, function(0, 1_000_000)), (3, function(1_000_000, 0))]);
    let mut hosts = vec![(WHOLE, honest.clone()); 18];
    let alone = folded(&hosts);
    hosts.extend(vec![(WHOLE, hostile); 2]);
    let with = folded(&hosts);
    assert!(one(&with, 3).is_none());
    let [before, after] = [&alone, &with].map(|p| one(p, 2).unwrap());
    assert!(after.blocks[&8].count > 8 * after.blocks[&16].count, "{after:?}");
    assert!(after.weight() < before.weight() * 12 / 10);
    // More than a quarter of the hosts is more than a few.
    hosts.extend(vec![(WHOLE, profile(&[(3, function(5, 0))])); 6]);
    assert!(one(&folded(&hosts), 3).is_some());
    // Two hosts that counted do not replace what all others inferred.
    let mut inferred = honest;
    inferred
        .modules
        .values_mut()
        .flat_map(|m| m.functions.values_mut())
        .for_each(|f| f.origin = Origin::Inferred);
    let mut hosts = vec![(WHOLE, inferred); 18];
    hosts.extend(vec![(WHOLE, profile(&[(1, function(0, 1000))])); 2]);
    let f = folded(&hosts);
    let f = one(&f, 1).unwrap();
    assert_eq!(f.origin, Origin::Inferred);
    assert!(f.blocks[&8].count > 8 * f.blocks[&16].count);
}

#[test]
fn observations_of_calls_are_scaled_too() {
    let with = |callee: u64, n: u64| {
        let mut f = function(1, 1);
        let saw = [(Place { module: None, at: Svma(callee) }, n)].into();
        f.sites.insert(2, SiteProfile { callees: Looks { all: n * 2, saw }, ..Default::default() });
        (WHOLE, profile(&[(1, f)]))
    };
    let p = folded(&[with(1, 1_000_000), with(2, 3)]);
    let looks = &one(&p, 1).unwrap().sites[&2].callees;
    let saw: Vec<u64> = looks.saw.values().copied().collect();
    assert!(saw[0].abs_diff(saw[1]) <= 1 && looks.all.abs_diff(4 * saw[0]) <= 4, "{looks:?}");
}

#[test]
fn the_days_decide_by_the_clock_of_the_store() {
    let new = 20_000;
    let mut all: Vec<Contributed> = (0..10).map(|h| contributed(h, new - 5)).collect();
    // A host whose clock is wrong, one that claims the future, and old ones.
    all.push(Contributed { day: Day(new + 300), ..contributed(90, new) });
    all.push(Contributed { day: Day(new - 20), ..contributed(91, new) });
    all.push(contributed(92, new - LOST_DAYS));
    all.push(contributed(0, new));
    let f = Folded::choose(&program(), &all);
    assert_eq!((f.misdated, f.old, f.unneeded, f.newest), (2, 1, 1, Day(new)));
    assert_eq!(f.chosen.len(), 10);
    let weights: BTreeMap<HostId, u64> = f.chosen.iter().map(|(c, w)| (c.host, *w)).collect();
    // The newest contribution of host 0 weighs more than the others, but at most twice the median.
    assert_eq!(weights[&HostId::of("0")], WHOLE);
    assert_eq!(weights[&HostId::of("1")], weight(5));
    let f = Folded::choose(&program(), &[&all[..10], &[contributed(0, new + 20)]].concat());
    assert_eq!(f.chosen.iter().map(|c| c.1).max(), Some(weight(25) * 2));
}

#[test]
fn the_hosts_of_the_lowest_ranks_are_used() {
    let all: Vec<Contributed> = (0..500).map(|h| contributed(h, 20_000)).collect();
    let f = Folded::choose(&program(), &all);
    assert_eq!((f.chosen.len(), f.unneeded), (SAMPLE, 500 - SAMPLE));
    let last = f.rank.unwrap();
    let below = |c: &Contributed| Rank::of_host(c.host, &program()).0 <= last;
    assert!(f.chosen.iter().all(|(c, _)| below(c)));
    assert_eq!(all.iter().filter(|c| below(c)).count(), SAMPLE);
}

/// A twentieth of a fleet contributes every day and for the next day, the others once. The share of these hosts among
/// the chosen ones does not grow.
#[test]
fn hosts_that_contribute_often_gain_nothing() {
    let is_often = |h: usize| h.is_multiple_of(20);
    let often = (0..20)
        .flat_map(|d| (0..1000).filter(move |h| is_often(*h)).map(move |h| contributed(h, 20_000 + d)));
    let ahead = (0..1000)
        .filter(|h| is_often(*h))
        .map(|h| Contributed { day: Day(20_020), ..contributed(h, 20_019) });
    let once = (0..1000).filter(|h| !is_often(*h)).map(|h| contributed(h, 20_000));
    let all: Vec<Contributed> = often.chain(ahead).chain(once).collect();
    let f = Folded::choose(&program(), &all);
    assert_eq!((f.chosen.len(), f.newest, f.misdated), (SAMPLE, Day(20_019), 50));
    let hosts: BTreeSet<HostId> =
        (0..1000).filter(|h| is_often(*h)).map(|h| HostId::of(&h.to_string())).collect();
    let share = f.chosen.iter().filter(|(c, _)| hosts.contains(&c.host)).count();
    assert!(share <= SAMPLE / 8, "{share} of {SAMPLE}");
}

/// Two of twenty hosts say otherwise.
#[test]
fn most_hosts_decide_on_the_shape_and_the_name() {
    let host = |exe: &str, shape: Option<u64>| {
        let mut p = profile(&[(1, FunctionProfile { shape, ..function(5, 5) })]);
        p.exes.extend([exe.to_owned()]);
        Name::put_in(&mut p);
        (WHOLE, p)
    };
    let mut hosts = vec![host("/opt/new/server", Some(7)); 18];
    hosts.extend([host("other", Some(1)), host("other", Some(1))]);
    let out = fold(&program(), Day(1), &hosts).unwrap();
    assert_eq!(out.name, Name::of("/usr/sbin/server"));
    let text: Profile = out.text.parse().unwrap();
    assert_eq!(one(&text, 1).unwrap().shape, Some(7));
    assert_eq!(Name::all_in(&text).collect::<Vec<_>>(), Vec::from_iter(out.name));
    // Earlier versions state neither.
    let old = fold(&program(), Day(1), &vec![(WHOLE, profile(&[(1, function(5, 5))])); 18]).unwrap();
    assert_eq!((old.name, one(&old.text.parse().unwrap(), 1).unwrap().shape), (None, None));
    // Too few agree.
    let split: Vec<_> = (0..20).map(|i| host(&format!("name {i}"), Some(i))).collect();
    let out = fold(&program(), Day(1), &split).unwrap();
    assert_eq!((out.name, one(&out.text.parse().unwrap(), 1).unwrap().shape), (None, None));
}

#[test]
fn a_contribution_names_nothing() {
    let mut p = profile(&[(1, function(5, 5))]);
    p.exes.insert("/home/somebody/secret".to_owned());
    let module = p.modules.get_mut(&program().build).unwrap();
    module.name = "secret".to_owned();
    module.functions.values_mut().for_each(|f| f.name = "secret".to_owned());
    let (text, digest) = prepare(p.clone(), &program().build).unwrap();
    assert!(!text.contains("secret"));
    assert!(read(text.as_bytes(), &digest, &program().build).is_ok());
    let other = Build::parse("0b").unwrap();
    assert!(matches!(prepare(p, &other), Err(crate::Refused::OtherBuild(_))));
    assert!(matches!(read(text.as_bytes(), &digest, &other), Err(crate::Refused::OtherBuild(_))));
    assert_eq!(read(&text.as_bytes()[1..], &digest, &program().build), Err(crate::Refused::OtherDigest));
    let huge = vec![b'#'; CONTRIBUTION_LIMIT + 1];
    assert!(matches!(read(&huge, &digest, &program().build), Err(crate::Refused::TooLarge { .. })));
}

proptest! {
    #[test]
    fn the_order_of_contributions_makes_no_difference(seeds in prop::collection::vec((0u64..50, 0u64..50, 1u64..4, 0u32..9), 1..30)) {
        let all: Vec<Contributed> = seeds.iter().enumerate().map(|(i, s)| contributed(i % 20, 20_000 + s.3)).collect();
        let back: Vec<Contributed> = all.iter().rev().copied().collect();
        let [one, other] = [&all, &back].map(|a| Folded::choose(&program(), a));
        prop_assert_eq!(one.set(), other.set());
        let mut hosts: Vec<(u64, Profile)> = seeds.iter().map(|s| (weight(s.3), profile(&[(s.2, function(s.0, s.1)), (9, function(1, 1))]))).collect();
        let first = fold(&program(), Day(1), &hosts);
        hosts.reverse();
        prop_assert_eq!(fold(&program(), Day(1), &hosts), first.clone());
        let Aggregate { text, digest, .. } = first.unwrap();
        prop_assert!(read(text.as_bytes(), &digest, &program().build).is_ok());
    }

    #[test]
    fn any_numbers_are_folded(counts in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 1..8)) {
        let hosts: Vec<(u64, Profile)> = counts.iter().map(|&(n, m, samples)| {
            let mut f = function(n >> 1, m >> 1);
            f.samples = samples;
            (WHOLE, profile(&[(1, f)]))
        }).collect();
        let p = folded(&hosts);
        let mut tame = p.clone();
        tame.tame();
        prop_assert_eq!(tame, p);
    }
}
