//! `whet perf`: names of clones for the profiler.

use crate::output::Output;
use engine::{Error, ExitCode, PerfReport, Pid};

pub fn run(pid: i32, jitdump: bool, out: &Output) -> Result<ExitCode, Error> {
    let report = engine::perf(Pid(pid), jitdump)?;
    out.answer(&report, human);
    Ok(ExitCode::Ok)
}

fn human(r: &PerfReport) -> String {
    let map = &r.perf_map;
    let mut s = match &map.left_out {
        None => format!("{}: {} names; `perf report` and `perf script` find it", map.file, map.symbols),
        Some(why) => format!("{} was not written: {why}", map.file),
    };
    if let Some(dump) = &r.jitdump {
        s.push_str(&format!(
            "\n{dump}: to annotate clones:\n  perf record -k mono -p {}\n  perf inject --jit -i perf.data -o perf.jit.data\n  perf annotate -i perf.jit.data",
            r.pid
        ));
    }
    s
}
