//! `huge-pages`: shared memory in huge pages.

use crate::output::Output;
use crate::text::{bytes, printable};
use crate::{interrupt, progress};
use engine::{Error, ExitCode, HugePagesReport, Interrupt, Pid, SharedMapping};
use std::fmt::Write;

pub fn run(pid: i32, dry_run: bool, out: &Output) -> Result<ExitCode, Error> {
    let progress = progress::Bar::new(out);
    let interrupt = Interrupt::default();
    interrupt::listen(&interrupt);
    let report = engine::huge_pages(Pid(pid), dry_run, &interrupt, &mut |p| progress.show(&p))?;
    progress.done();
    out.answer(&report, human);
    Ok(if report.interrupted { ExitCode::Interrupted } else { ExitCode::Ok })
}

fn human(r: &HugePagesReport) -> String {
    let mut s = format!("{} (pid {})", printable(&r.exe), r.pid);
    for m in &r.mappings {
        let _ = write!(s, "\n  {}", mapping(m, r.dry_run));
    }
    if r.interrupted {
        s += "\ninterrupted: what was moved stays in huge pages";
    } else if !r.dry_run && r.mappings.iter().any(|m| !m.through.is_empty()) {
        let _ = write!(s, "\n{:.1} s; they stay huge pages until the memory is freed", r.seconds);
    }
    s
}

fn mapping(m: &SharedMapping, dry_run: bool) -> String {
    let place = format!("{} of shared memory at {}", bytes(m.size), m.at);
    if m.reserved {
        return format!("{place}: in reserved huge pages");
    }
    let mut s = format!("{place}, {} in use", bytes(m.in_use));
    let _ = match dry_run {
        true => write!(s, ": {} can be in huge pages", bytes(m.dense)),
        false => write!(s, ": {} in huge pages", bytes(m.huge)),
    };
    if m.added > 0 {
        let _ = write!(s, " ({} more memory)", bytes(m.added));
    }
    if let Some(left) = &m.left {
        let _ = write!(s, "; {}", left.why);
    }
    s
}
