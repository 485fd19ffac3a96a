//! Where answers, warnings and errors go.

use crate::cli::Format;
use engine::{Error, ExitCode};
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// The two streams and the format of the first.
#[derive(Debug)]
pub struct Output {
    format: Format,
}

/// Why a command did not do what it was asked, where that is nothing of the engine's.
#[derive(Debug)]
pub struct Failure {
    /// A stable name of the cause, for JSON.
    pub code: String,
    /// The cause.
    pub message: String,
    /// What the operator can do.
    pub next: String,
    /// How the command ends.
    pub exit: ExitCode,
}

/// An answer about several targets.
#[derive(Debug, Serialize)]
pub struct Targets<'a, T> {
    /// One answer each.
    pub targets: &'a [T],
}

/// What every error of a command has to tell.
pub trait Failure: std::error::Error {
    /// How whet ends.
    fn exit_code(&self) -> ExitCode;
    /// A stable name of the cause.
    fn code(&self) -> &'static str;
    /// What the operator can do next.
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

    /// Whether progress may be drawn.
    pub fn is_interactive(&self) -> bool {
        std::io::stderr().is_terminal()
    }

    /// The answer, in the wanted format; whether anybody reads it. A reader that went away is no error.
    pub fn answer<T: Serialize>(&self, value: &T, human: impl FnOnce(&T) -> String) -> bool {
        let text = match self.format {
            Format::Json => serde_json::to_string(value).unwrap_or_default(),
            Format::Human => human(value),
        };
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{text}").and_then(|()| stdout.flush()).is_ok()
    }

    /// Something the user should know.
    pub fn warn(&self, text: &str) {
        let _ = writeln!(std::io::stderr().lock(), "whet: warning: {text}");
    }

    /// How whet ends; what went wrong is told.
    pub fn told<E: Failure>(&self, outcome: Result<ExitCode, E>) -> ExitCode {
        outcome.unwrap_or_else(|e| {
            self.error(&e);
            e.exit_code()
        })
    }

    /// An error with its causes and the next step.
    fn error(&self, e: &dyn Failure) {
        let mut message = e.to_string();
        let mut cause = e.source();
        while let Some(c) = cause {
            let text = c.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = c.source();
        }
        let (code, next, exit) = (e.code().to_owned(), e.next_step(), e.exit_code());
        self.failure(&Failure { code, message, next, exit });
    }

    /// Any other failure; its exit code.
    pub fn failure(&self, f: &Failure) -> ExitCode {
        let Failure { code, message, next, exit } = f;
        if self.format == Format::Json {
            let object = serde_json::json!({
                "error": { "code": code, "message": message, "next": next, "exit_code": *exit as u8 }
            });
            let mut stdout = std::io::stdout().lock();
            let _ = writeln!(stdout, "{object}").and_then(|()| stdout.flush());
        }
        let _ = writeln!(std::io::stderr().lock(), "whet: {message}\nwhet: hint: {next}");
        *exit
    }
}
