//! The client's half of the MySQL protocol, as far as a status counter needs it: packets, errors, rows of
//! text.
//!
//! Written after the "Client/Server Protocol" pages of MySQL's source documentation and of MariaDB's
//! knowledge base. Nothing from the server is trusted: every length is checked.

use std::io::{self, Read, Write};

/// The longest packet that is accepted, in bytes. No answer to whet's query is longer.
const LONGEST: usize = 1 << 20;
/// The most rows, or columns, that are accepted.
const MOST: usize = 10_000;

/// The errors of a session.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The connection failed.
    #[error("the connection to the server: {0}")]
    Io(#[from] io::Error),
    /// The server answered with an error.
    #[error("the server says: {text} (error {code})")]
    Server {
        /// The error's number.
        code: u16,
        /// The error's text.
        text: String,
    },
    /// The bytes received are not the MySQL protocol.
    #[error("the server's answer is not the MySQL protocol: {0}")]
    Malformed(&'static str),
    /// The server requests an authentication method that is not supported here.
    #[error("the account is to be proved by {0:?}")]
    Method(String),
    /// The server requests the password itself, and another party can read the connection's data.
    #[error("the server requires the password in clear text over an unencrypted connection")]
    Clear,
}

/// The byte stream of a connection.
pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A stream that is divided into packets.
pub struct Wire {
    stream: Box<dyn Stream>,
    sequence: u8,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Wire {
    pub fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, sequence: 0 }
    }

    /// Begins a new exchange.
    pub fn begin(&mut self) {
        self.sequence = 0;
    }

    pub fn send(&mut self, payload: &[u8]) -> Result<(), WireError> {
        let length = u32::try_from(payload.len()).ok().filter(|&n| n < 1 << 24);
        let length = length.ok_or(WireError::Malformed("a question too long"))?.to_le_bytes();
        let mut packet = vec![length[0], length[1], length[2], self.sequence];
        packet.extend_from_slice(payload);
        self.sequence = self.sequence.wrapping_add(1);
        self.stream.write_all(&packet)?;
        Ok(self.stream.flush()?)
    }

    /// Receives the next packet, which is never empty. A packet with an error becomes [`WireError::Server`].
    pub fn receive(&mut self) -> Result<Vec<u8>, WireError> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header)?;
        let length = usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
        self.sequence = header[3].wrapping_add(1);
        if length == 0 || length > LONGEST {
            return Err(WireError::Malformed("a packet's length"));
        }
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload)?;
        if payload[0] == 0xff {
            return Err(refusal(&payload[1..]));
        }
        Ok(payload)
    }

    /// Runs a statement and returns its rows; none for a statement without rows.
    pub fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, WireError> {
        self.begin();
        self.send(&[&[3], sql.as_bytes()].concat())?;
        let first = self.receive()?;
        if first[0] == 0 {
            return Ok(Vec::new());
        }
        let columns = Fields(&first).number().and_then(|n| usize::try_from(n?).ok()).filter(|&n| n <= MOST);
        for _ in 0..columns.ok_or(WireError::Malformed("the number of columns"))? {
            self.receive()?;
        }
        if !is_end(&self.receive()?) {
            return Err(WireError::Malformed("the end of the columns"));
        }
        let mut rows = Vec::new();
        loop {
            let packet = self.receive()?;
            if is_end(&packet) {
                return Ok(rows);
            }
            if rows.len() >= MOST {
                return Err(WireError::Malformed("the number of rows"));
            }
            rows.push(row(&packet).ok_or(WireError::Malformed("a row"))?);
        }
    }

    /// Ends the session. Errors are ignored, as the server may be gone.
    pub fn quit(&mut self) {
        self.begin();
        let _ = self.send(&[1]);
    }
}

fn is_end(packet: &[u8]) -> bool {
    packet.first() == Some(&0xfe) && packet.len() < 9
}

fn refusal(rest: &[u8]) -> WireError {
    let Some((code, text)) = rest.split_first_chunk::<2>() else {
        return WireError::Malformed("an error without a number");
    };
    // `#` and the five characters of SQLSTATE precede the text, but not before the login.
    let text = if text.first() == Some(&b'#') { text.get(6..).unwrap_or_default() } else { text };
    WireError::Server { code: u16::from_le_bytes(*code), text: String::from_utf8_lossy(text).into_owned() }
}

fn row(packet: &[u8]) -> Option<Vec<Option<String>>> {
    let mut fields = Fields(packet);
    let mut row = Vec::new();
    while !fields.0.is_empty() {
        row.push(match fields.number()? {
            Some(length) => {
                Some(String::from_utf8_lossy(fields.take(usize::try_from(length).ok()?)?).into_owned())
            }
            None => None,
        });
    }
    Some(row)
}

/// The part of a packet that is not yet read.
#[derive(Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// Returns the bytes up to the next zero, and skips the zero. Without a zero, returns all remaining
    /// bytes.
    pub fn text(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|&b| b == 0);
        let text = &self.0[..end.unwrap_or(self.0.len())];
        self.0 = end.and_then(|e| self.0.get(e + 1..)).unwrap_or_default();
        text
    }

    /// Parses a number of the protocol's variable length. `Some(None)` is SQL's NULL; `None` is malformed.
    fn number(&mut self) -> Option<Option<u64>> {
        let length = match *self.take(1)?.first()? {
            0xfb => return Some(None),
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            0xff => return None,
            small => return Some(Some(small.into())),
        };
        let bytes = self.take(length)?;
        Some(Some(bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))))
    }
}
