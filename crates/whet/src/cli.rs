//! The command line: commands, options and their help.

use clap::{Args, Parser, Subcommand, ValueEnum};
use engine::{CodeCache, Error, Interrupt, OptimizeOptions, Pass, Passes, ProfileForm};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  whet optimize $(pidof mariadbd)     profile it under its present load and rebuild its hot code
  whet start                          the daemon: keeps CPU-hungry servers optimized
  whet status                         what is optimized on this host
  whet optimize --family $(head -1 postmaster.pid)
                                      a server that forks its processes, such as PostgreSQL
  whet undo $(pidof mariadbd)         remove all redirects (milliseconds)
  whet verify $(pidof mariadbd)       check that only the journal's changes are in its code
  whet measure $(pidof mariadbd)      what it gains under its present load
  whet run -- mysqld --defaults-file=my.cnf
                                      start a command and optimize it

Exit codes:
  0 success   1 fault in whet   2 usage   3 no such process   4 not permitted   5 refused (with the reason)
  6 busy, try again   7 nothing to do   8 verification failed   9 undo incomplete   10 target ended meanwhile
  11 interrupted: the target is as it was before   12 no daemon runs";

/// Optimize programs while they run: rebuild the hot machine code of a live process with a better layout.
#[derive(Debug, Parser)]
#[command(version, about, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Cli {
    /// The form of the answer on standard output.
    #[arg(long, global = true, value_enum, default_value_t = Format::Human)]
    pub format: Format,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The form of answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// For people; may change in any release.
    Human,
    /// One JSON object; stable.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Profile and optimize a process now.
    #[command(
        after_help = "Examples:\n  whet optimize 1234\n  whet optimize 1234 --seconds 20\n  whet optimize --family 1234     the process with its children, such as PostgreSQL\n  whet optimize 1234 --profile server.profile     warm start: without sampling and counting\n  whet optimize 1234 --shuffle 7     stress mode: clone everything, in random order"
    )]
    Optimize {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        /// Show how long each phase took; `--format json` always does.
        #[arg(short, long)]
        verbose: bool,
        /// The whole family of the process: its parent, and all children of the same program and control group.
        #[arg(long)]
        family: bool,
        #[command(flatten)]
        how: How,
    },
    /// Remove all redirects: the process runs its original code.
    #[command(after_help = "Examples:\n  whet undo 1234\n  whet undo --family 1234\n  whet undo --all")]
    Undo {
        /// The process.
        #[arg(required_unless_present = "all", allow_negative_numbers = true)]
        pid: Option<i32>,
        /// Every process that holds a journal of whet.
        #[arg(long, conflicts_with = "pid")]
        all: bool,
        /// The whole family of the process: its parent, and all children of the same program and control group.
        #[arg(long, conflicts_with = "all")]
        family: bool,
    },
    /// Put back the redirects of the newest generation.
    #[command(after_help = "Examples:\n  whet redo 1234\n  whet redo --family 1234\n  whet redo --all")]
    Redo {
        /// The process.
        #[arg(required_unless_present = "all", allow_negative_numbers = true)]
        pid: Option<i32>,
        /// Every process that holds a journal of whet.
        #[arg(long, conflicts_with = "pid")]
        all: bool,
        /// The whole family of the process: its parent, and all children of the same program and control group.
        #[arg(long, conflicts_with = "all")]
        family: bool,
    },
    /// Show what is optimized on this host, by the journals in the processes.
    #[command(
        after_help = "Examples:\n  whet status\n  whet status --watch\n  whet status --family 1234\n  whet status --format json"
    )]
    Status {
        /// Only this process.
        #[arg(allow_negative_numbers = true)]
        pid: Option<i32>,
        /// Repeat every second: a live view on a terminal, otherwise lines or JSON objects.
        #[arg(long)]
        watch: bool,
        /// The whole family of the process: its parent, and all children of the same program and control group.
        #[arg(long, requires = "pid", conflicts_with = "watch")]
        family: bool,
    },
    /// Show what was rebuilt in a process and why the rest was left alone; or one function's graph with counts, original and
    /// clone side by side.
    #[command(
        after_help = "Marks between the columns: + only in the clone, = a further copy (unrolled loop), - left out of the clone, * inlined.\n\nExamples:\n  whet explain 1234\n  whet explain 1234 row_search_mvcc\n  whet explain 1234 'ha_innobase::index_read'\n  whet explain 1234 0x55d0c1a2b3c0"
    )]
    Explain {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        /// One function: its name, mangled or not, a unique part of the name, or an address in it or its clone.
        function: Option<String>,
        /// The whole family of the process: its parent, and all children of the same program and control group.
        #[arg(long)]
        family: bool,
    },
    /// Write an HTML page about one process: flame graphs and heat maps before and after, hot functions, refusals.
    #[command(
        after_help = "The page is complete: it needs no script, no other file and no network.\nThe flame graph before shows the samples of the profile, the one of now shows new samples.\nSamples have no stacks: callers are estimated from counts of calls.\nIf DEBUGINFOD_URLS is set, functions without a symbol get names from debuginfod.\n\nExamples:\n  whet report 1234 -o server.html\n  whet measure 1234 --format json >gain.json; whet report 1234 --measure gain.json -o server.html"
    )]
    Report {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        /// The file. It is replaced in one step; a link of that name is not followed.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Show the gain in this file, which `whet measure --format json` wrote.
        #[arg(long, value_name = "FILE")]
        measure: Option<PathBuf>,
        /// The parent of the process's family, which holds the profile of all of them.
        #[arg(long)]
        family: bool,
        /// How long to sample the process for its present flame graph; 0 leaves it out. The process is not stopped.
        #[arg(long, default_value_t = 2.0, value_parser = seconds)]
        seconds: f64,
    },
    /// Compare the process's code with its files, and check that it differs only where the journal says so.
    #[command(
        after_help = "Examples:\n  whet verify 1234\n  whet verify 1234 --format json\n  whet verify --family 1234"
    )]
    Verify {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        /// The whole family of the process: its parent, and all children of the same program and control group.
        #[arg(long)]
        family: bool,
    },
    /// Write a symbol file for gdb, with names and unwind tables of clones, and print the gdb command that uses it.
    #[command(
        after_help = "Examples:\n  whet gdb 1234\n  whet gdb 1234 -o server.debug\n  whet gdb --core core.1234\n  whet gdb --core core.1234 /usr/sbin/mariadbd"
    )]
    Gdb(Gdb),
    /// Write the names of clones for perf (optimize and redo do this too) and, with --jitdump, their code.
    #[command(
        after_help = "Examples:\n  whet perf 1234\n  whet perf 1234 --jitdump     then perf record -k mono, perf inject --jit"
    )]
    Perf {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        /// Also write the code of clones to /tmp/jit-PID.dump, for `perf inject --jit` and `perf annotate`. The process maps
        /// one page of that file.
        #[arg(long)]
        jitdump: bool,
    },
    /// Write and read profiles: for a warm start after a restart, for other hosts, for offline tools.
    #[command(
        after_help = "Examples:\n  whet profile export 1234 -o server.profile\n  whet optimize 5678 --profile server.profile"
    )]
    Profile {
        /// The command.
        #[command(subcommand)]
        what: ProfileCommand,
    },
    /// Write all that a rebuild reads of a process to a file: for bug reports, and to repeat one rebuild.
    #[command(
        after_help = "The process is not stopped and not changed. Its profile is that of its clones; a process without clones is sampled.\nThe file holds code, read-only tables, names and counts. Of memory that the process may write, it holds addresses of code and tables alone.\n\nExamples:\n  whet capture 1234 -o server.capture\n  whet replay server.capture"
    )]
    Capture(crate::capture::CaptureArgs),
    /// Rebuild what a capture holds, without the process, and show the layout of each clone.
    #[command(
        after_help = "The same capture gives the same answer.\n\nExamples:\n  whet replay server.capture\n  whet replay server.capture --without loops\n  whet replay server.capture --shuffle 7"
    )]
    Replay(crate::capture::ReplayArgs),
    /// Measure the gain: work and CPU time with and without clones, in turns, under the present load.
    #[command(after_help = crate::measure::EXAMPLES)]
    Measure {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        /// The busiest process of the family: its clones are those of all processes. Each process has its own
        /// work and CPU time, so --mysql and --command are of no use here.
        #[arg(long, conflicts_with_all = [
            "mysql", "mysql_socket", "mysql_host", "mysql_user", "mysql_option_file", "command",
        ])]
        family: bool,
        #[command(flatten)]
        how: crate::measure::How,
    },
    /// Move shared memory into huge pages, such as PostgreSQL's shared buffers.
    #[command(
        after_help = "All processes that share the memory are served, and none is stopped. Mappings of 64 MiB and more are moved,\nand of these the 2 MiB of which at least seven eighths are in use. It takes root and Linux 6.6, and the program must\nhave been started when /sys/kernel/mm/transparent_hugepage/shmem_enabled was advise.\nThe pages stay huge until the memory is freed: no command takes that back. Ctrl-C keeps what was moved.\n\nExamples:\n  whet huge-pages --dry-run $(head -1 postmaster.pid)\n  whet huge-pages $(head -1 postmaster.pid)"
    )]
    HugePages {
        /// The process, or any process that shares its memory.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        /// Only show what can be moved.
        #[arg(long)]
        dry_run: bool,
    },
    /// Restores a process if `measure` is killed; whet starts this itself.
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
    /// Show what this host offers, and how to provide what is missing.
    #[command(after_help = "Examples:\n  whet doctor\n  whet doctor --format json")]
    Doctor,
    /// Start the daemon: it keeps the CPU-bound processes on its list optimized.
    #[command(
        after_help = "Examples:\n  whet start\n  whet start --foreground                    what a service manager runs\n  whet start --config /etc/other.toml"
    )]
    Start {
        /// Stay in the foreground and log to standard error.
        #[arg(long)]
        foreground: bool,
        /// Leave the session and log to the journal or a file.
        #[arg(long, hide = true)]
        detached: bool,
        /// The configuration file.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// End the daemon; optimized processes stay optimized.
    #[command(after_help = "Examples:\n  whet stop\n  whet undo --all     remove all redirects as well")]
    Stop {
        /// The configuration file, which names the daemon's socket.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Check the daemon's configuration.
    Config {
        /// What to do.
        #[command(subcommand)]
        what: ConfigCommand,
    },
    /// Does one job of the daemon, which starts this itself.
    #[command(hide = true, name = daemon::WORKER_COMMAND)]
    DaemonWork {
        /// The job, as JSON.
        order: String,
    },
    /// Start a command and optimize it; exits with the command's exit code.
    #[command(
        after_help = "Examples:\n  whet run -- python3 app.py\n  whet run --delay 60 -- mysqld --defaults-file=my.cnf\n  whet run --shuffle 7 -- ./selftest"
    )]
    Run {
        #[command(flatten)]
        how: How,
        /// Seconds between the start and the profiling.
        #[arg(long, default_value_t = 0.2, value_parser = seconds)]
        delay: f64,
        /// The file for the answer of the optimization (JSON); standard output is the command's.
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
        /// The command and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

/// The process or core of a symbol file, and the file.
#[derive(Debug, Args)]
pub struct Gdb {
    /// The process.
    #[arg(required_unless_present = "core", allow_negative_numbers = true)]
    pub pid: Option<i32>,
    /// A core file instead of a process, and the program if it is not at the path in the core.
    #[arg(long, num_args = 1..=2, value_names = ["CORE", "EXE"], conflicts_with = "pid")]
    pub core: Vec<PathBuf>,
    /// The symbol file. Default: a file in a folder that only you can enter.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// The commands about the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration; exit code 2 if it is wrong.
    #[command(
        after_help = "Examples:\n  whet config check                  the configuration in force, with its drop-ins\n  whet config check new.toml         one file alone, a configuration or a drop-in"
    )]
    Check {
        /// One file alone. Default: the configuration in force, with its drop-ins.
        file: Option<PathBuf>,
    },
}

/// The commands about profiles.
#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Write the profile of a process's last optimization.
    #[command(
        after_help = "Examples:\n  whet profile export 1234 -o server.profile\n  whet profile export 1234 --as fdata -o server.fdata     for llvm-bolt --data\n  whet profile export 1234 --as order -o server.order     for lld --symbol-ordering-file\n  whet profile export 1234 --as pprof -o server.pb.gz     then pprof -http=: server.pb.gz\n  whet profile export 1234 --as collapsed | flamegraph.pl >server.svg\n\nWhat the values mean:\n  pprof has three types of values (-sample_index).\n  samples: user samples by block. They have no callers, because the samples have no stacks.\n  calls: the callee and the caller of each call instruction, with the number of calls.\n  executions: how often each block ran.\n  Calls and executions are exact for functions that were counted, and other functions have none.\n  If no function was counted, they are estimated for all.\n  collapsed: the number of samples in a function is exact. Its callers are estimated: the samples\n  are divided among the callers as the counted calls are, as if a call cost the same whoever\n  makes it. Recursion is left out.\n  If DEBUGINFOD_URLS is set, both forms have names from debuginfod for functions without a symbol."
    )]
    Export {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: i32,
        #[command(flatten)]
        to: To,
    },
    /// Add up the profiles of several runs and hosts.
    #[command(
        after_help = "Counts are summed, as for one long run.\n\nExamples:\n  whet profile import a.profile b.profile -o all.profile\n  whet profile import all.profile --as fdata -o server.fdata"
    )]
    Import {
        /// Profiles.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        to: To,
    },
    /// Show a profile: its modules and their hottest functions.
    #[command(
        after_help = "Examples:\n  whet profile show server.profile\n  whet profile show server.profile --top 100 --format json"
    )]
    Show {
        /// The profile.
        file: PathBuf,
        /// The number of functions shown for each module.
        #[arg(long, value_name = "N", default_value_t = 10)]
        top: usize,
    },
}

/// The file and the form of a profile.
#[derive(Debug, Args)]
pub struct To {
    /// The file. Default: standard output, except for pprof.
    #[arg(short, long, value_name = "FILE", required_if_eq("form", "pprof"))]
    pub output: Option<PathBuf>,
    /// The form.
    #[arg(long = "as", value_name = "FORM", value_enum, default_value_t = Form::Profile)]
    form: Form,
    /// The module of fdata and order, by file name or build-id. Default: the program.
    #[arg(long, value_name = "MODULE")]
    pub module: Option<String>,
}

impl To {
    /// Returns the form.
    pub fn form(&self) -> ProfileForm {
        match self.form {
            Form::Profile => ProfileForm::Profile,
            Form::Fdata => ProfileForm::Fdata,
            Form::Order => ProfileForm::Order,
            Form::Pprof => ProfileForm::Pprof,
            Form::Collapsed => ProfileForm::Collapsed,
        }
    }
}

/// Forms of profiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Form {
    /// whet's form, which `optimize --profile` reads.
    Profile,
    /// The text profile of llvm-bolt.
    Fdata,
    /// An order of symbols for a linker.
    Order,
    /// For `pprof`: user samples by block, calls by call instruction (callee and caller), executions of blocks.
    Pprof,
    /// Collapsed stacks for flame graphs: the samples of each function are exact, their callers are estimated from counts.
    Collapsed,
}

/// How to optimize.
#[derive(Debug, Args)]
pub struct How {
    /// How long to sample. Seconds.
    #[arg(long, default_value_t = 6.0, value_parser = seconds)]
    seconds: f64,
    /// How long each round of counting takes (at most three rounds, or four if earlier clones count again): clones with
    /// counters count exactly how often each edge of the hot functions is taken. 0 infers this from the samples. Default:
    /// 1; with --shuffle 0. If the CPU records taken branches (see `whet doctor`), these records are used and nothing is
    /// counted.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    count: Option<f64>,
    /// Use this file, which `whet profile export` wrote, instead of sampling and counting. It may be of another
    /// build of the program.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seconds", "count", "shuffle"])]
    profile: Option<PathBuf>,
    /// Stress mode: clone every function that can be cloned, in random order from this seed, without a profile. If a program
    /// has more than 16 MiB of code, the seed also chooses the functions; the answer says how many are left out.
    #[arg(long, value_name = "SEED")]
    shuffle: Option<u64>,
    /// Clone only these functions (names, or addresses in them) and, if edges are counted, functions that they call often.
    #[arg(long, value_name = "FUNC", num_args = 1..)]
    only: Vec<String>,
    /// Leave out passes, to measure what each gains: blocks, split, functions (orders), loops, inlining,
    /// side-exits, guards, stubs, calls, tables (how calls reach clones), libraries, huge-pages.
    #[arg(long, value_name = "PASS", value_delimiter = ',')]
    without: Vec<Pass>,
    /// The memory of clones. `file`: an ELF file in memory, in which profilers, debuggers and unwinders find names and
    /// frame tables; it needs CAP_SYS_ADMIN and Linux 5.12. `anonymous`: plain memory.
    #[arg(long, value_name = "MEMORY", value_enum, default_value_t = Memory::Anonymous)]
    code_cache: Memory,
    /// Clone only the first N functions, in a fixed order: for bisecting.
    #[arg(long, value_name = "N")]
    max_functions: Option<usize>,
    /// Use an earlier layout of the process again if it serves the load nearly as well as a new one.
    #[arg(long, conflicts_with_all = ["shuffle", "profile", "only", "max_functions"])]
    reuse: bool,
}

/// The memory of clones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Memory {
    /// Anonymous memory.
    Anonymous,
    /// An ELF file in memory.
    File,
}

impl How {
    fn counting(&self) -> Option<Duration> {
        let default = if self.shuffle.is_some() { 0.0 } else { 1.0 };
        Some(Duration::from_secs_f64(self.count.unwrap_or(default))).filter(|d| !d.is_zero())
    }

    /// Returns the options for the engine.
    ///
    /// # Errors
    /// Returns the errors of reading the profile.
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
            code_cache: match self.code_cache {
                Memory::Anonymous => CodeCache::Anonymous,
                Memory::File => CodeCache::File,
            },
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

/// Translates the single-dash commands of older tools, such as `-undo`.
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
