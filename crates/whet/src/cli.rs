//! The words of the command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use engine::{Error, Interrupt, OptimizeOptions, Pass, Passes, ProfileForm};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  whet optimize $(pidof mariadbd)     profile it under its present load and rebuild its hot code
  whet start                          the daemon: keeps CPU-hungry servers optimized
  whet status                         what is optimized on this host
  whet undo $(pidof mariadbd)         take it all out again (milliseconds)
  whet verify $(pidof mariadbd)       prove what is changed and what is not
  whet measure $(pidof mariadbd)      what it gains under its present load
  whet run -- mysqld --defaults-file=my.cnf
                                      start a command and optimize it

Exit codes:
  0 done   1 fault in whet   2 usage   3 no such process   4 not permitted   5 refused (reason given)
  6 busy, try again   7 nothing to do   8 verification failed   9 undo incomplete   10 target ended meanwhile
  11 interrupted: the target is as it was   12 no daemon runs";

/// Sharpen programs while they run: rebuild the hot machine code of a live process with a better layout.
#[derive(Debug, Parser)]
#[command(version, about, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Cli {
    /// How the answer is written to standard output.
    #[arg(long, global = true, value_enum, default_value_t = Format::Human)]
    pub format: Format,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How answers are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// For people; may change from release to release.
    Human,
    /// One JSON object; stable.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Profile and optimize a process now.
    #[command(
        after_help = "Examples:\n  whet optimize 1234\n  whet optimize 1234 --seconds 20\n  whet optimize 1234 --profile server.profile     warm start: neither sample nor count\n  whet optimize 1234 --shuffle 7     stress mode: clone everything, in random order"
    )]
    Optimize {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        /// Show how long each phase took; `--format json` always does.
        #[arg(short, long)]
        verbose: bool,
        #[command(flatten)]
        how: How,
    },
    /// Take all redirects away: the process runs its original code.
    #[command(after_help = "Examples:\n  whet undo 1234\n  whet undo --all")]
    Undo {
        /// The process.
        #[arg(required_unless_present = "all", allow_negative_numbers = true)]
        pid: Option<i32>,
        /// Every process that carries a journal.
        #[arg(long, conflicts_with = "pid")]
        all: bool,
    },
    /// Put the redirects of the newest generation back.
    #[command(after_help = "Examples:\n  whet redo 1234\n  whet redo --all")]
    Redo {
        /// The process.
        #[arg(required_unless_present = "all", allow_negative_numbers = true)]
        pid: Option<i32>,
        /// Every process that carries a journal.
        #[arg(long, conflicts_with = "pid")]
        all: bool,
    },
    /// What is optimized on this host, found by the journals in the processes themselves.
    #[command(after_help = "Examples:\n  whet status\n  whet status --watch\n  whet status --format json")]
    Status {
        /// Only this process.
        #[arg(allow_negative_numbers = true)]
        pid: Option<i32>,
        /// Again every second: a live view on a terminal, lines (or JSON objects) elsewhere.
        #[arg(long)]
        watch: bool,
    },
    /// What was done to a process and why the rest was left alone; one function's graph with counts, original and clone
    /// side by side.
    #[command(
        after_help = "Marks between the columns: + only in the clone, = there again, - not needed there, * done in place of a call.\n\nExamples:\n  whet explain 1234\n  whet explain 1234 row_search_mvcc\n  whet explain 1234 'ha_innobase::index_read'\n  whet explain 1234 0x55d0c1a2b3c0"
    )]
    Explain {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        /// One function: its name, mangled or not, or a part that no other has; or an address inside it or its clone.
        function: Option<String>,
    },
    /// Write a page for the browser about one process: where its code ran before and runs now, hot functions, refusals.
    #[command(
        after_help = "The page needs nothing but itself: no script, no other file, no network.\n\nExamples:\n  whet report 1234 -o server.html\n  whet measure 1234 --format json >gain.json; whet report 1234 --measure gain.json -o server.html"
    )]
    Report {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        /// Write it to this file, in one step; a link in its place is not followed.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Show the gain that `whet measure --format json` wrote to this file.
        #[arg(long, value_name = "FILE")]
        measure: Option<PathBuf>,
    },
    /// Compare the process's code with its files: what is changed is exactly what the journal says.
    #[command(after_help = "Examples:\n  whet verify 1234\n  whet verify 1234 --format json")]
    Verify {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
    },
    /// Write a symbol file with which gdb knows clones: names, and whole backtraces; tells the command to give.
    #[command(
        after_help = "Examples:\n  whet gdb 1234\n  whet gdb 1234 -o server.debug\n  whet gdb --core core.1234\n  whet gdb --core core.1234 /usr/sbin/mariadbd"
    )]
    Gdb(Gdb),
    /// Tell perf the names of clones (optimize and redo do so too), and on request their code.
    #[command(
        after_help = "Examples:\n  whet perf 1234\n  whet perf 1234 --jitdump     then perf record -k mono, perf inject --jit"
    )]
    Perf {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        /// Write the code of clones as well, for `perf inject --jit` and `perf annotate`: to /tmp/jit-PID.dump, of which the
        /// process maps a page.
        #[arg(long)]
        jitdump: bool,
    },
    /// Keep what was counted in files: for a warm start after a restart, for other hosts, for offline tools.
    #[command(
        after_help = "Examples:\n  whet profile export 1234 -o server.profile\n  whet optimize 5678 --profile server.profile"
    )]
    Profile {
        /// What to do with it.
        #[command(subcommand)]
        what: ProfileCommand,
    },
    /// Write all that a rebuild reads of a process to a file: for bug reports, and to look at one run again.
    #[command(
        after_help = "The process is not stopped and not changed. Its profile is that of its clones; a process without clones is sampled.\nThe file holds code, read-only tables, names and counts. Of memory that the process may write, it holds addresses of code and tables alone.\n\nExamples:\n  whet capture 1234 -o server.capture\n  whet replay server.capture"
    )]
    Capture(crate::capture::CaptureArgs),
    /// Rebuild what a capture holds, without the process, and show the layout of each clone.
    #[command(
        after_help = "The same capture gives the same answer.\n\nExamples:\n  whet replay server.capture\n  whet replay server.capture --without loops\n  whet replay server.capture --shuffle 7"
    )]
    Replay(crate::capture::ReplayArgs),
    /// What it gains: work and CPU time with whet's code and without, in turns, under the present load.
    #[command(after_help = crate::measure::EXAMPLES)]
    Measure {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        #[command(flatten)]
        how: crate::measure::How,
    },
    /// What whet calls itself by to restore a process, should `measure` be killed.
    #[command(name = ::measure::GUARD_COMMAND, hide = true)]
    Guard {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        /// The generation that is switched.
        generation: u32,
        /// The state in which it was found.
        found: String,
    },
    /// Write man pages and completions for bash, zsh and fish to a folder.
    #[command(hide = true)]
    Generate {
        /// The folder.
        folder: PathBuf,
    },
    /// What this host offers, and how to mend what is missing.
    #[command(after_help = "Examples:\n  whet doctor\n  whet doctor --format json")]
    Doctor,
    /// Start the daemon: it watches for CPU-hungry processes on its list and keeps them optimized.
    #[command(
        after_help = "Examples:\n  whet start\n  whet start --foreground                    what a service manager runs\n  whet start --config /etc/other.toml"
    )]
    Start {
        /// Stay here and log to standard error.
        #[arg(long)]
        foreground: bool,
        /// Leave the session and log to the journal or a file.
        #[arg(long, hide = true)]
        detached: bool,
        /// The configuration.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// End the daemon; what is optimized stays so.
    #[command(after_help = "Examples:\n  whet stop\n  whet undo --all     take everything back as well")]
    Stop {
        /// The configuration, which says where the daemon listens.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// What the daemon calls itself by.
    #[command(hide = true, name = daemon::WORKER_COMMAND)]
    DaemonWork {
        /// What to do, as JSON.
        order: String,
    },
    /// Start a command and optimize it; exits with the command's exit code.
    #[command(
        after_help = "Examples:\n  whet run -- python3 app.py\n  whet run --delay 60 -- mysqld --defaults-file=my.cnf\n  whet run --shuffle 7 -- ./selftest"
    )]
    Run {
        #[command(flatten)]
        how: How,
        /// Seconds to wait after the start before the profile is taken.
        #[arg(long, default_value_t = 0.2, value_parser = seconds)]
        delay: f64,
        /// Write the answer of the optimization (JSON) to this file; standard output is the command's.
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
        /// The command and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

/// Of what a symbol file is wanted, and where it goes.
#[derive(Debug, Args)]
pub struct Gdb {
    /// The process.
    #[arg(required_unless_present = "core", allow_negative_numbers = true)]
    pub pid: Option<i32>,
    /// Of a process that is gone: its core file, and its program, where that is not where the core says.
    #[arg(long, num_args = 1..=2, value_names = ["CORE", "EXE"], conflicts_with = "pid")]
    pub core: Vec<PathBuf>,
    /// Write it to this file; without it, to a folder that only you can enter.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// What is done with profiles.
#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Write what the last optimization of a process used.
    #[command(
        after_help = "Examples:\n  whet profile export 1234 -o server.profile\n  whet profile export 1234 --as fdata -o server.fdata     for llvm-bolt --data\n  whet profile export 1234 --as order -o server.order     for lld --symbol-ordering-file"
    )]
    Export {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        #[command(flatten)]
        to: To,
    },
    /// Add profiles of several runs and hosts up into one.
    #[command(
        after_help = "Counts are summed, as if one long run had seen it all.\n\nExamples:\n  whet profile import a.profile b.profile -o all.profile\n  whet profile import all.profile --as fdata -o server.fdata"
    )]
    Import {
        /// Profiles.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        to: To,
    },
    /// Sum a profile up: its modules, their hottest functions.
    #[command(
        after_help = "Examples:\n  whet profile show server.profile\n  whet profile show server.profile --top 100 --format json"
    )]
    Show {
        /// The profile.
        file: PathBuf,
        /// So many functions of each module.
        #[arg(long, value_name = "N", default_value_t = 10)]
        top: usize,
    },
}

/// Where a profile goes, and how it is written.
#[derive(Debug, Args)]
pub struct To {
    /// Write it to this file; without it, to standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// In which form.
    #[arg(long = "as", value_name = "FORM", value_enum, default_value_t = Form::Profile)]
    form: Form,
    /// For fdata and order: of this module (file name or build-id); without it, of the program.
    #[arg(long, value_name = "MODULE")]
    pub module: Option<String>,
}

impl To {
    /// As the engine takes it.
    pub fn form(&self) -> ProfileForm {
        match self.form {
            Form::Profile => ProfileForm::Profile,
            Form::Fdata => ProfileForm::Fdata,
            Form::Order => ProfileForm::Order,
        }
    }
}

/// Forms of profiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Form {
    /// whet's own.
    Profile,
    /// The text profile of llvm-bolt.
    Fdata,
    /// The order of symbols for a linker.
    Order,
}

/// How to optimize.
#[derive(Debug, Args)]
pub struct How {
    /// How long to take samples.
    #[arg(long, default_value_t = 6.0, value_parser = seconds)]
    seconds: f64,
    /// After that, count how often each edge of the hot functions is taken, exactly, for so many seconds a round (at most
    /// three rounds); 0 infers it from the samples. With --shuffle the default is 0. Where the CPU records taken branches
    /// (`whet doctor` tells) those are used, and nothing is counted.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    count: Option<f64>,
    /// Neither sample nor count: take what `whet profile export` wrote of the same build.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seconds", "count", "shuffle"])]
    profile: Option<PathBuf>,
    /// Stress mode: clone every function that can be cloned, in random order drawn from this seed, without a profile.
    /// Of a program with more than 16 MiB of code the seed also draws which functions; the answer says how many it left out.
    #[arg(long, value_name = "SEED")]
    shuffle: Option<u64>,
    /// Only these functions (names, or addresses inside them) and, where edges are counted, what they call often.
    #[arg(long, value_name = "FUNC", num_args = 1..)]
    only: Vec<String>,
    /// Leave out some of what makes clones faster, to measure what it gains: blocks, split, functions (their orders), loops, in-place,
    /// side-exits, guards, stubs, calls, words (how calls get to clones), libraries, huge-pages.
    #[arg(long, value_name = "PASS", value_delimiter = ',')]
    without: Vec<Pass>,
    /// Only the first N functions that can be cloned, in a fixed order: for bisecting.
    #[arg(long, value_name = "N")]
    max_functions: Option<usize>,
    /// Put an earlier layout of the process in force again where that serves the load nearly as well as a new one would
    #[arg(long, conflicts_with_all = ["shuffle", "profile", "only", "max_functions"])]
    reuse: bool,
}

impl How {
    fn counting(&self) -> Option<Duration> {
        let default = if self.shuffle.is_some() { 0.0 } else { 1.0 };
        Some(Duration::from_secs_f64(self.count.unwrap_or(default))).filter(|d| !d.is_zero())
    }

    /// As the engine takes it.
    ///
    /// # Errors
    /// Those of reading the profile.
    pub fn options(&self) -> Result<OptimizeOptions, Error> {
        let profile = self.profile.as_deref().map(engine::read_profile).transpose()?;
        Ok(OptimizeOptions {
            sampling: Duration::from_secs_f64(self.seconds),
            interrupt: Interrupt::default(),
            counting: self.counting(),
            shuffle: self.shuffle,
            passes: Passes::without(&self.without),
            only: self.only.clone(),
            max_functions: self.max_functions,
            memory_cap: None,
            profile: profile.map(Arc::new),
            perf_map: true,
            prefer_earlier: self.reuse,
        })
    }
}

pub fn seconds(s: &str) -> Result<f64, String> {
    let v: f64 = s.parse().map_err(|_| format!("{s:?} is no number of seconds"))?;
    if (0.0..=3600.0).contains(&v) { Ok(v) } else { Err("seconds must lie between 0 and 3600".to_owned()) }
}

/// The single-dash spellings that documents of older tools use, turned into today's words.
pub fn with_old_spellings(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    let Some(first) = args.get_mut(1) else { return args };
    let Some(word) =
        ["start", "stop", "status", "undo", "redo", "help"].into_iter().find(|w| *first == *format!("-{w}"))
    else {
        return args;
    };
    *first = if word == "help" { "--help".into() } else { word.into() };
    // `-undo` without a process meant all processes.
    let names_some = |a: &OsString| *a == *"--all" || a.to_str().is_some_and(|a| a.parse::<i32>().is_ok());
    if matches!(word, "undo" | "redo") && !args.iter().skip(2).any(names_some) {
        args.push("--all".into());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn old_spellings() {
        let words = |a: &[&str]| {
            with_old_spellings(a.iter().map(OsString::from))
                .into_iter()
                .map(|s| s.into_string().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&["whet", "-status"]), ["whet", "status"]);
        assert_eq!(words(&["whet", "-start"]), ["whet", "start"]);
        assert_eq!(words(&["whet", "-stop"]), ["whet", "stop"]);
        assert_eq!(words(&["whet", "-undo"]), ["whet", "undo", "--all"]);
        assert_eq!(words(&["whet", "-undo", "7"]), ["whet", "undo", "7"]);
        assert_eq!(
            words(&["whet", "-redo", "--format", "json"]),
            ["whet", "redo", "--format", "json", "--all"]
        );
        assert_eq!(words(&["whet", "-undo", "--all"]), ["whet", "undo", "--all"]);
        assert_eq!(words(&["whet", "undo"]), ["whet", "undo"]);
        assert_eq!(words(&["whet"]), ["whet"]);
        assert_eq!(words(&["whet", "undo", "7"]), ["whet", "undo", "7"]);
        assert_eq!(words(&["whet", "-help"]), ["whet", "--help"]);
    }
}
