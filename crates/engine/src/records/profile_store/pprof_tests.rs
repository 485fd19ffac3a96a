use super::*;
use flate2::read::GzDecoder;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

const TEXT: &str = "\
whet-profile 2
exe /usr/bin/a
runs 1
when 1760000000
sampled 6000
samples 200
module aa a
function 0x1000 1 counted entered 1 samples 3 size 0x100 global main
hits +0 2
+0 +8 100
call +2 0x2000 10
call +8 0x1000@0b 90
function 0x2000 2 counted entered 10 samples 100 size 0x100 global _Z4workv
hits +0 60 +20 40
+0 +8 10
+20 +28 1000
function 0x5000 5 inferred entered 9 samples 7 size 0x100 local guessed
+0 +0 60000
call +2 0x2000 60000
module 0b libb.so
function 0x1000 6 counted entered 90 samples 50 size 0x100 none
+0 +0 90
end
";

/// Decodes a file, and checks what `pprof` checks: ids are unique and known, strings exist.
fn read(bytes: &[u8]) -> Pprof {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    let p = Pprof::decode(plain.as_slice()).unwrap();
    assert_eq!(p.string_table[0], "");
    let functions: BTreeSet<u64> = p.function.iter().map(|f| f.id).collect();
    let locations: BTreeSet<u64> = p.location.iter().map(|l| l.id).collect();
    let mappings: BTreeMap<u64, u64> = p.mapping.iter().map(|m| (m.id, m.memory_limit)).collect();
    assert_eq!((functions.len(), locations.len()), (p.function.len(), p.location.len()));
    assert!(!functions.contains(&0) && !locations.contains(&0) && !mappings.contains_key(&0));
    for l in &p.location {
        assert!(l.line.iter().all(|line| functions.contains(&line.function_id)));
        assert!(l.mapping_id == 0 || l.address < mappings[&l.mapping_id]);
    }
    for s in &p.sample {
        assert_eq!(s.value.len(), p.sample_type.len());
        assert!(s.location_id.iter().all(|id| locations.contains(id)) && !s.location_id.is_empty());
    }
    p
}

/// Returns the samples with names and addresses, and with their values.
fn shown(p: &Pprof) -> BTreeMap<String, Vec<i64>> {
    let text = |i: i64| p.string_table[usize::try_from(i).unwrap()].as_str();
    let frame = |id: &u64| {
        let l = p.location.iter().find(|l| l.id == *id).unwrap();
        let f = p.function.iter().find(|f| f.id == l.line[0].function_id).unwrap();
        format!("{}@{:#x}", text(f.name), l.address)
    };
    let key = |s: &Sample| s.location_id.iter().map(frame).collect::<Vec<_>>().join("<-");
    let mut out: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for s in &p.sample {
        let sums = out.entry(key(s)).or_insert_with(|| vec![0; 3]);
        sums.iter_mut().zip(&s.value).for_each(|(sum, v)| *sum += v);
    }
    out
}

#[test]
fn values_are_those_of_the_profile() {
    let p = read(&pprof(&TEXT.parse().unwrap()));
    let all = shown(&p);
    let wanted = [
        ("main@0x1000", [3, 0, 100]),
        ("work()@0x2000", [60, 0, 10]),
        ("work()@0x2020", [40, 0, 1000]),
        ("work()@0x2000<-main@0x1002", [0, 10, 0]),
        ("libb.so+0x1000@0x1000", [50, 0, 90]),
        ("libb.so+0x1000@0x1000<-main@0x1008", [0, 90, 0]),
        // Counts of another unit are left out; samples have the same unit everywhere.
        ("guessed@0x5000", [7, 0, 0]),
        ("[other code]@0x0", [40, 0, 0]),
    ];
    let wanted: BTreeMap<String, Vec<i64>> =
        wanted.iter().map(|(k, v)| ((*k).to_owned(), v.to_vec())).collect();
    assert_eq!(all, wanted);
    let text = |i: i64| p.string_table[usize::try_from(i).unwrap()].as_str();
    assert_eq!(
        p.mapping.iter().map(|m| (text(m.filename), text(m.build_id))).collect::<Vec<_>>(),
        [("a", "aa"), ("libb.so", "0b")]
    );
    assert_eq!((p.time_nanos, p.duration_nanos), (1_760_000_000_000_000_000, 6_000_000_000));
    assert_eq!(
        p.sample_type.iter().map(|t| text(t.r#type)).collect::<Vec<_>>(),
        ["samples", "calls", "executions"]
    );
}

/// pprof compares it with the build-id of a local file, which has none.
#[test]
fn a_derived_id_is_no_build_id() {
    let derived = format!("77686574{:032x}", 1);
    let text =
        TEXT.replace("module aa ", &format!("module {derived} ")).replace("@aa ", &format!("@{derived} "));
    let p = read(&pprof(&text.parse().unwrap()));
    let ids: Vec<&str> =
        p.mapping.iter().map(|m| p.string_table[usize::try_from(m.build_id).unwrap()].as_str()).collect();
    assert_eq!(ids, ["", "0b"]);
}

#[test]
fn counts_beyond_the_format_are_cut_off() {
    let text = TEXT
        .replace(" 1000\n", " 18446744073709551615\n")
        .replace("when 1760000000", "when 18446744073709551615");
    let p = read(&pprof(&text.parse().unwrap()));
    assert_eq!(shown(&p)["work()@0x2020"], [40, 0, i64::MAX]);
    assert_eq!(p.time_nanos, i64::MAX);
}
