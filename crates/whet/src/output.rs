//! Writes answers, warnings and errors.

use crate::cli::Format;
use engine::{Error, ExitCode};
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// Standard output with its format, and standard error.
#[derive(Debug)]
pub struct Output {
    format: Format,
}

/// An answer about several targets.
#[derive(Debug, Serialize)]
pub struct Targets<'a, T> {
    /// One answer for each target.
    pub targets: &'a [T],
}

/// What every error of a command provides.
pub trait Failure: std::error::Error {
    /// Returns the exit code.
    fn exit_code(&self) -> ExitCode;
    /// Returns a stable name of the cause.
    fn code(&self) -> &'static str;
    /// Returns what the operator can do next.
    fn next_step(&self) -> String;
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

impl Output {
    pub fn new(format: Format) -> Self {
        Self { format }
    }

    /// Returns whether progress may be drawn.
    pub fn is_interactive(&self) -> bool {
        std::io::stderr().is_terminal()
    }

    /// Returns whether answers go to a terminal, in the form for people.
    pub fn is_screen(&self) -> bool {
        self.format == Format::Human && std::io::stdout().is_terminal()
    }

    /// Writes the answer in the wanted format. Returns false if writing failed: a reader that went away is no
    /// error.
    pub fn answer<T: Serialize>(&self, value: &T, human: impl FnOnce(&T) -> String) -> bool {
        let text = match self.format {
            Format::Json => serde_json::to_string(value).unwrap_or_default(),
            Format::Human => human(value),
        };
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{text}").and_then(|()| stdout.flush()).is_ok()
    }

    /// Writes a warning for the user.
    pub fn warn(&self, text: &str) {
        let _ = writeln!(std::io::stderr().lock(), "whet: warning: {text}");
    }

    /// Returns the exit code. Writes the error if there is one.
    pub fn finish<E: Failure>(&self, outcome: Result<ExitCode, E>) -> ExitCode {
        outcome.unwrap_or_else(|e| {
            self.error(&e);
            e.exit_code()
        })
    }

    /// Writes an error with its causes and the next step.
    fn error(&self, e: &dyn Failure) {
        let message = engine::with_causes(e);
        let next = e.next_step();
        if self.format == Format::Json {
            let object = serde_json::json!({
                "error": { "code": e.code(), "message": message, "next": next, "exit_code": e.exit_code() as u8 }
            });
            let mut stdout = std::io::stdout().lock();
            let _ = writeln!(stdout, "{object}").and_then(|()| stdout.flush());
        }
        let _ = writeln!(std::io::stderr().lock(), "whet: {message}\nwhet: hint: {next}");
    }
}
