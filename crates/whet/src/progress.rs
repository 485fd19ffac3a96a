//! Progress on a terminal.

use crate::output::Output;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A spinner on standard error; nothing if standard error is not a terminal.
#[derive(Debug)]
pub struct Bar(Option<ProgressBar>);

impl Bar {
    pub fn new(out: &Output) -> Self {
        Self(out.is_interactive().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            // The bar panics if it cannot start its thread, as at a limit of processes.
            if std::thread::Builder::new().spawn(|| ()).is_ok() {
                bar.enable_steady_tick(Duration::from_millis(120));
            }
            bar
        }))
    }

    pub fn show(&self, p: &dyn std::fmt::Display) {
        if let Some(bar) = &self.0 {
            bar.set_message(p.to_string());
        }
    }

    pub fn done(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.done();
    }
}
