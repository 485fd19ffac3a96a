//! `whet gdb`: a symbol file for a debugger.

use crate::cli::Gdb;
use crate::output::Output;
use engine::{Error, ExitCode, GdbReport, Pid};

pub fn run(wanted: &Gdb, out: &Output) -> Result<ExitCode, Error> {
    let output = wanted.output.as_deref();
    let report = match wanted.core.split_first() {
        Some((core, exe)) => engine::gdb_core(core, exe.first().map(|e| e.as_path()), output)?,
        None => engine::gdb(Pid(wanted.pid.unwrap_or_default()), output)?,
    };
    out.answer(&report, human);
    Ok(ExitCode::Ok)
}

fn human(r: &GdbReport) -> String {
    let lost = match r.unknown_frames {
        0 => String::new(),
        n => format!(", {n} more that cannot be read"),
    };
    let first = match &r.before_breakpoints {
        Some(first) => {
            format!("\nbreakpoints stop in originals; before you set one in a rebuilt function: {first}")
        }
        None => String::new(),
    };
    format!(
        "{}: {} names, {} frame tables{lost}\n{}\nin a debugger that runs already: {}{first}",
        r.file, r.symbols, r.frames, r.command, r.add
    )
}
