//! Captures of processes, and rebuilds from them.
//!
//! `golden/captures` has captures, each with the answer of `whet replay` beside it. A change to the layout
//! shows as a diff there: `WHET_BLESS=1 cargo test -p whet --test it -- replay::` rewrites the answers.

use crate::support::{Guest, build, build_with, run, scratch, skip, whet};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const OWN: [&str; 3] = ["--only", "mix_some", "sum_up"];

/// Captures a process; returns the file and the answer.
fn capture(guest: &Guest, more: &[&str]) -> (PathBuf, Value) {
    let file = scratch("capture");
    let pid = guest.arg();
    let words = [&["capture", &pid, "-o", file.to_str().unwrap(), "--format", "json"], more].concat();
    let answer = whet(&words).exits(0).json();
    assert_eq!(answer["bytes"].as_u64().unwrap(), fs::metadata(&file).unwrap().len());
    (file, answer)
}

fn replay(file: &Path, more: &[&str]) -> String {
    whet(&[&["replay", file.to_str().unwrap()], more].concat()).exits(0).stdout
}

fn replay_json(file: &Path, more: &[&str]) -> Value {
    serde_json::from_str(&replay(file, &[more, &["--format", "json"]].concat())).unwrap()
}

#[test]
fn a_capture_builds_the_clones_of_its_process() {
    let guest = Guest::working(&build("cases.c"), &["spin"], 1);
    let pid = guest.arg();
    let optimize = [&["optimize", &pid, "--seconds", "1", "--count", "0.3"][..], &OWN].concat();
    whet(&optimize).exits(0);
    let before = crate::support::changed_text(guest.pid());
    let (file, answer) = capture(&guest, &[]);
    assert_eq!((&answer["generation"], &answer["functions"]), (&1.into(), &2.into()), "{answer}");
    assert_eq!(before, crate::support::changed_text(guest.pid()), "a capture changes nothing");
    guest.progresses(1);
    guest.finish();

    // The process is gone.
    let report = replay_json(&file, &[]);
    assert_eq!(report["functions"]["cloned"], 2, "{report}");
    let names: Vec<&str> =
        report["layouts"].as_array().unwrap().iter().map(|l| l["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["mix_some", "sum_up"]);
    assert!(report["exe"].as_str().unwrap().contains("cases.c"));
    assert_eq!(replay(&file, &[]), replay(&file, &[]), "a replay depends on the capture alone");

    let shuffled = replay_json(&file, &["--shuffle", "3"]);
    assert!(shuffled["functions"]["cloned"].as_u64().unwrap() > 100, "{shuffled}");
    assert_ne!(replay(&file, &["--shuffle", "3"]), replay(&file, &["--shuffle", "4"]));
    let plain = replay_json(&file, &["--without", "blocks,split"]);
    assert_eq!(plain["without"], serde_json::json!(["blocks", "split"]));
    for layout in plain["layouts"].as_array().unwrap() {
        assert!(layout["hot"].as_array().unwrap().is_sorted_by_key(Value::as_u64), "{layout}");
    }
}

#[test]
fn a_capture_of_a_program_without_a_build_id() {
    let guest = Guest::working(&build_with("cases.c", &["-Wl,--build-id=none"]).unwrap(), &["spin"], 1);
    let pid = guest.arg();
    whet(&[&["optimize", &pid, "--seconds", "1", "--count", "0.3"][..], &OWN].concat()).exits(0);
    let (file, answer) = capture(&guest, &[]);
    assert_eq!((&answer["generation"], &answer["functions"]), (&1.into(), &2.into()), "{answer}");
    let report = replay_json(&file, &[]);
    assert_eq!(report["functions"]["cloned"], 2, "{report}");
}

#[test]
fn a_capture_of_a_process_without_clones_has_its_samples() {
    let guest = Guest::working(&build("cases.c"), &["spin"], 1);
    let (file, answer) = capture(&guest, &["--seconds", "0.5"]);
    assert_eq!(answer.get("generation"), None, "{answer}");
    assert!(answer["functions"].as_u64().unwrap() >= 2, "{answer}");
    assert!(replay(&file, &[]).contains("\nmix_some: "));
    let all = fs::metadata(&file).unwrap().len();
    let (hot, _) = capture(&guest, &["--seconds", "0.5", "--hot-code"]);
    assert!(fs::metadata(&hot).unwrap().len() < all);
    assert!(replay(&hot, &[]).contains("\nmix_some: "));
    assert!(crate::support::changed_text(guest.pid()).is_empty());
}

#[test]
fn a_random_layout_is_captured_by_its_seed() {
    let guest = Guest::working(&build("cases.c"), &["spin"], 1);
    let pid = guest.arg();
    let optimize = [&["optimize", &pid, "--shuffle", "5"][..], &OWN].concat();
    whet(&optimize).exits(0);
    let (file, _) = capture(&guest, &[]);
    assert_eq!(replay_json(&file, &[])["shuffle"], 5);
}

/// Returns the decompressed bytes of a file.
fn unpacked(file: &Path) -> Vec<u8> {
    let gzip = Command::new("gzip").arg("-dc").stdin(fs::File::open(file).unwrap()).output().unwrap();
    assert!(gzip.status.success());
    gzip.stdout
}

#[test]
fn no_data_of_a_process_is_captured() {
    let program = build_with("secret.c", &["-no-pie", "-fno-pic"]).unwrap();
    let guest = Guest::working(&program, &[], 1);
    let (file, answer) = capture(&guest, &["--seconds", "0.5"]);
    let bytes = unpacked(&file);
    let found = |what: &[u8]| bytes.windows(what.len()).any(|w| w == what);
    assert!(!found(b"a card number") && !found(b"4000-1234"));
    // The page with the secret is there, with its address of code.
    let nm = run({
        let mut nm = Command::new("nm");
        nm.arg(&program);
        nm
    });
    let at = nm.stdout.lines().find(|l| l.ends_with(" T stir")).unwrap();
    let at = u64::from_str_radix(at.split(' ').next().unwrap(), 16).unwrap();
    assert!(found(&at.to_le_bytes()), "{answer}");
    assert!(replay(&file, &[]).contains("\nstir: "));
}

#[test]
fn what_is_no_capture_is_refused() {
    let guest = Guest::working(&build("cases.c"), &["spin"], 1);
    let (file, _) = capture(&guest, &["--seconds", "0.3"]);
    let whole = fs::read(&file).unwrap();
    let error = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let answer = whet(&["replay", file.to_str().unwrap(), "--format", "json"]).exits(2);
        let error = answer.json()["error"].clone();
        assert_eq!(error["code"], "no_capture_file");
        error["message"].as_str().unwrap().to_owned()
    };
    assert!(error(b"").contains("is no capture"));
    assert!(error(b"junk").contains("is no capture"));
    for keep in [20, whole.len() / 2, whole.len() - 1] {
        assert!(error(&whole[..keep]).contains("is "), "{keep}");
    }
    assert!(error(&packed(b"whet capture 77\n")).contains("another version"));
    whet(&["replay", "/no/such/file"]).exits(3);
    whet(&["capture", "2147483647", "-o", file.to_str().unwrap()]).exits(3);
    whet(&["capture", &guest.arg(), "--seconds", "0.3", "-o", "/no/such/folder/file"]).exits(3);
    guest.progresses(1);
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut command = Command::new("gzip");
    let mut gzip = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    gzip.stdin.take().unwrap().write_all(bytes).unwrap();
    gzip.wait_with_output().unwrap().stdout
}

#[test]
fn layouts_are_as_they_were() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/captures");
    let mut captures: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
    captures.retain(|p| p.extension().is_some_and(|e| e == "capture"));
    captures.sort();
    assert!(captures.len() >= 3, "{captures:?}");
    for capture in captures {
        let answer = capture.with_extension("txt");
        let now = replay(&capture, &[]);
        if std::env::var_os("WHET_BLESS").is_some() {
            fs::write(&answer, &now).unwrap();
            skip(&format!("{} was written, not compared", answer.display()));
            continue;
        }
        let was = fs::read_to_string(&answer).unwrap();
        for (was, now) in was.lines().zip(now.lines()) {
            assert_eq!(was, now, "{}", answer.display());
        }
        assert_eq!(was.lines().count(), now.lines().count(), "{}", answer.display());
    }
}
