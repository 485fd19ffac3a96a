//! Libraries that are loaded and unloaded while whet works.

use crate::support::{Guest, build_with, stress, whet};

/// The counter of pairs of rounds, one round with each plugin.
const PAIRS: u64 = 1;
/// Number of rebuilds.
const REBUILDS: u64 = 8;

#[test]
fn plugins_that_replace_each_other_are_rebuilt_and_undone() {
    let pairs = if stress() { 5000 } else { 100 };
    let library = |more: &[&str]| {
        let path = build_with("plugged.cc", &[&["-shared", "-fPIC"], more].concat()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (first, second) = (library(&[]), library(&["-DGUEST_SECOND"]));
    let program = build_with("plugins.cc", &["-rdynamic"]).unwrap();
    let guest = Guest::working(&program, &[&first, &second], 2);
    let pid = guest.arg();
    let mut rebuilds = 0;
    while rebuilds < 2 || guest.counter(PAIRS) < pairs {
        if rebuilds < REBUILDS {
            let seed = rebuilds.to_string();
            let how: &[&str] = match rebuilds % 2 {
                0 => &["--seconds", "0.3", "--count", "0.4"],
                _ => &["--shuffle", &seed],
            };
            whet(&[&["optimize", &pid], how].concat()).exits(0);
            rebuilds += 1;
        }
        for _ in 0..4 {
            whet(&["undo", &pid]).exits(0);
            whet(&["redo", &pid]).exits(0);
        }
        guest.progresses(2);
    }
    // With no plugin loaded, there is nothing to undo at its address.
    guest.go();
    guest.progresses(1);
    whet(&["undo", &pid]).exits(0);
    whet(&["verify", &pid]).exits(0);
    let (code, signal, _) = guest.finish();
    assert_eq!((code, signal), (Some(0), None));
}
