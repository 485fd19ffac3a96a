//! The form of a capture file. All of it is compressed (gzip):
//!
//! | bytes | what |
//! |---|---|
//! | 15 | `whet capture 1` and a line end |
//! | 8 | size of the head, little-endian |
//! | | the head: JSON |
//! | | the bytes of all file parts, then of all memory runs, in the head's order |

use super::captured_memory::{CapturedMemory, FilePart};
use super::inputs::Inputs;
use addr::Avma;
use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};

/// The first bytes. The number is the version of the form.
const MAGIC: &[u8] = b"whet capture 1\n";
/// The first bytes of any version.
const ANY_VERSION: &[u8] = b"whet capture ";
/// The most bytes of a capture before compression. The code of the largest servers takes some 100 MB.
const MOST: u64 = 1 << 30;
/// The most bytes of the head. That of a large server takes some 10 MB; parsed, it takes several times as much.
const MOST_OF_HEAD: u64 = 128 << 20;

/// A capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capture {
    pub(crate) inputs: Inputs,
    pub(crate) memory: CapturedMemory,
    pub(crate) files: Vec<FilePart>,
}

/// The head of a capture file.
#[derive(Serialize, Deserialize)]
struct Head {
    inputs: Inputs,
    /// Start of the module's first mapping, offset, size, and whether the bytes follow.
    files: Vec<(u64, u64, u64, bool)>,
    /// Address and size of each run of memory.
    memory: Vec<(u64, u64)>,
}

/// Writes a capture.
///
/// # Errors
/// Returns the errors of `to`; an error if the capture is larger than [`read`] accepts.
pub(crate) fn write(capture: &Capture, to: impl Write) -> io::Result<()> {
    let files = capture.files.iter().map(|p| (p.module.0, p.from, p.len, p.bytes.is_some())).collect();
    let memory = capture.memory.runs.iter().map(|(at, b)| (at.0, b.len() as u64)).collect();
    let head = serde_json::to_vec(&Head { inputs: capture.inputs.clone(), files, memory })?;
    let parts = || capture.files.iter().filter_map(|p| p.bytes.as_ref());
    let all = || parts().chain(capture.memory.runs.iter().map(|r| &r.1));
    let len = (MAGIC.len() + 8 + head.len() + all().map(Vec::len).sum::<usize>()) as u64;
    if len > MOST || head.len() as u64 > MOST_OF_HEAD {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut out = GzEncoder::new(to, Compression::default());
    out.write_all(MAGIC)?;
    out.write_all(&(head.len() as u64).to_le_bytes())?;
    out.write_all(&head)?;
    for bytes in all() {
        out.write_all(bytes)?;
    }
    out.finish()?.flush()
}

/// Reads a capture. `from` may hold any bytes.
///
/// # Errors
/// Returns what is wrong with the bytes.
pub(crate) fn read(from: impl Read) -> Result<Capture, &'static str> {
    let mut input = Input(GzDecoder::new(BufReader::new(from)).take(MOST));
    let magic = input.bytes(MAGIC.len() as u64).map_err(|_| "is no capture")?;
    match magic {
        magic if magic == MAGIC => {}
        magic if magic.starts_with(ANY_VERSION) => return Err("is a capture of another version of whet"),
        _ => return Err("is no capture"),
    }
    let len = input.bytes(8)?.try_into().map_or(u64::MAX, u64::from_le_bytes);
    if len > MOST_OF_HEAD {
        return Err("is cut off, or too large");
    }
    let head = input.bytes(len)?;
    let Head { inputs, files, memory } =
        serde_json::from_slice(&head).map_err(|_| "is a capture with a malformed head")?;
    let mut capture = Capture { inputs, ..Capture::default() };
    for (module, from, len, is_there) in files {
        let bytes = is_there.then(|| input.bytes(len)).transpose()?;
        capture.files.push(FilePart { module: Avma(module), from, bytes, len });
    }
    let mut end = 0;
    for (at, len) in memory {
        let bytes = input.bytes(len)?;
        let next = at.checked_add(len).filter(|_| at >= end).ok_or("is a capture with a malformed head")?;
        end = next;
        capture.memory.runs.push((Avma(at), bytes));
    }
    // The checksum lies behind the last byte.
    match input.0.read(&mut [0]) {
        Ok(0) => {}
        Ok(_) => return Err("has bytes behind its end"),
        Err(_) => return Err("is damaged"),
    }
    // Nothing lies behind the compressed bytes either.
    match input.0.into_inner().into_inner().fill_buf() {
        Ok([]) => Ok(capture),
        Ok(_) => Err("has bytes behind its end"),
        Err(_) => Err("is damaged"),
    }
}

/// The decompressed bytes.
struct Input<R: BufRead>(io::Take<GzDecoder<R>>);

impl<R: BufRead> Input<R> {
    /// Takes the next bytes. The memory used grows with the bytes that are there, not with the lengths that
    /// the file states.
    fn bytes(&mut self, len: u64) -> Result<Vec<u8>, &'static str> {
        let mut bytes = Vec::new();
        let read = self.0.by_ref().take(len).read_to_end(&mut bytes).map_err(|_| "is damaged")?;
        if read as u64 == len { Ok(bytes) } else { Err("is cut off, or too large") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture() -> Capture {
        Capture {
            inputs: Inputs { exe: "/usr/sbin/mariadbd".to_owned(), pid: 7, ..Inputs::default() },
            memory: CapturedMemory {
                runs: vec![(Avma(0x1000), vec![1; 4096]), (Avma(0x5000), vec![2; 8192])],
            },
            files: vec![
                FilePart { module: Avma(0x1000), from: 64, bytes: Some(vec![3; 10]), len: 10 },
                FilePart { module: Avma(0x1000), from: 99, bytes: None, len: 4 },
            ],
        }
    }

    fn written() -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&capture(), &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn captures_read_back() {
        let bytes = written();
        assert!(bytes.len() < 1000);
        assert_eq!(read(&bytes[..]), Ok(capture()));
        for keep in 0..bytes.len() {
            assert!(read(&bytes[..keep]).is_err(), "{keep}");
        }
        assert_eq!(read(&b"junk"[..]), Err("is no capture"));
        for more in [&b"\0"[..], b"junk", &bytes] {
            assert_eq!(read(&[&bytes, more].concat()[..]), Err("has bytes behind its end"));
        }
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut out = GzEncoder::new(Vec::new(), Compression::fast());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    }

    #[test]
    fn other_versions_and_false_promises_are_named() {
        assert_eq!(read(&packed(b"whet capture 9\n")[..]), Err("is a capture of another version of whet"));
        let promise = [MAGIC, &u64::MAX.to_le_bytes()].concat();
        assert_eq!(read(&packed(&promise)[..]), Err("is cut off, or too large"));
    }

    /// What is written can be read: a capture whose head is too large is not written.
    #[test]
    fn a_head_that_is_too_large_is_not_written() {
        let exe = "x".repeat(usize::try_from(MOST_OF_HEAD).unwrap());
        let large = Capture { inputs: Inputs { exe, ..Inputs::default() }, ..capture() };
        let mut bytes = Vec::new();
        assert_eq!(write(&large, &mut bytes).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(bytes.is_empty());
    }

    /// The one-second form of the fuzz target: any bytes, no panic.
    #[test]
    fn any_bytes_are_read_or_refused() {
        arbtest::arbtest(|u| {
            let mut bytes = MAGIC.to_vec();
            let head: Vec<u8> = u.arbitrary()?;
            bytes.extend((head.len() as u64).to_le_bytes());
            bytes.extend(head);
            let _ = read(&packed(&bytes)[..]);
            let _ = read(&bytes[..]);
            Ok(())
        })
        .budget_ms(1000);
    }
}
