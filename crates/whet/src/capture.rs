//! `whet capture` and `whet replay`.

use crate::interrupt;
use crate::output::Output;
use crate::progress::Bar;
use crate::text::{bytes, many};
use clap::Args;
use engine::{
    Again, CaptureOptions, CaptureReport, Error, ExitCode, FunctionLayout, Pass, Passes, Pid, ReplayReport,
};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Which process is captured, and where the file goes.
#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// The process.
    #[arg(allow_negative_numbers = true)]
    pid: i32,
    /// Write the capture to this file, in one step; a link in its place is not followed.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// How long to take samples if the process is not optimized.
    #[arg(long, default_value_t = 6.0, value_parser = crate::cli::seconds)]
    seconds: f64,
    /// Leave out pages of code without hot functions, and libraries without any: a smaller file, for which
    /// some decisions may differ.
    #[arg(long)]
    hot_code: bool,
}

/// What is rebuilt from a capture.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The capture.
    file: PathBuf,
    /// Clone every function that can be cloned, in random order drawn from this seed.
    #[arg(long, value_name = "SEED")]
    shuffle: Option<u64>,
    /// Leave out these passes, instead of those that the captured run left out.
    #[arg(long, value_name = "PASS", value_delimiter = ',')]
    without: Option<Vec<Pass>>,
}

pub fn capture(args: &CaptureArgs, out: &Output) -> Result<ExitCode, Error> {
    let bar = Bar::new(out);
    let how = CaptureOptions {
        sampling: Duration::from_secs_f64(args.seconds),
        hot_code: args.hot_code,
        ..CaptureOptions::default()
    };
    interrupt::listen(&how.interrupt);
    let report = engine::capture(Pid(args.pid), &args.output, &how, &mut |p| bar.show(&p))?;
    bar.done();
    out.answer(&report, captured);
    Ok(ExitCode::Ok)
}

pub fn replay(args: &ReplayArgs, out: &Output) -> Result<ExitCode, Error> {
    let again = Again {
        shuffle: args.shuffle,
        passes: args.without.as_deref().map(Passes::without),
        ..Again::default()
    };
    interrupt::listen(&again.interrupt);
    out.answer(&engine::replay(&args.file, &again)?, replayed);
    Ok(ExitCode::Ok)
}

fn captured(r: &CaptureReport) -> String {
    let of = match r.generation {
        Some(generation) => format!("the profile of generation {generation}"),
        None => "samples".to_owned(),
    };
    let what = match &r.fails {
        None => format!("a replay clones {}", many(r.functions, "function")),
        Some(why) => format!("a replay builds nothing: {why}"),
    };
    let (file, size) = (r.file.display(), bytes(r.bytes));
    format!("{} (pid {}): captured with {of}; {what}\n{file}: {size}", r.exe, r.pid)
}

fn replayed(r: &ReplayReport) -> String {
    let mut s = format!(
        "{}, captured by whet {}: {} of {} cloned",
        r.exe,
        r.captured_by,
        r.functions.cloned,
        many(r.functions.hot, "function")
    );
    if let Some(seed) = r.shuffle {
        let _ = write!(s, ", in random order (seed {seed})");
    }
    if !r.without.is_empty() {
        let _ = write!(s, ", without {}", r.without.join(", "));
    }
    for (reason, n) in &r.refusals {
        let _ = write!(s, "\nleft alone: {n:5} {reason}");
    }
    for c in &r.caches {
        let _ = write!(
            s,
            "\ncode cache: {} bytes of clones, {} bytes of tables, {}, crc {}",
            c.code_bytes,
            c.data_bytes,
            many(c.redirects, "redirect"),
            c.crc
        );
    }
    for layout in &r.layouts {
        let _ = write!(s, "\n{}", one_line(layout));
    }
    s
}

/// Returns numbers in their order, neighbours as a range: `0 3-5 1`.
fn list(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let run = |run: &[u32]| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.first().map_or_else(String::new, u32::to_string),
    };
    runs.map(run).collect::<Vec<_>>().join(" ")
}

/// Returns the line of one clone.
fn one_line(l: &FunctionLayout) -> String {
    let mut s = format!("{}: {} bytes, entries {}, hot {}", l.name, l.bytes, l.entries, list(&l.hot));
    if !l.warm.is_empty() {
        let _ = write!(s, ", warm {}", list(&l.warm));
    }
    for (n, what) in [(l.cold, "cold"), (l.inlined, "inlined"), (l.guards, "guards")] {
        if n > 0 {
            let _ = write!(s, ", {what} {n}");
        }
    }
    if !l.unrolled.is_empty() {
        let _ = write!(s, ", unrolled {:?}", l.unrolled);
    }
    s
}
