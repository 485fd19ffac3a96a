//! `whet measure`: compares a process with and without its clones.

use crate::interrupt;
use crate::output::{Failure, Output};
use crate::progress;
use ::measure::{
    Command, Comparison, Error, Estimate, EventSource, Interrupt, Method, MySql, MySqlOptions, Options,
    Report, SystemCalls, Verdict, Work, WorkError,
};
use clap::{Args, builder::RangedU64ValueParser};
use engine::{ExitCode, FetchEvents, FetchReport, Pid, TargetState};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

pub const EXAMPLES: &str = "\
Examples:
  whet measure 1234                       counts system calls; for any program
  whet measure 1234 --mysql               counts statements, at the server's own socket
  whet measure 1234 --mysql-host db1 --mysql-user watcher --mysql-option-file ~/.my.cnf
  whet measure 1234 --command \"psql -AtXc 'SELECT sum(xact_commit+xact_rollback) FROM pg_stat_database'\" --window 5
                                          PostgreSQL with one busy connection: this counter covers all its processes and lags by a second
  whet measure --family 1234              the busiest process of a family, such as PostgreSQL
  whet measure 1234 --between 1 2         generation 2 against generation 1, instead of clones against originals
  whet measure 1234 --mysql --classic     one minute with clones, one minute without

The process must be optimized and under load. Its clones are undone and redone many times; each time it is stopped for some
milliseconds. At the end its state is as before, also after Ctrl-C or kill -9. `whet undo` and `whet redo` end the comparison.
If the host has no performance counters, the answer has events of a modelled CPU instead.
The exit code is 7 if the figures show nothing, as for an idle process.";

/// Total length of all windows if rounds are not given and ten pairs fit. Seconds.
const BUDGET: f64 = 75.0;

/// How to measure.
#[derive(Debug, Args)]
pub struct How {
    /// The number of pairs of windows. Default: as many as take less than two minutes, but at least ten.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(5..=100_000))]
    rounds: Option<u32>,
    /// The length of a window. Default: 0.2 seconds; 1 second with --command and --classic.
    #[arg(long, value_name = "SECONDS", value_parser = length)]
    window: Option<f64>,
    /// Compare one long window with clones and one without, as older tools do. Default length: 60 seconds.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "60",
          value_parser = length, conflicts_with = "rounds")]
    classic: Option<f64>,
    /// Compare two generations of clones, by their numbers, instead of clones and originals. Afterwards the newest is in
    /// force, or none if the process was undone.
    #[arg(long, value_names = ["A", "B"], num_args = 2, conflicts_with = "classic")]
    between: Option<Vec<u32>>,
    /// Count the statements that this MySQL or MariaDB server executes, as it reports them at its own socket.
    #[arg(long)]
    mysql: bool,
    /// Same as --mysql, at this Unix socket.
    #[arg(long, value_name = "PATH")]
    mysql_socket: Option<PathBuf>,
    /// Same as --mysql, at this host.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "mysql_socket")]
    mysql_host: Option<String>,
    /// The account; it needs no privileges. Default: the user in the option file, or your own name.
    #[arg(long, value_name = "NAME")]
    mysql_user: Option<String>,
    /// The file with its password: `password=` under `[client]`, as for MySQL's programs. Default: ~/.my.cnf, then MYSQL_PWD.
    #[arg(long, value_name = "FILE")]
    mysql_option_file: Option<PathBuf>,
    /// Count by this shell command: it prints a number that grows with the work.
    #[arg(long, value_name = "LINE",
          conflicts_with_all = ["mysql", "mysql_socket", "mysql_host", "mysql_user", "mysql_option_file"])]
    command: Option<String>,
    /// The seed of the windows' order and of the intervals, to repeat an earlier comparison.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// List all windows in the JSON answer.
    #[arg(long)]
    windows: bool,
}

impl How {
    fn work(&self, pid: Pid) -> Result<Box<dyn Work>, WorkError> {
        if let Some(line) = &self.command {
            return Ok(Box::new(Command::new(line)));
        }
        let options = MySqlOptions {
            socket: self.mysql_socket.clone(),
            host: self.mysql_host.clone(),
            user: self.mysql_user.clone(),
            option_file: self.mysql_option_file.clone(),
        };
        let is_mysql = self.mysql
            || options.socket.is_some()
            || options.host.is_some()
            || options.user.is_some()
            || options.option_file.is_some();
        if is_mysql {
            Ok(Box::new(MySql::open(pid, &options)?))
        } else {
            Ok(Box::new(SystemCalls::open(pid)?))
        }
    }

    fn options(&self) -> Options {
        let default = if self.command.is_some() || self.classic.is_some() { 1.0 } else { 0.2 };
        let window = self.window.unwrap_or(default);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 10 and 150")]
        let fitting = (BUDGET / (2.0 * window)).clamp(10.0, 150.0) as u32;
        Options {
            rounds: self.rounds.unwrap_or(fitting),
            window: Duration::from_secs_f64(window),
            between: self.between.as_deref().and_then(|between| between.try_into().ok()),
            seed: self.seed,
            interrupt: Interrupt::default(),
            ..Options::default()
        }
    }
}

/// Runs the comparison and writes its report.
pub fn run(pid: i32, how: &How, out: &Output) -> Result<ExitCode, Error> {
    let pid = Pid(pid);
    ::measure::check(pid)?;
    let options = how.options();
    let mut work =
        how.work(pid).map_err(|source| Error::Work { what: "the work done".to_owned(), source })?;
    interrupt::listen(&options.interrupt);
    let bar = progress::Bar::new(out);
    let mut show = |p| bar.show(&p);
    let mut report = match how.classic {
        Some(half) => {
            ::measure::classic(pid, Duration::from_secs_f64(half), &options, &mut *work, &mut show)?
        }
        None => ::measure::paired(pid, &options, &mut *work, &mut show)?,
    };
    bar.done();
    if !how.windows {
        report.windows.clear();
    }
    if report.between.is_none() && report.qps.is_some() && report.events.source == EventSource::None {
        match engine::fetch_report(pid) {
            Ok(modelled) => report.modelled = modelled,
            Err(e) => out.warn(&format!("no modelled events: {}", engine::with_causes(&e))),
        }
    }
    out.answer(&report, human);
    Ok(if report.can_tell { ExitCode::Ok } else { ExitCode::Nothing })
}

/// Runs the process that restores a target after the death of the measuring process.
pub fn guard(pid: i32, generation: u32, found: &str, out: &Output) -> Result<ExitCode, Error> {
    // The guard ends when its work is done, not by a signal.
    interrupt::ignore();
    let states = [TargetState::Optimized, TargetState::Undone];
    let found = states.into_iter().find(|s| s.word() == found);
    let Some(found) = found else { return Ok(ExitCode::Usage) };
    if ::measure::guard(Pid(pid), generation, found)? {
        out.warn(&format!(
            "the measuring process died; process {pid} is {} again, as it was found",
            found.word()
        ));
    }
    Ok(ExitCode::Ok)
}

impl Failure for Error {
    fn exit_code(&self) -> ExitCode {
        Error::exit_code(self)
    }

    fn code(&self) -> &'static str {
        Error::code(self)
    }

    fn next_step(&self) -> String {
        Error::next_step(self)
    }
}

fn length(s: &str) -> Result<f64, String> {
    let v: f64 = s.parse().map_err(|_| format!("{s:?} is no number of seconds"))?;
    if (0.01..=3600.0).contains(&v) {
        Ok(v)
    } else {
        Err("seconds must lie between 0.01 and 3600".to_owned())
    }
}

fn human(r: &Report) -> String {
    let mut s = format!("{} (pid {}), work: {}", r.exe, r.pid, r.work.what);
    if let (Some(qps), Some(cpu), Some(factor)) = (r.qps, r.cpu_usage, r.combined_improvement_factor) {
        let [first, second] = r.between.map_or_else(
            || ["without".to_owned(), "with".to_owned()],
            |generations| generations.map(|g| format!("generation {g}")),
        );
        let _ = write!(s, "\n{:<12}{first:>32}{second:>32}{:>30}", "", "change");
        s.push_str(&row("QPS", &qps, |v| format!("{v:.1}")));
        s.push_str(&row("CPU usage", &cpu, |v| format!("{:.1}%", v * 100.0)));
        let _ = write!(s, "\nCOMBINED IMPROVEMENT FACTOR  {}", times(&factor));
        if let Some(user) = r.user_cpu_factor {
            let _ = write!(s, "\n  in user mode alone         {}", times(&user));
        }
        s.push_str(&events(r));
    }
    let _ = write!(
        s,
        "\n{}",
        match (r.verdict, r.between) {
            (Verdict::Better, None) => "more work for the same CPU time",
            (Verdict::Better, Some(_)) => "the second generation does more work for the same CPU time",
            (Verdict::Worse, None) => "LESS work for the same CPU time: `whet undo` removes the clones",
            (Verdict::Worse, Some(_)) => "the second generation does less work for the same CPU time",
            (Verdict::NoDifference, _) => "no difference of 1% or more to be seen",
            (Verdict::CannotTell, _) => "cannot tell",
        }
    );
    if r.pairs > 0 {
        let what = match r.method {
            Method::Paired => "pairs of windows in random order",
            Method::Classic => "slices of each side, one side after the other",
        };
        let _ = write!(
            s,
            " (95% intervals; {} {what}, {} s each, seed {}; {} switches, each stopped it for {:.1} ms, at most {:.1}; {:.0} s in all)",
            r.pairs, r.window_seconds, r.seed, r.switches, r.stop_ms.median, r.stop_ms.max, r.seconds
        );
    }
    for w in &r.warnings {
        let _ = write!(s, "\nwarning: {}\n   hint: {}", w.text, w.hint);
    }
    s
}

fn events(r: &Report) -> String {
    let e = &r.events;
    if e.source == EventSource::None {
        let none = "\nevents in the CPU: not available, because this host has no performance counters";
        return none.to_owned() + &r.modelled.as_ref().map(modelled).unwrap_or_default();
    }
    let rows = [
        ("IPC", e.ipc),
        ("I-cache/1000", e.icache_misses),
        ("I-TLB/1000", e.itlb_misses),
        ("branch m./1000", e.branch_misses),
        ("stalled", e.frontend_stalls),
    ];
    rows.iter().filter_map(|(name, c)| Some(row(name, c.as_ref()?, |v| format!("{v:.3}")))).collect()
}

/// Formats the events of one path without and with clones, per 1000 instructions of the path without clones.
fn modelled(m: &FetchReport) -> String {
    let mut s = format!(
        "\nmodelled, {}: of 1000 instructions drawn from the counts of {} functions ({:.0}% of samples)",
        m.cpu,
        m.functions,
        m.coverage * 100.0
    );
    type Count = fn(&FetchEvents) -> u64;
    let rows: [(&str, Count); 7] = [
        ("I-cache misses", |e| e.icache_misses),
        ("I-TLB misses", |e| e.itlb_misses),
        ("page walks", |e| e.itlb_walks),
        ("target misses", |e| e.btb_misses.saturating_add(e.target_misses)),
        ("direction m.", |e| e.direction_misses),
        ("return misses", |e| e.return_misses),
        ("taken branches", |e| e.taken_branches),
    ];
    for (name, of) in rows {
        let per_thousand = |e| of(e) as f64 * 1e3 / m.path.max(1) as f64;
        let (without, with) = (per_thousand(&m.without), per_thousand(&m.with));
        let change = match without > 0.0 {
            true => format!("{:+.1}%", (with / without - 1.0) * 100.0),
            false => "-".to_owned(),
        };
        let _ = write!(s, "\n  {name:<16}{without:>26.3}{with:>32.3}{change:>30}");
    }
    s
}

fn row(name: &str, c: &Comparison, show: impl Fn(f64) -> String) -> String {
    let side = |e: &Estimate| format!("{} ({} to {})", show(e.value), show(e.low), show(e.high));
    let percent = |v: f64| format!("{:+.1}%", (v - 1.0) * 100.0);
    let change =
        format!("{} ({} to {})", percent(c.change.value), percent(c.change.low), percent(c.change.high));
    format!("\n{name:<12}{:>32}{:>32}{change:>30}", side(&c.without), side(&c.with))
}

fn times(e: &Estimate) -> String {
    format!("x{:.3}  ({:.3} to {:.3})", e.value, e.low, e.high)
}
