//! Asking the daemon.

use crate::proto::{Answer, Call, DaemonStatus, MAX_ANSWER, StandBack, Wish};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest wait for an answer, for those who have nothing else to do.
pub const PATIENCE: Duration = Duration::from_secs(30);

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
    call_within(PATIENCE, socket, method, parameters)
}

/// Calls a method, and waits so long for each part of the answer.
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
                // A terminal that changes its size.
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
        // What the system calls a resource that is temporarily unavailable.
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

/// Where a daemon's queue is full, waits so long and not for ever, as [`UnixStream::connect`] would; so does each write.
fn connect(socket: &Path, patience: Duration) -> Result<UnixStream, Errno> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&fd, Timeout::Send, Some(patience))?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(socket)?)?;
    Ok(fd.into())
}

/// What the daemon sees; it is waited for so long.
///
/// # Errors
/// [`AskError`]
pub fn status(socket: &Path, patience: Duration) -> Result<DaemonStatus, AskError> {
    let value = call_within(patience, socket, "whet.Status", Value::Null)?;
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
