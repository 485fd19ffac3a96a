//! Calls the daemon.

use crate::proto::{Answer, Call, DaemonStatus, MAX_ANSWER, StandBack};
use crate::states::Wish;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest wait for an answer, for callers that have nothing else to do.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The reason why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No daemon listens.
    #[error("no daemon listens at {}", socket.display())]
    NoDaemon {
        /// The socket's path.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The daemon does not answer, or its answer cannot be parsed.
    #[error("the daemon at {} does not answer: {what}", socket.display())]
    NoAnswer {
        /// The socket's path.
        socket: PathBuf,
        /// What happened.
        what: String,
    },
    /// The daemon refuses the call.
    #[error("the daemon refuses: {message}")]
    Refused {
        /// The stable name of the reason.
        code: String,
        /// The reason.
        message: String,
    },
}

/// Calls a method, and returns the parameters of the answer.
///
/// # Errors
/// [`AskError`]
pub fn call(socket: &Path, method: &str, parameters: Value) -> Result<Value, AskError> {
    call_within(PATIENCE, socket, method, parameters)
}

/// Calls a method. The connection, each write and each read of the answer may take `patience`.
fn call_within(
    patience: Duration,
    socket: &Path,
    method: &str,
    parameters: Value,
) -> Result<Value, AskError> {
    let no_daemon = |source| AskError::NoDaemon { socket: socket.to_owned(), source };
    let no_answer = |what: String| AskError::NoAnswer { socket: socket.to_owned(), what };
    let mut stream = connect(socket, patience).map_err(|e| match e {
        Errno::AGAIN => no_answer("too many wait for it".to_owned()),
        e => no_daemon(e.into()),
    })?;
    let call = Call { method: method.to_owned(), parameters };
    let mut bytes = serde_json::to_vec(&call).map_err(|e| no_answer(e.to_string()))?;
    bytes.push(0);
    let exchange = |stream: &mut UnixStream| -> io::Result<Vec<u8>> {
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(&bytes)?;
        let (mut answer, mut part) = (Vec::new(), [0; 4096]);
        while answer.last() != Some(&0) {
            let n = match stream.read(&mut part) {
                // A signal came, for example because the terminal changed its size.
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                n => n?,
            };
            if n == 0 || answer.len() + n > MAX_ANSWER {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            answer.extend_from_slice(&part[..n]);
        }
        answer.pop();
        Ok(answer)
    };
    let answer = exchange(&mut stream).map_err(|e| {
        // For a timeout, the system's text would be "resource temporarily unavailable".
        let is_late = matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        no_answer(if is_late { "it says nothing".to_owned() } else { e.to_string() })
    })?;
    let answer: Answer = serde_json::from_slice(&answer).map_err(|e| no_answer(e.to_string()))?;
    match answer.error {
        None => Ok(answer.parameters),
        Some(code) => {
            let message = answer.parameters["message"].as_str().unwrap_or(&code).to_owned();
            Err(AskError::Refused { code, message })
        }
    }
}

/// Connects to the socket. If the daemon's queue is full, waits at most `patience`, where
/// [`UnixStream::connect`] would wait for ever. Each write to the stream has the same limit.
fn connect(socket: &Path, patience: Duration) -> Result<UnixStream, Errno> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&fd, Timeout::Send, Some(patience))?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(socket)?)?;
    Ok(fd.into())
}

/// Returns the daemon's status. The wait for each part of the answer is limited by `patience`.
///
/// # Errors
/// [`AskError`]
pub fn status(socket: &Path, patience: Duration) -> Result<DaemonStatus, AskError> {
    let value = call_within(patience, socket, "whet.Status", Value::Null)?;
    serde_json::from_value(value)
        .map_err(|e| AskError::NoAnswer { socket: socket.to_owned(), what: e.to_string() })
}

/// Informs the daemon that a process, or every process if `pid` is `None`, is about to be changed by hand.
/// Before an undo, the daemon interrupts its workers on these targets.
///
/// # Errors
/// [`AskError`]
pub fn stand_back(socket: &Path, pid: Option<i32>, wish: Wish) -> Result<(), AskError> {
    let parameters = serde_json::to_value(StandBack { pid, wish }).unwrap_or_default();
    call(socket, "whet.StandBack", parameters).map(drop)
}
