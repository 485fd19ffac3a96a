//! Every share of user time has a name, and all of them sum to 1.

use crate::support::{Guest, build, build_with, whet};
use serde_json::{Value, json};

/// Starts a guest with user time in code of every kind.
fn everywhere() -> Guest {
    let program = build_with("everywhere.c", &["-no-pie"]).unwrap();
    let library = build_with("everywhere.c", &["-DLIBRARY", "-shared", "-fPIC"]).unwrap();
    Guest::working(&program, &[library.to_str().unwrap()], 1)
}

/// Returns all shares of an answer, by name and reason.
fn rows(user_time: &Value) -> Vec<(String, f64)> {
    let mut rows = Vec::new();
    for (name, value) in user_time.as_object().unwrap() {
        match value {
            Value::Object(reasons) => {
                rows.extend(reasons.iter().map(|(r, v)| (format!("{name} {r}"), v.as_f64().unwrap())));
            }
            share => rows.push((name.clone(), share.as_f64().unwrap())),
        }
    }
    rows
}

#[track_caller]
fn sums_to_one(user_time: &Value) {
    // Each share is a whole number of ten thousandths.
    let parts: f64 = rows(user_time).iter().map(|(_, share)| (share * 1e4).round()).sum();
    assert_eq!(parts, 1e4, "{user_time}");
}

#[test]
fn each_kind_of_code_has_its_share_of_user_time() {
    let guest = everywhere();
    let pid = guest.arg();
    let optimized =
        whet(&["optimize", &pid, "--seconds", "2", "--count", "0", "--format", "json"]).exits(0).json();
    let t = &optimized["user_time"];
    sums_to_one(t);
    let share = |path: &str| t.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
    assert!(share("/no_unwind_tables") > 0.02, "{t}");
    assert!(share("/generated_code") > 0.04, "anonymous and memfd: {t}");
    assert!(share("/vdso") > 0.005, "{t}");
    assert!(share("/module_left_alone/runtime_internal") > 0.005, "the loader's: {t}");
    // The library was opened by `dlopen`, so it is rebuilt, or left alone for that reason.
    assert!(share("/in_clones") > 0.02, "{t}");
    assert!(share("/in_clones") + share("/module_left_alone/module_may_unload") > 0.04, "{t}");
    assert!(share("/in_clones") <= optimized["coverage"].as_f64().unwrap() + 1e-4, "{optimized}");

    // The next whet reads the same shares from the target.
    let explained = whet(&["explain", &pid, "--format", "json"]).exits(0).json();
    assert_eq!(&explained["user_time"], t);
    let status = whet(&["status", &pid, "--format", "json"]).exits(0).json();
    assert_eq!(&status["targets"][0]["user_time"], t);
    for command in ["explain", "status"] {
        let said = whet(&[command, &pid]).exits(0).stdout;
        for words in ["user time:", "in clones", "generated code", "without unwind tables", "vdso"] {
            assert!(said.contains(words), "{command}: {words} in {said}");
        }
    }
    whet(&["undo", &pid]).exits(0);
    let (code, signal, _) = guest.finish();
    assert_eq!((code, signal), (Some(0), None));
}

#[test]
fn a_profile_tells_its_own_shares() {
    let first = Guest::working(&build("cases.c"), &["spin"], 1);
    let pid = first.arg();
    let cold =
        whet(&["optimize", &pid, "--seconds", "1", "--count", "0.2", "--format", "json"]).exits(0).json();
    sums_to_one(&cold["user_time"]);
    let file = crate::support::scratch("profile");
    whet(&["profile", "export", &pid, "--output", file.to_str().unwrap()]).exits(0);
    let second = Guest::working(&build("cases.c"), &["spin"], 1);
    let pid = second.arg();
    let warm =
        whet(&["optimize", &pid, "--profile", file.to_str().unwrap(), "--format", "json"]).exits(0).json();
    sums_to_one(&warm["user_time"]);
    assert!(warm["user_time"]["in_clones"].as_f64().unwrap() > 0.8, "{warm}");
    assert_eq!(warm["user_time"]["generated_code"], json!(0.0), "{warm}");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn random_layouts_have_no_shares() {
    let guest = Guest::working(&build("cases.c"), &["spin"], 1);
    let pid = guest.arg();
    let answer =
        whet(&["optimize", &pid, "--shuffle", "1", "--only", "mix_some", "--format", "json"]).exits(0);
    assert_eq!(answer.json().get("user_time"), None);
}
