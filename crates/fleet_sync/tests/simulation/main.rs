//! A small fleet in one process, in virtual time. The bench `fleet` simulates the large one.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::unwrap_used,
    reason = "small numbers of a simulation, and tests"
)]

mod weather;
mod world;

use std::time::Duration;
use weather::Climate;
use world::{Plan, simulate};

const HOUR: Duration = Duration::from_secs(3600);
const BAD: Climate =
    Climate { lost: 20, unanswered: 10, late: 10, outage: [HOUR.saturating_mul(9), HOUR.saturating_mul(10)] };

#[test]
fn a_new_build_becomes_warm_in_bad_weather_and_hostile_hosts_force_nothing() {
    let plan = Plan {
        hosts: 300,
        hours: 14,
        hostile_percent: 5,
        may_write_heads: true,
        climate: BAD,
        harmful_after: None,
        seed: 1,
    };
    let out = simulate(plan);
    assert_eq!(
        (out.never, out.wrong_merges, out.forged_functions, out.turned_branches),
        (0, 0, 0, 0),
        "{out:?}"
    );
    // A host to which a request failed counts before the next run, and needs no other build's then.
    assert!(out.former_within(50).is_some_and(|s| s < 60), "{out:?}");
    assert_eq!((out.wrong_formers, out.newest_is_right), (0, true), "{out:?}");
    assert!(out.within(99).is_some_and(|s| s < 6 * 3600), "{out:?}");
    assert!(out.aggregates >= 2 && out.branches >= 40, "{out:?}");
    assert!(
        out.traffic.failed > 0 && out.refused_by_mergers > 0,
        "the weather and the attacks took place: {out:?}"
    );
}

#[test]
fn an_aggregate_that_does_harm_is_withdrawn_in_its_first_waves() {
    let plan = Plan {
        hosts: 300,
        hours: 14,
        hostile_percent: 0,
        may_write_heads: false,
        climate: BAD,
        harmful_after: Some(HOUR * 4),
        seed: 2,
    };
    let out = simulate(plan);
    assert!(out.harmed > 0 && out.harmed < 60, "{out:?}");
    assert_eq!((out.still_harmed, out.never, out.wrong_merges), (0, 0, 0), "{out:?}");
}
