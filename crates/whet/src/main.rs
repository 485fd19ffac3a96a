//! The command line: words in, engine calls, one answer out.
//!
//! Standard output carries the answer alone (one JSON object with `--format json`), standard error the progress and
//! the errors; the exit code says how it went (`whet --help` lists them).
#![forbid(unsafe_code)]

mod anatomy;
mod cli;
mod file;
mod human;
mod interrupt;
mod output;
mod profile;
mod progress;
mod report;
mod run;
mod text;
mod watch;

use clap::Parser;
use cli::{Cli, Command};
use engine::Pid;
use engine::{Error, ExitCode};
use output::Output;
use std::process::ExitCode as Status;

fn main() -> Status {
    let cli = Cli::parse_from(cli::with_old_spellings(std::env::args_os()));
    let out = Output::new(cli.format);
    let code = match dispatch(&cli, &out) {
        Ok(code) => code,
        Err(e) => {
            out.error(&e);
            e.exit_code()
        }
    };
    Status::from(code as u8)
}

fn dispatch(cli: &Cli, out: &Output) -> Result<ExitCode, Error> {
    match &cli.command {
        Command::Optimize { pid, how } => {
            let progress = progress::Bar::new(out);
            let options = how.options()?;
            interrupt::listen(&options.interrupt);
            let report = engine::optimize(Pid(*pid), &options, &mut |p| progress.show(&p))?;
            progress.done();
            out.answer(&report, human::optimize);
            Ok(ExitCode::Ok)
        }
        Command::Undo { pid, all } => each(*pid, *all, out, engine::undo),
        Command::Redo { pid, all } => each(*pid, *all, out, engine::redo),
        Command::Status { pid, watch } => watch::run(*pid, *watch, out),
        Command::Explain { pid, function } => {
            let report = engine::explain(Pid(*pid), function.as_deref())?;
            out.answer(&report, human::explain);
            Ok(ExitCode::Ok)
        }
        Command::Report { pid, output, measure } => report::run(*pid, output, measure.as_deref(), out),
        Command::Verify { pid } => {
            let report = engine::verify(Pid(*pid))?;
            out.answer(&report, human::verify);
            Ok(if report.identical { ExitCode::Ok } else { ExitCode::VerifyFailed })
        }
        Command::Profile { what } => profile::run(what, out),
        Command::Doctor => {
            let report = engine::doctor();
            out.answer(&report, human::doctor);
            Ok(ExitCode::Ok)
        }
        Command::Run { how, delay, report, command } => {
            run::run(command, *delay, report.as_deref(), &how.options()?, out)
        }
    }
}

/// One target, or every one that carries a journal.
fn each(
    pid: Option<i32>,
    all: bool,
    out: &Output,
    act: fn(Pid) -> Result<engine::ToggleAnswer, Error>,
) -> Result<ExitCode, Error> {
    if let (Some(pid), false) = (pid, all) {
        let answer = act(Pid(pid))?;
        out.answer(&answer, human::toggle);
        return Ok(ExitCode::Ok);
    }
    let mut answers = Vec::new();
    let mut worst = ExitCode::Ok;
    for target in engine::status(None)?.targets {
        match act(Pid(target.pid)) {
            Ok(answer) => answers.push(answer),
            Err(e) => {
                out.warn(&format!("{}: {e}", target.pid));
                worst = e.exit_code();
            }
        }
    }
    out.answer(&output::Targets { targets: &answers }, |t| {
        t.targets.iter().map(human::toggle).collect::<Vec<_>>().join("\n")
    });
    Ok(worst)
}
