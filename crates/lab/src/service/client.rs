//! Clients of the key-value servers and of the web server, one connection each.

use super::stream::Stream;
use crate::driver::{Failure, Worker};
use crate::error::Error;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

/// The protocol of a key-value server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Protocol {
    /// Redis' RESP.
    Redis,
    /// memcached's text protocol.
    Memcached,
}

/// The requests of a client.
#[derive(Clone, Debug)]
enum Kind {
    KeyValue { protocol: Protocol, keys: usize, writes: f64, value: String },
    Web { files: usize },
}

/// A client with its connection.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<Stream>,
    kind: Kind,
}

impl Client {
    /// Connects to a key-value server. A share of `writes` of all requests are writes of `bytes` bytes.
    ///
    /// # Errors
    /// An error if the server does not accept the connection.
    pub fn of_keys(
        socket: &Path,
        protocol: Protocol,
        keys: usize,
        writes: f64,
        bytes: usize,
    ) -> Result<Self, Error> {
        let kind = Kind::KeyValue { protocol, keys, writes, value: "v".repeat(bytes) };
        Ok(Self { stream: BufReader::new(Stream::connect(socket, None)?), kind })
    }

    /// Connects to a web server with the files `/0` to `/N`, by TLS if its certificate is given.
    ///
    /// # Errors
    /// An error if the server does not accept the connection, or the certificate cannot be used.
    pub fn of_files(socket: &Path, files: usize, certificate: Option<&Path>) -> Result<Self, Error> {
        let stream = BufReader::new(Stream::connect(socket, certificate)?);
        Ok(Self { stream, kind: Kind::Web { files } })
    }

    /// Writes each key once, so that reads find it.
    ///
    /// # Errors
    /// [`Error::Load`] if the server refuses one.
    pub fn fill(&mut self) -> Result<(), Error> {
        let Kind::KeyValue { protocol, keys, value, .. } = self.kind.clone() else { return Ok(()) };
        for key in 0..keys {
            self.send(&write_of(protocol, key, &value)).and_then(|()| self.answer(protocol)).map_err(
                |e| {
                    let why = match e {
                        Failure::Data => "refused a write".to_owned(),
                        Failure::Broken(why) => why,
                    };
                    Error::Load { load: "filling".to_owned(), why }
                },
            )?;
        }
        Ok(())
    }

    fn send(&mut self, request: &str) -> Result<(), Failure> {
        let stream = self.stream.get_mut();
        Ok(stream.write_all(request.as_bytes()).and_then(|()| stream.flush())?)
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(Failure::Broken("the server closed the connection".to_owned()));
        }
        Ok(line.trim_end().to_owned())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Failure> {
        let copied = std::io::copy(&mut self.stream.by_ref().take(bytes), &mut std::io::sink())?;
        if copied == bytes { Ok(()) } else { Err(Failure::Broken("the answer was cut off".to_owned())) }
    }

    /// Reads one answer of a key-value server.
    fn answer(&mut self, protocol: Protocol) -> Result<(), Failure> {
        let line = self.line()?;
        match protocol {
            Protocol::Redis => match length(line.strip_prefix('$')) {
                // The value, and the end of its line.
                Some(bytes) => self.skip(bytes + 2),
                None if line.starts_with('+') => Ok(()),
                None => Err(unexpected(&line)),
            },
            Protocol::Memcached if line == "STORED" => Ok(()),
            Protocol::Memcached => {
                let bytes = length(line.rsplit(' ').next().filter(|_| line.starts_with("VALUE ")));
                self.skip(bytes.ok_or_else(|| unexpected(&line))? + 2)?;
                let end = self.line()?;
                if end == "END" { Ok(()) } else { Err(unexpected(&end)) }
            }
        }
    }

    fn page(&mut self) -> Result<(), Failure> {
        let status = self.line()?;
        if !status.starts_with("HTTP/1.1 200 ") {
            return Err(unexpected(&status));
        }
        let mut bytes = 0;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return self.skip(bytes);
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                bytes = length(Some(value.trim())).ok_or_else(|| unexpected(&line))?;
            }
        }
    }
}

fn length(word: Option<&str>) -> Option<u64> {
    word.and_then(|w| w.parse().ok())
}

fn unexpected(line: &str) -> Failure {
    Failure::Broken(format!("the server answered {line:?}"))
}

fn write_of(protocol: Protocol, key: usize, value: &str) -> String {
    let bytes = value.len();
    match protocol {
        Protocol::Redis => {
            let key = format!("k{key}");
            format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${bytes}\r\n{value}\r\n", key.len())
        }
        Protocol::Memcached => format!("set k{key} 0 0 {bytes}\r\n{value}\r\n"),
    }
}

fn read_of(protocol: Protocol, key: usize) -> String {
    match protocol {
        Protocol::Redis => {
            let key = format!("k{key}");
            format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len())
        }
        Protocol::Memcached => format!("get k{key}\r\n"),
    }
}

impl Worker for Client {
    /// Kinds: of key-value servers 0 is a read and 1 a write; of web servers all are 0.
    fn request(&mut self, rng: &mut Pcg64Mcg) -> Result<usize, Failure> {
        match &self.kind {
            Kind::KeyValue { protocol, keys, writes, value } => {
                let (protocol, key) = (*protocol, rng.random_range(0..*keys));
                let is_write = rng.random::<f64>() < *writes;
                let request = if is_write { write_of(protocol, key, value) } else { read_of(protocol, key) };
                self.send(&request)?;
                self.answer(protocol)?;
                Ok(usize::from(is_write))
            }
            Kind::Web { files } => {
                let file = rng.random_range(0..*files);
                self.send(&format!("GET /{file} HTTP/1.1\r\nHost: lab\r\n\r\n"))?;
                self.page()?;
                Ok(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats;
    use std::os::unix::net::UnixStream;

    /// Answers every request with `answer`, once.
    fn asked(answer: &'static str, kind: Kind) -> (Result<usize, Failure>, String) {
        let (mine, mut other) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            let n = other.read(&mut bytes).unwrap();
            other.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&bytes[..n]).into_owned()
        });
        let mut client = Client { stream: BufReader::new(Stream::Plain(mine)), kind };
        let result = client.request(&mut stats::generator(1, "x"));
        (result, server.join().unwrap())
    }

    fn keys(protocol: Protocol, writes: f64) -> Kind {
        Kind::KeyValue { protocol, keys: 1, writes, value: "vv".to_owned() }
    }

    #[test]
    fn requests_and_answers_of_each_protocol() {
        let (done, sent) = asked("$2\r\nvv\r\n", keys(Protocol::Redis, 0.0));
        assert!(matches!(done, Ok(0)) && sent == "*2\r\n$3\r\nGET\r\n$2\r\nk0\r\n", "{sent:?}");
        let (done, sent) = asked("+OK\r\n", keys(Protocol::Redis, 1.0));
        assert!(matches!(done, Ok(1)) && sent.ends_with("$2\r\nk0\r\n$2\r\nvv\r\n"), "{sent:?}");
        let (done, sent) = asked("VALUE k0 0 2\r\nvv\r\nEND\r\n", keys(Protocol::Memcached, 0.0));
        assert!(matches!(done, Ok(0)) && sent == "get k0\r\n", "{sent:?}");
        let (done, sent) = asked("STORED\r\n", keys(Protocol::Memcached, 1.0));
        assert!(matches!(done, Ok(1)) && sent == "set k0 0 0 2\r\nvv\r\n", "{sent:?}");
        let (done, _) = asked("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", Kind::Web { files: 1 });
        assert!(matches!(done, Ok(0)));
    }

    /// A missing key, an error and a cut answer must end the load: their requests did other work.
    #[test]
    fn other_answers_are_failures() {
        let redis = || keys(Protocol::Redis, 0.0);
        let memcached = || keys(Protocol::Memcached, 0.0);
        for (answer, kind) in [
            ("$-1\r\n", redis()),
            ("-ERR no\r\n", redis()),
            ("$9\r\nvv\r\n", redis()),
            ("END\r\n", memcached()),
            ("VALUE k0 0 2\r\nvv\r\nSERVER_ERROR\r\n", memcached()),
            ("HTTP/1.1 404 Not Found\r\n\r\n", Kind::Web { files: 1 }),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", Kind::Web { files: 1 }),
        ] {
            let (done, _) = asked(answer, kind);
            assert!(matches!(done, Err(Failure::Broken(_))), "{answer:?}: {done:?}");
        }
    }
}
