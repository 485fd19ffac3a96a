//! Guest programs under the command line.
//!
//! Each program of `guests/` (at the root of the repository) is built by several compilers in several ways,
//! stripped, and run plain and then under whet. In every mode its output and its end must be those of the
//! plain run:
//!
//! | mode | what is done while it runs |
//! |---|---|
//! | plain | nothing |
//! | optimized | `whet optimize PID --seconds 0.4 --count 0.2` (see `Count`) |
//! | shuffled | `whet optimize PID --shuffle SEED` |
//! | toggled | shuffled, then `whet undo` and `whet redo` in turn as fast as they go; undone and verified in the end |
//! | counted | `whet optimize PID --shuffle SEED --count 0.3`: clones that count, in random order, come first |
//! | undone | shuffled, `whet undo`, and `whet verify` says that its text is identical to its files |
//!
//! `guests/guest.h` describes the protocol of a guest. The lines at the head of its source that begin with
//! `//#` are directives:
//!
//! | directive | meaning |
//! |---|---|
//! | `Lang: c`, `c++` or `rust` | its language (required) |
//! | `Flags: ...` | more arguments for the compiler |
//! | `Link: ...` | more arguments at the end of the command |
//! | `With: FILE...` | more sources, relative to `guests/` |
//! | `Library: FILE` | a source built as a shared library; its path is the macro `GUEST_LIBRARY` |
//! | `Twice: FILE` | as `Library`, and built again with `GUEST_SECOND` defined; that path is the macro `GUEST_SECOND_LIBRARY` |
//! | `Linked: FILE` | as `Library`, and the program is linked with it |
//! | `Compilers: gcc` or `clang` | only these |
//! | `Pic: yes` or `no` | only position-independent, or only not |
//! | `Exit: N` | its exit status (0 without it) |
//! | `Signal: N` | it ends by this signal |
//! | `Count: SECONDS` | how long its clones count in mode `optimized` |
//! | `Patches` | it changes its own code: `whet verify` may find other bytes than the files' |
//! | `Idle` | whet may find nothing to do (exit code 7) |
//! | `Refused: CODE` | whet must leave it alone (exit code 5) for this reason |
//!
//! For each guest, a selection of compiler, optimization level and kind of program is made, so that
//! everything takes a few minutes. Only some of the `toggled` runs shuffle all of the libraries, and guests
//! rest half of the time. With the environment variable `WHET_STRESS` set, all of them are run; its value, a
//! number, selects other layouts. No more than three guests run at once, unless `--test-threads` says
//! otherwise. Runs are kept under `target/tmp/guests`.

mod build;
mod directives;
mod modes;
mod process;
mod variants;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use modes::{Mode, Subject};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use variants::{Compilers, Variant};

/// Numbers of what ran, for the line at the end.
#[derive(Default)]
struct Counts {
    builds: AtomicUsize,
    cached: AtomicUsize,
    modes: [AtomicUsize; Mode::ALL.len()],
    toggles: AtomicUsize,
    busy: AtomicUsize,
    nothing_hot: AtomicUsize,
    refused: AtomicUsize,
    ended_before: AtomicUsize,
    skipped: AtomicUsize,
}

/// Counts one more.
fn count(what: &AtomicUsize) {
    what.fetch_add(1, Ordering::Relaxed);
}

impl Counts {
    fn line(&self) -> String {
        let n = |a: &AtomicUsize| a.load(Ordering::Relaxed);
        let modes: Vec<String> =
            Mode::ALL.iter().zip(&self.modes).map(|(m, a)| format!("{} {}", n(a), m.name())).collect();
        format!(
            "guests: {}; {} undo or redo commands; {} programs built, {} from before; whet was busy {} times, found \
             nothing hot {} times, refused {} times as it must, came after the end {} times; {} runs skipped",
            modes.join(", "),
            n(&self.toggles),
            n(&self.builds),
            n(&self.cached),
            n(&self.busy),
            n(&self.nothing_hot),
            n(&self.refused),
            n(&self.ended_before),
            n(&self.skipped),
        )
    }
}

/// State that all trials share.
struct Harness {
    /// The folder `guests/`.
    sources: PathBuf,
    /// Where programs are built and runs are kept.
    cache: PathBuf,
    compilers: Compilers,
    /// The number given by `WHET_STRESS`; `None` means the short form.
    stress: Option<u64>,
    counts: Counts,
}

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert(3);
    let (harness, trials) = match trials() {
        Ok(all) => all,
        Err(e) => {
            say(&format!("the guests cannot be run: {e}"));
            return ExitCode::FAILURE;
        }
    };
    let listing = args.list;
    let conclusion = libtest_mimic::run(&args, trials);
    if !listing {
        for missing in harness.compilers.missing() {
            say(&format!("skipped: {missing}"));
        }
        say(&harness.counts.line());
    }
    conclusion.exit_code()
}

/// Writes a line to standard output. A closed pipe is no reason to fail.
fn say(line: &str) {
    drop(writeln!(std::io::stdout(), "{line}"));
}

fn trials() -> Result<(Arc<Harness>, Vec<Trial>), String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests");
    let sources = sources.canonicalize().map_err(|e| format!("{}: {e}", sources.display()))?;
    let harness = Arc::new(Harness {
        cache: Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests"),
        compilers: Compilers::find(),
        stress: std::env::var("WHET_STRESS").ok().map(|s| s.parse().unwrap_or(0)),
        counts: Counts::default(),
        sources,
    });
    let mut trials = Vec::new();
    for (place, guest) in directives::read_all(&harness.sources)?.into_iter().enumerate() {
        let guest = Arc::new(guest);
        let variants = match harness.stress {
            Some(_) => variants::all(&guest).into_iter().map(|v| (v, &Mode::ALL[..])).collect(),
            None => variants::selection(&guest, place),
        };
        for (variant, modes) in variants {
            let subject = Arc::new(Subject::new(Arc::clone(&guest), variant));
            for &mode in modes {
                trials.push(trial(&harness, &subject, variant, mode));
            }
        }
    }
    Ok((harness, trials))
}

fn trial(harness: &Arc<Harness>, subject: &Arc<Subject>, variant: Variant, mode: Mode) -> Trial {
    let name = format!("{}::{}::{}", subject.guest.name, variant.name(), mode.name());
    let (harness, subject) = (Arc::clone(harness), Arc::clone(subject));
    Trial::ignorable_test(name.clone(), move || {
        if let Some(reason) = harness.compilers.lacks(variant.compiler(&subject.guest)) {
            count(&harness.counts.skipped);
            return Ok(Completion::ignored_with(reason));
        }
        subject.run(&harness, mode, &name).map_err(Failed::from)?;
        count(&harness.counts.modes[mode as usize]);
        Ok(Completion::Completed)
    })
}
