//! The daemon's side of the socket. It accepts callers, determines their permissions, and limits the number
//! of connections and the size of calls.
//!
//! One caller cannot block the daemon: nothing here waits, calls are limited in size, connections in number
//! and time.

use crate::proto::{Answer, Call, MAX_CALL};
use rustix::net::sockopt::socket_peercred;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The most connections at a time; further ones wait in the kernel's queue.
const MOST: usize = 16;
/// How long a connection may stay without a whole call, or with an unread answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The listening socket with its connections.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    may_command: bool,
    read: Vec<u8>,
    write: Vec<u8>,
    until: Instant,
}

/// Whether a connection stays open.
#[derive(PartialEq, Eq)]
enum Goes {
    On,
    Away,
}

impl Server {
    /// Starts listening. The caller holds the lock against other daemons, so an existing socket belongs to a
    /// dead daemon.
    ///
    /// # Errors
    /// The system's error.
    pub fn listen(path: &Path) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        // Every user may call; the peer's credentials decide which methods are permitted.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path: path.to_owned(), connections: Vec::new() })
    }

    /// Returns the descriptors to wait for, and for each whether it is to be written.
    pub fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let listener = (self.connections.len() < MOST).then(|| (self.listener.as_fd(), false));
        listener.into_iter().chain(self.connections.iter().map(|c| (c.stream.as_fd(), !c.write.is_empty())))
    }

    /// Returns the latest moment at which it must be served again.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.connections.iter().map(|c| c.until).min()
    }

    /// Reads calls and writes answers, as far as possible without waiting. `answer` gets the call, and
    /// whether the caller may command.
    pub fn serve(&mut self, now: Instant, mut answer: impl FnMut(&Call, bool) -> Answer) {
        while self.connections.len() < MOST
            && let Ok((stream, _)) = self.listener.accept()
        {
            self.connections.extend(Connection::new(stream, now));
        }
        self.connections.retain_mut(|c| c.serve(now, &mut answer) == Goes::On);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Connection {
    fn new(stream: UnixStream, now: Instant) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        let peer = socket_peercred(&stream).ok()?.uid.as_raw();
        let may_command = peer == 0 || peer == rustix::process::geteuid().as_raw();
        Some(Self { stream, may_command, read: Vec::new(), write: Vec::new(), until: now + PATIENCE })
    }

    fn serve(&mut self, now: Instant, answer: &mut impl FnMut(&Call, bool) -> Answer) -> Goes {
        let mut ended = false;
        let mut part = [0; 4096];
        // One call at a time: while an answer is unread, no more is read.
        while self.write.is_empty() && !self.read.contains(&0) && self.read.len() <= MAX_CALL && !ended {
            match self.stream.read(&mut part) {
                Ok(0) => ended = true,
                Ok(n) => self.read.extend_from_slice(&part[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Goes::Away,
            }
        }
        let mut last = false;
        if self.write.is_empty() {
            if let Some(end) = self.read.iter().position(|&b| b == 0).filter(|&end| end <= MAX_CALL) {
                let call: Vec<u8> = self.read.drain(..=end).collect();
                self.reply(call.split_last().map_or(&[][..], |(_, call)| call), answer);
                self.until = now + PATIENCE;
            } else if self.read.len() > MAX_CALL {
                self.send(&refusal("whet.BadCall", &format!("a call has {MAX_CALL} bytes at most")));
                last = true;
            } else if ended {
                return Goes::Away;
            }
        }
        while !self.write.is_empty() {
            match self.stream.write(&self.write) {
                Ok(0) | Err(_) if now >= self.until => return Goes::Away,
                Ok(n) => drop(self.write.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Goes::Away,
            }
        }
        if last || now >= self.until { Goes::Away } else { Goes::On }
    }

    fn reply(&mut self, bytes: &[u8], answer: &mut impl FnMut(&Call, bool) -> Answer) {
        // serde_json limits nesting by itself.
        let answer = match serde_json::from_slice::<Call>(bytes) {
            Ok(call) => answer(&call, self.may_command),
            Err(e) => refusal("whet.BadCall", &format!("this is no call: {e}")),
        };
        self.send(&answer);
    }

    fn send(&mut self, answer: &Answer) {
        self.write = serde_json::to_vec(answer).unwrap_or_default();
        self.write.push(0);
    }
}

/// Returns an answer that refuses a call.
#[must_use]
pub fn refusal(code: &str, message: &str) -> Answer {
    Answer { error: Some(code.to_owned()), parameters: json!({ "message": message }) }
}

/// Returns an answer that accepts a call.
#[must_use]
pub fn accepted(parameters: Value) -> Answer {
    Answer { error: None, parameters }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo(call: &Call, _: bool) -> Answer {
        accepted(json!({ "method": call.method }))
    }

    /// Returns the answers to some bytes, once the server closes the connection or the answers are complete.
    fn exchange(server: &mut Server, bytes: &[u8], answers: usize) -> Vec<Answer> {
        let mut peer = UnixStream::connect(&server.path).unwrap();
        peer.set_nonblocking(true).unwrap();
        let (mut rest, mut got) = (bytes, Vec::new());
        let limit = Instant::now() + Duration::from_secs(20);
        while Instant::now() < limit && got.iter().filter(|&&b| b == 0).count() < answers {
            if let Ok(n) = peer.write(rest) {
                rest = &rest[n..];
            }
            server.serve(Instant::now(), echo);
            let mut part = [0; 1000];
            match peer.read(&mut part) {
                Ok(0) => break,
                Ok(n) => got.extend_from_slice(&part[..n]),
                Err(_) => {}
            }
        }
        got.split(|&b| b == 0).filter(|a| !a.is_empty()).map(|a| serde_json::from_slice(a).unwrap()).collect()
    }

    #[test]
    fn hostile_calls_get_errors() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server::listen(&folder.path().join("s")).unwrap();
        let two = exchange(&mut server, b"{\"method\":\"a\"}\0{\"method\":\"b\",\"parameters\":{}}\0", 2);
        assert_eq!(
            two.iter().map(|a| a.parameters["method"].as_str().unwrap()).collect::<Vec<_>>(),
            ["a", "b"]
        );
        let deep = [&b"{\"method\":\"a\",\"parameters\":"[..], &b"[".repeat(5000), b"\0"].concat();
        let junk: [&[u8]; 6] = [b"\0", b"junk\0", b"{}\0", b"[1]\0", b"{\"method\":7}\0", &deep];
        for bytes in junk {
            let answers = exchange(&mut server, bytes, 1);
            assert_eq!(answers.len(), 1, "{:?}", String::from_utf8_lossy(bytes));
            assert_eq!(answers[0].error.as_deref(), Some("whet.BadCall"));
        }
        // Endless bytes are answered with an error, and the connection is closed.
        let answers = exchange(&mut server, &vec![b'x'; 1 << 20], 1);
        assert_eq!(answers[0].error.as_deref(), Some("whet.BadCall"));
        server.serve(Instant::now() + 2 * PATIENCE, echo);
        assert!(server.connections.is_empty());
    }

    #[test]
    fn silent_connections_are_closed() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server::listen(&folder.path().join("s")).unwrap();
        let peers: Vec<UnixStream> =
            (0..MOST + 5).map(|_| UnixStream::connect(&server.path).unwrap()).collect();
        server.serve(Instant::now(), echo);
        assert_eq!(server.connections.len(), MOST);
        assert_eq!(server.fds().count(), MOST);
        server.serve(Instant::now() + 2 * PATIENCE, echo);
        assert!(server.connections.is_empty());
        // The other callers are accepted then. The socket's file is removed with the server.
        server.serve(Instant::now(), echo);
        assert_eq!(server.connections.len(), 5);
        let path = server.path.clone();
        drop((server, peers));
        assert!(!path.exists());
    }
}
