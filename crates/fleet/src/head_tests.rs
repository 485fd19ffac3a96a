use super::*;
use crate::{Build, Class};

const GOOD: Votes = Votes { good: 9, harm: 0 };
const NONE: Votes = Votes { good: 0, harm: 0 };
const HARM: Votes = Votes { good: 1, harm: 5 };

fn program() -> Program {
    Program { build: Build::parse("0a").unwrap(), class: Class::default() }
}

fn digest(n: u8) -> Digest {
    Digest([n; 32])
}

fn hosts() -> Vec<HostId> {
    (0..1000).map(|i| HostId::of(&i.to_string())).collect()
}

fn taking(head: &Head, policy: &Policy, what: Digest) -> usize {
    hosts().iter().filter(|h| head.choose(**h, &program(), policy, &[]) == Some(what)).count()
}

fn replaced(step: Step) -> Head {
    match step {
        Step::Replace(head, _) => *head,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_aggregate_comes_to_all_hosts_in_waves() {
    let policy = Policy::default();
    let first = Head { current: Some(digest(1)), ..Head::default() };
    assert_eq!(advance(&first, &policy, 0, NONE, NONE), Step::Fold);
    let mut head = first.offering(digest(2), digest(9), 5, None, 1000);
    let mut now = 1000;
    let mut shares = Vec::new();
    while head.offer.is_some() {
        assert!(matches!(advance(&head, &policy, now + policy.step - 1, GOOD, NONE), Step::Wait(_)));
        let (new, old) = (taking(&head, &policy, digest(2)), taking(&head, &policy, digest(1)));
        assert_eq!(new + old, 1000, "the others keep the aggregate in force");
        shares.push(new);
        now += policy.step;
        head = replaced(advance(&head, &policy, now, GOOD, NONE));
    }
    shares.push(taking(&head, &policy, digest(2)));
    assert!((3..=25).contains(&shares[0]) && (60..=150).contains(&shares[1]), "{shares:?}");
    assert_eq!((shares.len(), shares[2], head.current, head.serial), (3, 1000, Some(digest(2)), 3));
    assert_eq!(head.since, Some(now));
    let again = head.offering(digest(3), digest(8), 9, None, now);
    let again = replaced(advance(&again, &Policy { waves: vec![100], ..policy }, now + 1800, GOOD, NONE));
    assert_eq!((again.current, again.since), (Some(digest(3)), head.since), "the first time counts");
}

#[test]
fn harm_withdraws_an_aggregate_and_doubt_holds_it() {
    let policy = Policy::default();
    let head =
        Head { current: Some(digest(1)), ..Head::default() }.offering(digest(2), digest(9), 5, None, 0);
    let doubt = Votes { good: 0, harm: 1 };
    assert!(matches!(advance(&head, &policy, 1 << 40, doubt, NONE), Step::Wait(_)));
    let without = replaced(advance(&head, &policy, 0, HARM, NONE));
    assert_eq!((without.offer.as_ref(), without.current), (None, Some(digest(1))));
    assert_eq!(taking(&without, &policy, digest(1)), 1000);
    // It is not offered again.
    assert_eq!(without.offering(digest(2), digest(9), 5, None, 0).offer, None);
    let cold = replaced(advance(&without, &policy, 0, NONE, HARM));
    assert_eq!((cold.current, cold.withdrawn.as_slice()), (None, &[digest(2), digest(1)][..]));
    // The policy's pause does not stop a withdrawal.
    let pause = Policy { pause: true, ..Policy::default() };
    assert_eq!(replaced(advance(&head, &pause, 0, HARM, NONE)), without);
    assert!(matches!(advance(&head, &pause, 1 << 40, GOOD, NONE), Step::Wait(_)));
    assert!(matches!(advance(&without, &pause, 1 << 40, NONE, NONE), Step::Wait(_)));
}

#[test]
fn a_host_does_not_use_what_is_denied_or_did_harm_to_it() {
    let head =
        Head { current: Some(digest(1)), ..Head::default() }.offering(digest(2), digest(9), 5, None, 0);
    let all = Policy { waves: vec![100], ..Policy::default() };
    let host = HostId::of("a");
    let choose = |policy: &Policy, own: &[Digest]| head.choose(host, &program(), policy, own);
    assert_eq!(choose(&all, &[]), Some(digest(2)));
    assert_eq!(choose(&all, &[digest(2)]), Some(digest(1)));
    assert_eq!(choose(&Policy { deny: vec![digest(2).to_string()], ..all.clone() }, &[]), Some(digest(1)));
    assert_eq!(choose(&Policy { deny: vec!["0a".to_owned()], ..all.clone() }, &[]), None);
    // Hosts with another build never use one that is offered in waves.
    let for_others = |own: &[Digest]| head.in_force(&program(), &all, own);
    assert_eq!((for_others(&[]), for_others(&[digest(1)])), (Some(digest(1)), None));
}

#[test]
fn a_new_aggregate_needs_time_or_many_more_hosts() {
    let policy = Policy { min_hosts: 2, ..Policy::default() };
    assert!(!Head::default().is_due(1, &policy, 0) && Head::default().is_due(2, &policy, 0));
    let head = Head::default().offering(digest(2), digest(9), 5, None, 1000);
    let later = 1000 + policy.every;
    assert!(!head.is_due(9, &policy, later - 1) && head.is_due(9, &policy, later));
    assert!(head.is_due(10, &policy, 1001));
    // A look that found nothing new puts the next one off.
    let looked = head.looked(later);
    assert_eq!((looked.serial, looked.folded, looked.hosts), (head.serial + 1, head.folded, head.hosts));
    assert!(!looked.is_due(9, &policy, later + 1) && looked.is_due(9, &policy, later + policy.every));
}

#[test]
fn heads_and_policies_are_read_as_they_are_written() {
    let head =
        Head { current: Some(digest(1)), ..Head::default() }.offering(digest(2), digest(9), 5, Some(7), 3);
    assert_eq!(Head::parse(head.text().as_bytes(), 1), Ok(head.clone()));
    assert_eq!(Head::parse(head.text().as_bytes(), 2), Err(Refused::Older { found: 1, seen: 2 }));
    let newer = head.text().replace("\"version\": 1", "\"version\": 2");
    assert_eq!(Head::parse(newer.as_bytes(), 0), Err(Refused::Newer(2)));
    let policy = Policy { deny: vec!["0a".to_owned()], serial: 4, ..Policy::default() };
    assert_eq!(Policy::parse(policy.text().as_bytes()), Ok(policy.clone()));
    for wrong in ["[1, 1, 100]", "[1, 10]", "[]", "[1, 300]"] {
        let text = format!("{{\"version\": 1, \"waves\": {wrong}}}");
        assert!(matches!(Policy::parse(text.as_bytes()), Err(Refused::Content(_))), "{wrong}");
    }
    assert!(matches!(Policy::parse(b"{\"version\": 1, \"puase\": true}"), Err(Refused::Content(_))));
    assert_eq!(Policy::parse(b"{\"version\": 9, \"other\": true}"), Err(Refused::Newer(9)));
}
