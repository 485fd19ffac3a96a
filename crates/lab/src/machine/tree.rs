//! The files of /sys and /proc that describe a host, by path. Tests put a table in the place of the kernel.

use std::collections::BTreeMap;
use std::fs;

/// Returns the text of a file by its path, or `None` if there is no such file.
pub type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads this host's files. White space at the ends is removed.
pub fn live(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Parses lines of the form `PATH:LINE` into the texts of the files, of which white space at the ends is removed.
pub fn parse(lines: &str) -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for (path, line) in lines.lines().filter_map(|l| l.split_once(':')) {
        let text = files.entry(path.to_owned()).or_default();
        text.push_str(line);
        text.push('\n');
    }
    files.values_mut().for_each(|text| *text = text.trim().to_owned());
    files
}

/// Parses a list of the kernel's form: `0-3,8,10-11`. Words that are no numbers or ranges are left out.
pub fn list(text: &str) -> Vec<usize> {
    let mut all = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse(), last.trim().parse::<usize>()) {
            all.extend((first..=last).take(1 << 16));
        }
    }
    all
}

/// Formats CPUs as the kernel does: `0-3,8`. `cpus` may be in any order.
pub fn ranges(cpus: &[usize]) -> String {
    let mut sorted = cpus.to_vec();
    sorted.sort_unstable();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for cpu in sorted {
        match runs.last_mut() {
            Some(run) if run.1 + 1 == cpu => run.1 = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let word = |(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    runs.iter().map(word).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::{list, parse, ranges};

    #[test]
    fn files_by_their_lines() {
        let files = parse("/a:x: 1\n/a:\n/a:y\n/b: 2 \nno path\n");
        assert_eq!(
            files.into_iter().collect::<Vec<_>>(),
            [("/a".to_owned(), "x: 1\n\ny".to_owned()), ("/b".to_owned(), "2".to_owned())]
        );
    }

    #[test]
    fn lists_of_the_kernel() {
        assert_eq!(list("0-2,5,8-9\n"), [0, 1, 2, 5, 8, 9]);
        assert_eq!(list(""), Vec::<usize>::new());
        assert_eq!(list("x,3-y,7"), [7]);
        assert_eq!(ranges(&[9, 0, 1, 2, 5, 8]), "0-2,5,8-9");
    }
}
