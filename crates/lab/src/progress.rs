//! Shows what the lab does and how long it will take: one changing line on a terminal, else a line per step.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The progress of a run.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    begin: Instant,
    steps: usize,
    /// Steps that are over. `skipped` counts those among them that an earlier run had finished.
    over: usize,
    skipped: usize,
    step: String,
    part: f64,
}

impl Progress {
    /// Shows the progress of a run of `steps` steps.
    pub fn new(steps: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { bar, begin: Instant::now(), steps, over: 0, skipped: 0, step: String::new(), part: 0.0 }
    }

    /// Writes a line for the user.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => {
                let _ = writeln!(std::io::stderr().lock(), "{text}");
            }
        }
    }

    /// Shows that a step begins.
    pub fn begin(&mut self, step: &str) {
        self.step = step.to_owned();
        self.part = 0.0;
        let line = format!("step {} of {}: {step}{}", self.over + 1, self.steps, self.left());
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None => self.say(&line),
        }
    }

    /// Shows what the step does now, on a terminal.
    pub fn doing(&self, what: &str) {
        if let Some(bar) = &self.bar {
            let (n, step) = (self.over + 1, &self.step);
            bar.set_message(format!("step {n} of {}: {step}: {what}{}", self.steps, self.left()));
        }
    }

    /// Shows that `done` of `of` pairs of windows are measured.
    pub fn part(&mut self, done: usize, of: usize) {
        #[expect(clippy::cast_precision_loss, reason = "pairs are few")]
        let part = done as f64 / of.max(1) as f64;
        self.part = part;
        self.doing(&format!("pair {} of {of}", done + 1));
    }

    /// Counts a step as over. `skipped`: an earlier run had finished it.
    pub fn end(&mut self, skipped: bool) {
        self.over += 1;
        self.skipped += usize::from(skipped);
        self.part = 0.0;
    }

    #[expect(clippy::cast_precision_loss, reason = "steps are few")]
    fn left(&self) -> String {
        let done = (self.over - self.skipped) as f64 + self.part;
        if done < 0.2 {
            return String::new();
        }
        let each = self.begin.elapsed().as_secs_f64() / done;
        let left = each * ((self.steps.saturating_sub(self.skipped)) as f64 - done).max(0.0);
        format!(", about {} left", time(left))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn time(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("{seconds:.0} s")
    } else if seconds < 5400.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}
