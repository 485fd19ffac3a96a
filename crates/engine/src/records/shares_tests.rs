use super::*;
use crate::plan::test_candidate::{counted, inlined};
use emit::Fragments;
use image::ModuleId;

const ROWS: [Row; 11] = [
    Row::InClones,
    Row::Refused(Refusal::ReadsOwnAddress),
    Row::Refused(Refusal::TooLarge),
    Row::ModuleLeftAlone("module_may_unload"),
    Row::ModuleLeftAlone(LOADED_LATER),
    Row::NoUnwindTables,
    Row::GeneratedCode,
    Row::Vdso,
    Row::NotRebuilt,
    Row::NotInProfile,
    Row::Unknown,
];

/// Returns the sum of all shares in `PARTS`; each share is a whole number of parts.
fn parts(t: &UserTime) -> f64 {
    t.rows().iter().map(|r| (r.2 * PARTS as f64).round()).sum()
}

#[test]
fn shares_of_any_counts_sum_to_one() {
    arbtest::arbtest(|u| {
        let mut rows = BTreeMap::new();
        for row in ROWS {
            let n = match u.int_in_range(0..=3)? {
                0 => 0,
                1 => u.int_in_range(1..=3)?,
                2 => u.int_in_range(1..=100_000)?,
                _ => u.arbitrary()?,
            };
            rows.insert(row, n);
        }
        let Some(shares) = UserTime::of(&rows) else {
            assert!(rows.values().all(|&n| n == 0));
            return Ok(());
        };
        assert_eq!(parts(&shares), PARTS as f64, "{rows:?} {shares:?}");
        let all: f64 = rows.values().map(|&n| n as f64).sum();
        for (name, reason, share) in shares.rows() {
            let exact = ROWS.iter().filter(|r| {
                let mut one = UserTime::default();
                one.add(**r, 1.0);
                one.rows() == [(name, reason, 1.0)]
            });
            let exact: f64 = exact.map(|r| rows[r] as f64 / all).sum();
            assert!((share - exact).abs() <= 1.0 / PARTS as f64 + 1e-9, "{name} {reason:?}: {share} {exact}");
        }
        // The form in which a target's notes store them.
        let text = serde_json::to_string(&shares).unwrap();
        assert_eq!(serde_json::from_str::<UserTime>(&text).unwrap(), shares);
        Ok(())
    })
    .budget_ms(500);
}

#[test]
fn no_samples_have_no_shares() {
    assert_eq!(UserTime::of(&BTreeMap::new()), None);
    assert_eq!(UserTime::of(&BTreeMap::from([(Row::Unknown, 0)])), None);
}

#[test]
fn rows_are_sorted_and_each_reason_has_its_own() {
    let rows = BTreeMap::from([
        (Row::Vdso, 10),
        (Row::InClones, 700),
        (Row::Refused(Refusal::TooLarge), 90),
        (Row::ModuleLeftAlone("module_may_unload"), 200),
    ]);
    let shares = UserTime::of(&rows).unwrap();
    assert_eq!(
        shares.rows(),
        [
            ("in_clones", None, 0.7),
            ("module_left_alone", Some("module_may_unload"), 0.2),
            ("refused", Some("too_large"), 0.09),
            ("vdso", None, 0.01),
        ]
    );
}

#[test]
fn a_row_missing_in_notes_reads_as_zero() {
    let t: UserTime = serde_json::from_str(r#"{"in_clones": 0.5, "a_row_of_later": 0.5}"#).unwrap();
    assert_eq!(t, UserTime { in_clones: 0.5, ..UserTime::default() });
}

fn laid_out(index: u32, order: &[u32], counts: &[u64], samples: u64) -> LaidOut {
    let inlined = inlined(counted(index, counts, samples), order, 0);
    LaidOut { inlined, unrolls: Vec::new() }
}

/// Returns the fates of three functions. The first has clones of its first and third blocks (of four), the
/// second was dropped while it was emitted, the third was refused.
fn fates() -> (Candidates<LaidOut>, Fates) {
    let chosen = vec![laid_out(1, &[2, 0], &[1, 0, 1, 0], 60), laid_out(2, &[0], &[1, 0, 0, 0], 20)];
    let id = |index| FuncId { module: ModuleId(0), index };
    let candidates =
        Candidates { refused: vec![(id(3), 15, Refusal::ReturnsTwice)], chosen, ..Candidates::default() };
    let fragments = Fragments::new(&[AvmaRange::new(Avma(0x9000), Avma(0x9004))]).unwrap();
    let built = Built {
        cloned: vec![(id(1), fragments)],
        refused: vec![(id(2), Refusal::RoundTrip)],
        entries_refused: vec![(id(1), Refusal::NoRedirectSite)],
        ..Built::default()
    };
    let fates = Fates::new(&candidates, &built);
    (candidates, fates)
}

#[test]
fn a_block_without_a_clone_is_not_in_clones() {
    let (_, fates) = fates();
    let row = |index, at| fates.row(FuncId { module: ModuleId(0), index }, Avma(at));
    assert_eq!([row(1, 0x1000), row(1, 0x1001), row(1, 0x1004), row(1, 0x1005)], [Row::InClones; 4]);
    assert_eq!([row(1, 0x1002), row(1, 0x1003), row(1, 0x1006)], [Row::NotRebuilt; 3]);
    assert_eq!(row(2, 0x1000), Row::Refused(Refusal::RoundTrip));
    assert_eq!(row(3, 0x1000), Row::Refused(Refusal::ReturnsTwice));
    assert_eq!(row(4, 0x1000), Row::NotRebuilt);
}

#[test]
fn functions_missing_in_the_profile_have_a_row() {
    let (candidates, fates) = fates();
    let rows = |all| of_profile(&candidates, &fates, all, |_| None);
    assert_eq!(
        rows(100),
        BTreeMap::from([
            (Row::InClones, 60),
            (Row::Refused(Refusal::RoundTrip), 20),
            (Row::Refused(Refusal::ReturnsTwice), 15),
            (Row::NotInProfile, 5),
        ])
    );
    let left_alone = |id: FuncId| (id.index == 3).then_some(Refusal::ModuleMayUnload);
    let rows_of_module = of_profile(&candidates, &fates, 100, left_alone);
    assert_eq!(rows_of_module[&Row::ModuleLeftAlone("module_may_unload")], 15);
    // A profile from another tool may claim fewer samples than its functions have.
    assert_eq!(rows(70).values().sum::<u64>(), 70);
}
