//! The ways to build a guest: compilers, optimization levels, position-independent or not.

use crate::directives::{Guest, Lang};
use crate::modes::Mode;
use std::process::{Command, Stdio};

/// One way to build a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Variant {
    /// Clang instead of GCC; without meaning for Rust.
    pub(crate) clang: bool,
    /// The letter of the optimization level.
    pub(crate) level: char,
    /// A position-independent program.
    pub(crate) pic: bool,
    rust: bool,
}

impl Variant {
    /// Returns its part of a trial's name.
    pub(crate) fn name(self) -> String {
        let compiler = match (self.rust, self.clang) {
            (true, _) => "rustc",
            (false, true) => "clang",
            (false, false) => "gcc",
        };
        format!("{compiler}-O{}-{}", self.level, if self.pic { "pie" } else { "nopie" })
    }

    /// Returns the command that builds this guest.
    pub(crate) fn compiler(self, guest: &Guest) -> &'static str {
        match (guest.lang, self.clang) {
            (Lang::Rust, _) => "rustc",
            (Lang::C, false) => "gcc",
            (Lang::C, true) => "clang",
            (Lang::Cxx, false) => "g++",
            (Lang::Cxx, true) => "clang++",
        }
    }
}

/// The modes of the first and of the second variant in the short form, for guests at even and at odd places.
/// Every guest runs in every mode: `shuffled` and `undone` as the beginning and the end of `toggled`,
/// `counted` every second guest.
const SHORT: [[&[Mode]; 2]; 2] = [
    [&[Mode::Plain, Mode::Optimized], &[Mode::Plain, Mode::Toggled, Mode::Counted]],
    [&[Mode::Plain, Mode::Toggled], &[Mode::Plain, Mode::Optimized]],
];

/// Returns every way to build a guest.
pub(crate) fn all(guest: &Guest) -> Vec<Variant> {
    let rust = guest.lang == Lang::Rust;
    let mut variants = Vec::new();
    for clang in [false, true] {
        let family = if clang { "clang" } else { "gcc" };
        let wanted = guest.compilers.is_empty() || guest.compilers.iter().any(|c| c == family);
        if !wanted || (rust && clang) {
            continue;
        }
        for level in ['2', 's', '0'] {
            for pic in [true, false] {
                if guest.pic.is_none_or(|p| p == pic) {
                    variants.push(Variant { clang, level, pic, rust });
                }
            }
        }
    }
    variants
}

/// Returns a few ways to build a guest, with the modes to run. One is the usual way. The other depends on the
/// guest's place in the list, so that some guests use each way.
pub(crate) fn selection(guest: &Guest, place: usize) -> Vec<(Variant, &'static [Mode])> {
    let all = all(guest);
    let mut chosen: Vec<(Variant, &'static [Mode])> = Vec::new();
    let Some((&first, rest)) = all.split_first() else { return chosen };
    chosen.push((first, SHORT[place % 2][0]));
    if !rest.is_empty() {
        // 5 shares no divisor with 11, the number of other ways of a guest that can be built in every way. So
        // each way is used.
        chosen.push((rest[(place * 5 + 7) % rest.len()], SHORT[place % 2][1]));
    }
    chosen
}

/// The compilers of this machine and their versions.
pub(crate) struct Compilers(Vec<(&'static str, Result<String, String>)>);

impl Compilers {
    /// Runs each compiler for its version.
    pub(crate) fn find() -> Self {
        let version = |name: &str| {
            let out = Command::new(name).arg("--version").stdin(Stdio::null()).output();
            match out {
                Ok(o) if o.status.success() => Ok(String::from_utf8_lossy(&o.stdout).into_owned()),
                Ok(o) => Err(format!("{name} --version: {}", o.status)),
                Err(e) => Err(format!("{name} cannot be run: {e}")),
            }
        };
        Self(["gcc", "g++", "clang", "clang++", "rustc"].into_iter().map(|n| (n, version(n))).collect())
    }

    /// Returns the version of a compiler; `None` if it is missing.
    pub(crate) fn version(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| *n == name).and_then(|(_, v)| v.as_deref().ok())
    }

    /// Returns why a compiler cannot be used; `None` if it can be used.
    pub(crate) fn lacks(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| *n == name).and_then(|(_, v)| v.as_ref().err()).map(String::as_str)
    }

    /// Returns the reasons for all compilers that are missing.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|(_, v)| v.as_ref().err()).map(String::as_str)
    }
}
