//! The perf map: a text from which `perf` and similar profilers take the names of code that no file
//! describes.
//!
//! Format: `tools/perf/Documentation/jit-interface.txt` of Linux. Each run of code has a line: its start and
//! its size in hexadecimal, and its name, which may contain spaces.

use crate::Fragment;
use std::fmt::Write;

/// Returns the text of the map, one line for each fragment in the order given.
#[must_use]
pub fn perf_map(fragments: &[Fragment]) -> String {
    let mut s = String::new();
    for f in fragments {
        let _ = writeln!(s, "{:x} {:x} {}", f.range.start.0, f.range.len(), f.label());
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;
    use addr::{Avma, AvmaRange};

    #[test]
    fn a_line_for_each() {
        let f = |at, name: &str| Fragment {
            range: AvmaRange::with_len(Avma(at), 0x20),
            part: Part::Hot,
            name: name.to_owned(),
        };
        let map = perf_map(&[f(0x7f00_0000_1000, "_Z3addii"), f(0x10, "two words\nand more")]);
        assert_eq!(map, "7f0000001000 20 add.whet\n10 20 two words?and more.whet\n");
    }
}
