//! Programs that do unusual things with their stacks and callers, and must not notice whet.

use crate::support::{Guest, build, build_with, whet};
use serde_json::Value;

fn ask(guest: &Guest, command: &[&str]) -> Value {
    let pid = guest.arg();
    let arguments = [&[command[0], &pid], &command[1..], &["--format", "json"]].concat();
    whet(&arguments).exits(0).json()
}

/// A signal frame that returns into the first bytes of a function is on a stack other than the thread's
/// present one. No redirect covers the start of an instruction, so the handler may return at any time.
#[test]
fn a_signal_returns_close_behind_an_entry() {
    let program = build("held.c");
    for (how, who) in [("nested", "first"), ("nested", "second"), ("left", "first"), ("left", "second")] {
        let guest = Guest::start(&program, &[how, who]);
        guest.second_thread();
        let optimized = ask(&guest, &["optimize", "--shuffle", "1", "--only", "held"]);
        assert_eq!(optimized["functions"]["cloned"], 1, "{optimized}");
        guest.go();
        guest.progresses(1);
        assert_eq!(optimized["skipped_redirects"], 0, "{how}, {who}: {optimized}");
        let redone = ask(&guest, &["redo"]);
        assert_eq!(redone["skipped_redirects"], 0);
        guest.progresses(1);
        ask(&guest, &["undo"]);
        guest.progresses(1);
        let (code, signal, _) = guest.finish();
        assert_eq!((code, signal), (Some(0), None), "{how}, {who}");
    }
}

/// `dlsym` looks at its return address. A function that calls another which jumps to `dlsym` is its caller,
/// and is not cloned.
#[test]
fn callers_of_functions_that_jump_to_dlsym_are_left_alone() {
    for flags in [&[][..], &["-fno-plt"]] {
        let guest = Guest::working(&build_with("wrapped.c", flags).unwrap(), &[], 1);
        ask(&guest, &["optimize", "--shuffle", "1", "--only", "look", "plain", "seek", "seek_on"]);
        guest.progresses(1);
        let explained = ask(&guest, &["explain"]);
        let reason = |name: &str| {
            let functions = explained["functions"].as_array().unwrap();
            functions.iter().find(|f| f["name"] == name).map(|f| f["reason"].clone())
        };
        assert_eq!(reason("look"), Some("caller_sensitive".into()), "{flags:?}: {explained}");
        assert_eq!(reason("plain"), Some(Value::Null), "{explained}");
        let (code, signal, _) = guest.finish();
        assert_eq!((code, signal), (Some(0), None));
    }
}
