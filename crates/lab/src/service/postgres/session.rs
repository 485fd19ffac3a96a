//! A session with PostgreSQL at a Unix socket: version 3 of its protocol, simple queries, no password.

use super::ACCOUNT;
use crate::driver::Failure;
use crate::error::Error;
use crate::interrupt::Interrupt;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest message, in bytes. Those of the loads are much shorter.
const LONGEST: usize = 1 << 20;
/// The server is starting up.
const NOT_READY: &str = "57P03";
/// Serialization failures and deadlocks come from the data.
const OF_DATA: [&str; 2] = ["40001", "40P01"];

/// A session.
#[derive(Debug)]
pub struct Session {
    stream: BufReader<UnixStream>,
    message: Vec<u8>,
}

/// The answer to a statement.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Answer {
    /// The command and its count: `UPDATE 1`.
    pub tag: String,
    /// The first value of the first row, as text. `None` if there is no row or if the value is null.
    pub value: Option<String>,
}

/// An error that the server reports.
struct Refusal {
    code: String,
    text: String,
}

/// The errors of a session.
enum Trouble {
    Refused(Refusal),
    Broken(String),
}

impl From<std::io::Error> for Trouble {
    fn from(e: std::io::Error) -> Self {
        Self::Broken(e.to_string())
    }
}

impl Trouble {
    fn words(self) -> String {
        match self {
            Self::Refused(Refusal { code, text }) => format!("{text} ({code})"),
            Self::Broken(why) => why,
        }
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Refused(r) if OF_DATA.contains(&r.code.as_str()) => Self::Data,
            other => Self::Broken(other.words()),
        }
    }
}

impl Session {
    /// Opens a session.
    ///
    /// # Errors
    /// [`Error::Database`] if the server refuses it.
    pub fn open(socket: &Path) -> Result<Self, Error> {
        Self::try_open(socket).map_err(refused)
    }

    /// Waits until the server is ready.
    ///
    /// # Errors
    /// As [`Self::open`]; [`Error::Interrupted`] on an interrupt.
    pub fn wait(socket: &Path, interrupt: &Interrupt) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE;
        loop {
            match Self::try_open(socket) {
                Ok(_) => return Ok(()),
                Err(Trouble::Refused(r)) if r.code == NOT_READY && Instant::now() < until => {}
                Err(other) => return Err(refused(other)),
            }
            interrupt.sleep(Duration::from_millis(20))?;
        }
    }

    fn try_open(socket: &Path) -> Result<Self, Trouble> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Self::greet(stream)
    }

    fn greet(stream: UnixStream) -> Result<Self, Trouble> {
        let mut session = Self { stream: BufReader::new(stream), message: Vec::new() };
        let mut text = 196_608_u32.to_be_bytes().to_vec();
        for word in ["user", ACCOUNT, "database", ACCOUNT] {
            text.extend_from_slice(word.as_bytes());
            text.push(0);
        }
        text.push(0);
        session.send(None, &text)?;
        session.answer()?;
        Ok(session)
    }

    /// Runs a statement and returns its answer.
    ///
    /// # Errors
    /// [`Failure::Data`] for a deadlock or a serialization failure: then the transaction must be rolled back.
    pub fn query(&mut self, sql: &str) -> Result<Answer, Failure> {
        self.send(Some(b'Q'), &[sql.as_bytes(), b"\0"].concat())?;
        Ok(self.answer()?)
    }

    /// Runs a statement that returns a count.
    ///
    /// # Errors
    /// [`Error::Database`] if the server refuses it or returns no count.
    pub fn count(&mut self, sql: &str) -> Result<u64, Error> {
        let found = match self.query(sql) {
            Ok(answer) => answer.value.and_then(|v| v.parse().ok()).ok_or_else(|| format!("no count: {sql}")),
            Err(Failure::Data) => Err(format!("a deadlock in {sql}")),
            Err(Failure::Broken(why)) => Err(why),
        };
        found.map_err(|why| refused(Trouble::Broken(why)))
    }

    fn send(&mut self, kind: Option<u8>, text: &[u8]) -> Result<(), Trouble> {
        let length = u32::try_from(text.len() + 4).map_err(|_| Trouble::Broken("too long".to_owned()))?;
        let mut message: Vec<u8> = kind.into_iter().collect();
        message.extend_from_slice(&length.to_be_bytes());
        message.extend_from_slice(text);
        Ok(self.stream.get_mut().write_all(&message)?)
    }

    /// Reads messages until the server is ready for the next statement.
    fn answer(&mut self) -> Result<Answer, Trouble> {
        let mut answer = Answer::default();
        let mut refusal = None;
        let mut rows = 0;
        loop {
            match self.receive()? {
                b'Z' => break,
                b'C' => answer.tag = text_of(&self.message),
                b'D' => {
                    rows += 1;
                    if rows == 1 {
                        answer.value = first_value(&self.message);
                    }
                }
                b'E' => {
                    let said = parse_refusal(&self.message);
                    // After such an error the server closes the connection.
                    if said.code == NOT_READY {
                        return Err(Trouble::Refused(said));
                    }
                    refusal.get_or_insert(said);
                }
                b'R' if self.message != [0; 4] => {
                    return Err(Trouble::Broken("the server wants a password".to_owned()));
                }
                // Parameters, notices, descriptions of columns.
                _ => {}
            }
        }
        refusal.map_or(Ok(answer), |r| Err(Trouble::Refused(r)))
    }

    /// Reads one message and returns its kind.
    fn receive(&mut self) -> Result<u8, Trouble> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let length = (u32::from_be_bytes(length) as usize).checked_sub(4).filter(|n| *n <= LONGEST);
        let length = length.ok_or_else(|| Trouble::Broken("a message of an odd length".to_owned()))?;
        self.message.resize(length, 0);
        self.stream.read_exact(&mut self.message)?;
        Ok(kind)
    }
}

fn refused(trouble: Trouble) -> Error {
    Error::Database { server: "postgresql".to_owned(), message: trouble.words() }
}

/// Returns the text before the first zero byte.
fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

/// Returns the first value of a row: two bytes with the number of values, four with the length of the value.
fn first_value(row: &[u8]) -> Option<String> {
    let (length, values) = row.get(2..)?.split_first_chunk::<4>()?;
    // A null value has the length -1.
    let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
    values.get(..length).map(|v| String::from_utf8_lossy(v).into_owned())
}

/// Parses an error: fields of a letter and a text each.
fn parse_refusal(message: &[u8]) -> Refusal {
    let field = |letter: u8| {
        let fields = message.split(|b| *b == 0).filter_map(|f| f.split_first());
        let found = fields.into_iter().find(|(kind, _)| **kind == letter);
        found.map(|(_, text)| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
    };
    Refusal { code: field(b'C'), text: field(b'M') }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a message of the server.
    pub fn message(kind: u8, text: &[u8]) -> Vec<u8> {
        let length = u32::try_from(text.len() + 4).unwrap().to_be_bytes();
        [&[kind], &length[..], text].concat()
    }

    pub fn row(value: &str) -> Vec<u8> {
        let length = u32::try_from(value.len()).unwrap().to_be_bytes();
        message(b'D', &[&[0, 1], &length[..], value.as_bytes()].concat())
    }

    pub fn done(tag: &str) -> Vec<u8> {
        [message(b'C', &[tag.as_bytes(), &[0]].concat()), message(b'Z', b"I")].concat()
    }

    /// Returns a session whose server sends `bytes`, and the server's end of it.
    pub fn session(bytes: &[u8]) -> (Session, UnixStream) {
        let (mine, mut other) = UnixStream::pair().unwrap();
        other.write_all(bytes).unwrap();
        (Session { stream: BufReader::new(mine), message: Vec::new() }, other)
    }

    #[test]
    fn a_statement_and_its_answer() {
        let notice = message(b'N', b"SNOTICE\0\0");
        let (mut s, mut other) = session(&[notice, row("42"), row("43"), done("SELECT 2")].concat());
        let answer = s.query("SELECT x").ok().unwrap();
        assert_eq!((answer.tag.as_str(), answer.value.as_deref()), ("SELECT 2", Some("42")));
        let mut sent = [0; 14];
        other.read_exact(&mut sent).unwrap();
        assert_eq!(&sent, b"Q\0\0\0\x0dSELECT x\0");
        let null = message(b'D', &[0, 1, 255, 255, 255, 255]);
        let (mut s, _other) = session(&[null, done("SELECT 1")].concat());
        assert_eq!(s.query("SELECT NULL").ok().unwrap().value, None);
    }

    #[test]
    fn errors_of_the_data_differ_from_other_errors() {
        let refusal = |code: &str| {
            let text = format!("SERROR\0C{code}\0Mno such thing\0\0");
            [message(b'E', text.as_bytes()), message(b'Z', b"E")].concat()
        };
        for code in OF_DATA {
            assert!(matches!(session(&refusal(code)).0.query("x"), Err(Failure::Data)), "{code}");
        }
        let (mut s, _other) = session(&refusal("42P01"));
        let Err(Failure::Broken(why)) = s.query("x") else { panic!() };
        assert_eq!(why, "no such thing (42P01)");
    }

    /// None of these may be taken for an answer, and none may make the client hang or use much memory.
    #[test]
    fn odd_messages_break_the_session() {
        let huge = [&b"D"[..], &u32::MAX.to_be_bytes()].concat();
        let tiny = [&b"D"[..], &3_u32.to_be_bytes()].concat();
        let password = message(b'R', &3_u32.to_be_bytes());
        for bytes in [huge, tiny, password, b"D\0\0".to_vec()] {
            let (mut s, other) = session(&bytes);
            other.shutdown(std::net::Shutdown::Both).unwrap();
            assert!(matches!(s.answer(), Err(Trouble::Broken(_))), "{bytes:?}");
        }
        for short in [&[][..], &[0, 1], &[0, 1, 0, 0, 0, 9, b'x']] {
            assert_eq!(first_value(short), None);
        }
    }
}
