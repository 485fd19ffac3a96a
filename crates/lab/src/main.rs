//! whet-lab: benchmarks of servers and interpreters, with and without whet.
//!
//! The lab uses whet through its command line alone. Standard error carries progress and errors. Standard
//! output carries the result: the path of a report, or a comparison. `whet-lab --help` lists the exit codes.
#![forbid(unsafe_code)]

mod cli;
mod clock;
mod command;
mod conditions;
mod control;
mod db;
mod driver;
mod error;
mod events;
mod folder;
mod gauge;
mod guard;
mod host;
mod interrupt;
mod lab;
mod load;
mod machine;
mod options;
mod plan;
mod power;
mod procfs;
mod program;
mod progress;
mod record;
mod report;
mod scenario;
mod server;
mod service;
mod shell;
mod start;
mod stats;
mod steady;
mod sysbench;
mod target;
mod timed;
mod tpcc;
mod tpch;
mod transactions;
mod usage;
mod whet;
mod windows;

use clap::Parser;
use cli::{Cli, Command, Format};
use error::Error;
use folder::Run;
use interrupt::Interrupt;
use start::Outcome;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Scenario(scenario) => end(start::begin(&scenario, &Interrupt::listen())),
        Command::Resume { run, dsn } => end(start::resume(&run, &dsn, &Interrupt::listen())),
        Command::Report { run, output, format } => answer(Run::read(&run).and_then(|run| match format {
            Format::Json => report::summary(&run),
            Format::Human => report::write(&run, output.as_deref()).map(|p| p.display().to_string()),
        })),
        Command::Compare { runs, output } => answer(report::compare(&runs, output.as_deref())),
        Command::Index { runs, output } => answer(report::index(&runs, &output)),
        Command::Power { run } => answer(Run::read(&run).map(|run| report::power(&run))),
        Command::Guard { parent, cpus, command } => {
            let e = guard::become_child(parent, &cpus, &command);
            let program = command.first().map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
            say(&format!("cannot run {program}: {e}"));
            ExitCode::from(127)
        }
    }
}

/// Ends a run: prints the path of its report, or its error and how to resume it. Returns the exit code.
fn end(outcome: Outcome) -> ExitCode {
    let folder = outcome.folder.as_ref().map(|f| f.display().to_string());
    match outcome.result {
        Ok(()) => {
            let report = folder.map(|f| format!("{f}/report.html")).unwrap_or_default();
            print(&report);
            ExitCode::SUCCESS
        }
        Err(e) => {
            complain(&e);
            if let Some(folder) = folder {
                say(&format!("whet-lab: what was measured is kept; `whet-lab resume {folder}` goes on"));
            }
            ExitCode::from(e.exit_code())
        }
    }
}

fn answer(result: Result<String, Error>) -> ExitCode {
    match result {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(e) => {
            complain(&e);
            ExitCode::from(e.exit_code())
        }
    }
}

fn complain(e: &Error) {
    say(&format!("whet-lab: {e}\nwhet-lab: hint: {}", e.next_step()));
}

/// Prints a result to standard output. An error is ignored, since the reader may have closed the pipe.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
