//! A profile as collapsed stacks, the text that flame graph tools read: `OUTER;INNER SAMPLES` in each line.

use super::pprof::{OTHER_CODE, name_of};
use profile::{CallGraph, Profile};
use std::fmt::Write;

/// Returns the text. The samples of each function are exact; their callers are estimated from exact counts of
/// calls ([`CallGraph::stacks`]). The outermost frame is the program.
pub(crate) fn collapsed(profile: &Profile) -> String {
    let graph = CallGraph::of(profile);
    let samples: Vec<u64> = graph.nodes().iter().map(|n| n.function.samples).collect();
    let names: Vec<String> = (0..samples.len()).map(|i| frame(&name_of(&graph, i))).collect();
    let exe = profile.exes.first().map_or("program", |e| e.rsplit('/').next().unwrap_or(e));
    let exe = frame(exe);
    let mut out = String::new();
    for (stack, n) in graph.stacks(&samples) {
        out.push_str(&exe);
        for name in stack.iter().filter_map(|&i| names.get(i)) {
            let _ = write!(out, ";{name}");
        }
        let _ = writeln!(out, " {n}");
    }
    let in_functions = samples.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
    let rest = profile.samples.saturating_sub(in_functions);
    if rest > 0 {
        let _ = writeln!(out, "{exe};{OTHER_CODE} {rest}");
    }
    out
}

/// Returns a name as a frame: without the signs that separate frames and lines.
fn frame(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c == ';' {
                ':'
            } else if c.is_control() {
                ' '
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a line as flame graph tools do: the number behind the last blank, frames between semicolons.
    fn read(line: &str) -> (Vec<&str>, u64) {
        let (stack, n) = line.rsplit_once(' ').unwrap();
        (stack.split(';').collect(), n.parse().unwrap())
    }

    #[test]
    fn lines_are_stacks_with_samples() {
        let text = "\
whet-profile 2
exe /usr/bin/a b
samples 100
module aa a
function 0x1000 1 counted entered 1 samples 3 size 0x100 global main
+0 +8 100
call +2 0x2000 10
function 0x2000 2 counted entered 10 samples 70 size 0x100 global odd;name
+0 +8 10
end
";
        let text = collapsed(&text.parse().unwrap());
        let lines: Vec<_> = text.lines().map(read).collect();
        assert_eq!(
            lines,
            [(vec!["a b", "main"], 3), (vec!["a b", "main", "odd:name"], 70), (vec!["a b", OTHER_CODE], 27)]
        );
    }

    #[test]
    fn a_profile_without_samples_has_no_lines() {
        assert_eq!(collapsed(&Profile::default()), "");
    }
}
