//! The command line: parses arguments, calls the engine, writes one answer.
//!
//! Standard output has the answer alone (one JSON object with `--format json`). Standard error has progress
//! and errors. The exit code gives the result (`whet --help` lists the codes).
#![forbid(unsafe_code)]

mod anatomy;
mod capture;
mod cli;
mod config;
mod daemon;
mod family;
mod file;
mod gdb;
mod generate;
mod huge_pages;
mod human;
mod interrupt;
mod measure;
mod output;
mod perf;
mod profile;
mod progress;
mod report;
mod run;
mod shares;
mod text;
mod watch;

use ::daemon::states::Wish;
use clap::Parser;
use cli::{Cli, Command, ConfigCommand};
use engine::{Debuginfod, Error, ExitCode, Pid};
use output::Output;
use std::process::ExitCode as Status;
use std::time::Duration;

fn main() -> Status {
    let cli = Cli::parse_from(cli::with_old_spellings(std::env::args_os()));
    let out = Output::new(cli.format);
    Status::from(out.finish(dispatch(&cli, &out)) as u8)
}

fn dispatch(cli: &Cli, out: &Output) -> Result<ExitCode, Error> {
    let changes_a_target = matches!(
        cli.command,
        Command::Optimize { .. } | Command::Redo { .. } | Command::HugePages { dry_run: false, .. }
    );
    if changes_a_target && let Some(off) = daemon::switched_off(out) {
        return Ok(out.finish(Err(off)));
    }
    match &cli.command {
        Command::Start { foreground, detached, config } => {
            Ok(out.finish(daemon::start(*foreground, *detached, config.as_deref(), out)))
        }
        Command::Stop { config } => Ok(out.finish(daemon::stop(config.as_deref(), out))),
        Command::DaemonWork { order } => Ok(daemon::work(order)),
        Command::Optimize { pid, verbose, family: true, how } => family::optimize(*pid, *verbose, how, out),
        Command::Optimize { pid, verbose, family: false, how } => {
            let progress = progress::Bar::new(out);
            let options = how.options()?;
            interrupt::listen(&options.interrupt);
            let report = engine::optimize(Pid(*pid), &options, &mut |p| progress.show(&p))?;
            progress.done();
            out.answer(&report, |r| human::optimize(r, *verbose));
            Ok(ExitCode::Ok)
        }
        Command::Undo { pid: Some(pid), family: true, .. } => family::undo(*pid, out),
        Command::Redo { pid: Some(pid), family: true, .. } => family::redo(*pid, out),
        Command::Undo { pid, all, .. } => each(*pid, *all, out, Wish::Undo),
        Command::Redo { pid, all, .. } => each(*pid, *all, out, Wish::Redo),
        Command::Status { pid: Some(pid), family: true, .. } => family::status(*pid, out),
        Command::Status { pid, watch, .. } => watch::run(*pid, *watch, out),
        Command::Explain { pid, function, family } => {
            let pid = if *family { engine::family_parent(Pid(*pid))? } else { Pid(*pid) };
            let mut debuginfod = Debuginfod::from_environment();
            let report = engine::explain(pid, function.as_deref(), &mut debuginfod)?;
            debuginfod.warning().iter().for_each(|w| out.warn(w));
            out.answer(&report, human::explain);
            Ok(ExitCode::Ok)
        }
        Command::Report { pid, output, measure, seconds, family } => {
            let pid = if *family { engine::family_parent(Pid(*pid))?.0 } else { *pid };
            report::run(pid, output, measure.as_deref(), Duration::from_secs_f64(*seconds), out)
        }
        Command::Verify { pid, family: true } => family::verify(*pid, out),
        Command::Verify { pid, .. } => {
            let report = engine::verify(Pid(*pid))?;
            out.answer(&report, human::verify);
            Ok(if report.identical { ExitCode::Ok } else { ExitCode::VerifyFailed })
        }
        Command::Gdb(wanted) => gdb::run(wanted, out),
        Command::Perf { pid, jitdump } => perf::run(*pid, *jitdump, out),
        Command::Measure { pid, family, how } => {
            let pid = if *family { engine::busiest_member(Pid(*pid))?.0 } else { *pid };
            Ok(out.finish(measure::run(pid, how, out)))
        }
        Command::Guard { pid, generation, found } => {
            Ok(out.finish(measure::guard(*pid, *generation, found, out)))
        }
        Command::Capture(args) => capture::capture(args, out),
        Command::Replay(args) => capture::replay(args, out),
        Command::HugePages { pid, dry_run } => huge_pages::run(*pid, *dry_run, out),
        Command::Profile { what } => profile::run(what, out),
        Command::Config { what: ConfigCommand::Check { file } } => {
            Ok(out.finish(config::check(file.as_deref(), out)))
        }
        Command::Generate { folder } => generate::run(folder, out),
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

/// Undoes or redoes one target, or every target that has a journal.
fn each(pid: Option<i32>, all: bool, out: &Output, wish: Wish) -> Result<ExitCode, Error> {
    let informed = daemon::stand_back(pid.filter(|_| !all), wish, out);
    let act = |pid| {
        daemon::patiently(informed, || match wish {
            Wish::Undo => engine::undo(pid),
            Wish::Redo => engine::redo(pid),
        })
    };
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
