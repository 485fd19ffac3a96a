//! Asking the daemon.

use crate::proto::{Answer, Call, DaemonStatus, MAX_ANSWER, StandBack, Wish};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No daemon listens.
    #[error("no daemon listens at {}", socket.display())]
    NoDaemon {
        /// Where it would.
        socket: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It does not answer, or not so that it could be understood.
    #[error("the daemon at {} does not answer: {what}", socket.display())]
    NoAnswer {
        /// Where it listens.
        socket: PathBuf,
        /// What happened.
        what: String,
    },
    /// It says no.
    #[error("the daemon refuses: {message}")]
    Refused {
        /// The stable name of the reason.
        code: String,
        /// The reason.
        message: String,
    },
}

/// Calls a method.
///
/// # Errors
/// [`AskError`]
pub fn call(socket: &Path, method: &str, parameters: Value) -> Result<Value, AskError> {
    let no_daemon = |source| AskError::NoDaemon { socket: socket.to_owned(), source };
    let no_answer = |what: String| AskError::NoAnswer { socket: socket.to_owned(), what };
    let mut stream = UnixStream::connect(socket).map_err(no_daemon)?;
    let call = Call { method: method.to_owned(), parameters };
    let mut bytes = serde_json::to_vec(&call).map_err(|e| no_answer(e.to_string()))?;
    bytes.push(0);
    let exchange = |stream: &mut UnixStream| -> io::Result<Vec<u8>> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(&bytes)?;
        let (mut answer, mut part) = (Vec::new(), [0; 4096]);
        while answer.last() != Some(&0) {
            let n = stream.read(&mut part)?;
            if n == 0 || answer.len() + n > MAX_ANSWER {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            answer.extend_from_slice(&part[..n]);
        }
        answer.pop();
        Ok(answer)
    };
    let answer = exchange(&mut stream).map_err(|e| no_answer(e.to_string()))?;
    let answer: Answer = serde_json::from_slice(&answer).map_err(|e| no_answer(e.to_string()))?;
    match answer.error {
        None => Ok(answer.parameters),
        Some(code) => {
            let message = answer.parameters["message"].as_str().unwrap_or(&code).to_owned();
            Err(AskError::Refused { code, message })
        }
    }
}

/// What the daemon sees.
///
/// # Errors
/// [`AskError`]
pub fn status(socket: &Path) -> Result<DaemonStatus, AskError> {
    let value = call(socket, "whet.Status", Value::Null)?;
    serde_json::from_value(value)
        .map_err(|e| AskError::NoAnswer { socket: socket.to_owned(), what: e.to_string() })
}

/// Tells the daemon that a process, or each of them, is about to be changed by hand: its workers let go of it first.
///
/// # Errors
/// [`AskError`]
pub fn stand_back(socket: &Path, pid: Option<i32>, wish: Wish) -> Result<(), AskError> {
    let parameters = serde_json::to_value(StandBack { pid, wish }).unwrap_or_default();
    call(socket, "whet.StandBack", parameters).map(drop)
}
