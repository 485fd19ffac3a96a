//! The pieces of memory in calls like `writev` and `sendmsg`, and what is left of them after a part was
//! moved.

use crate::Process;
use crate::slots::UIO_MAXIOV;
use addr::{Addr, Avma, AvmaRange, ReadMemory};

/// The maximum that one call moves (Linux, `MAX_RW_COUNT`). Bytes.
pub(crate) const MOST: u64 = 0x7fff_f000;

/// Pieces of memory, each with its start and length.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pieces(Vec<[u64; 2]>);

/// The message header of `sendmsg` and `recvmsg` (`struct msghdr`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Message {
    name: u64,
    name_len: u64,
    /// Ancillary data that goes with each part. File descriptors went with the first part.
    pub(crate) control: Vec<u8>,
}

impl Pieces {
    /// Reads an array of `struct iovec`; `None` if it is not valid, or if one call would not move all of it.
    pub(crate) fn read(process: &Process, at: Avma, count: u64) -> Option<Self> {
        if count > UIO_MAXIOV {
            return None;
        }
        let bytes = process.bytes(AvmaRange::with_len(at, count * 16)).ok()?;
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect();
        let pieces = Self(words.as_chunks::<2>().0.to_vec());
        (pieces.total()? <= MOST).then_some(pieces)
    }

    /// Returns the sum of the lengths; `None` if it is impossible. Bytes.
    pub(crate) fn total(&self) -> Option<u64> {
        self.0.iter().try_fold(0u64, |sum, [_, len]| sum.checked_add(*len))
    }

    /// Returns what is left after `moved` bytes.
    pub(crate) fn after(&self, mut moved: u64) -> Self {
        let mut left = Vec::new();
        for &[at, len] in &self.0 {
            let skipped = moved.min(len);
            moved -= skipped;
            if skipped < len {
                left.push([at.wrapping_add(skipped), len - skipped]);
            }
        }
        Self(left)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the pieces in the kernel's format.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.as_flattened().iter().flat_map(|w| w.to_le_bytes()).collect()
    }
}

impl Message {
    /// Reads a message's header and its pieces. A message being received needs no ancillary data any more.
    /// For a message being sent, returns `None` if its ancillary data is too long or malformed.
    pub(crate) fn read(process: &Process, at: Avma, sent: bool, most: u64) -> Option<(Self, Pieces)> {
        let word = |i: u64| process.u64(at.add(8 * i)).ok();
        let pieces = Pieces::read(process, Avma(word(2)?), word(3)?)?;
        let (control_at, control_len) = (word(4)?, word(5)?);
        let mut control = Vec::new();
        if sent && control_at != 0 && control_len != 0 {
            // Data with file descriptors is at most as long as a kernel accepts in one message.
            let all = process.bytes(AvmaRange::with_len(Avma(control_at), control_len.min(1 << 16))).ok()?;
            control = without_descriptors(&all)?;
        }
        let message = Self { name: word(0)?, name_len: word(1)?, control };
        (message.control.len() as u64 <= most).then_some((message, pieces))
    }

    /// Returns whether a message that is being received has room for ancillary data. The kernel has replaced the
    /// length of that room by the length of what came with the part.
    pub(crate) fn takes_control(process: &Process, at: Avma) -> bool {
        process.u64(at.add(32)) != Ok(0)
    }

    /// Returns the header in the kernel's format, with its pieces and its ancillary data elsewhere.
    pub(crate) fn bytes(&self, pieces: Avma, count: usize, control: Avma) -> Vec<u8> {
        let len = self.control.len() as u64;
        let control = if len == 0 { 0 } else { control.0 };
        let words = [self.name, self.name_len, pieces.0, count as u64, control, len, 0];
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }
}

/// Returns ancillary data (`struct cmsghdr`s) without the file descriptors in it.
fn without_descriptors(all: &[u8]) -> Option<Vec<u8>> {
    const HEAD: usize = 16;
    let mut kept = Vec::new();
    let mut rest = all;
    while rest.len() >= HEAD {
        let len = usize::try_from(u64::from_le_bytes(rest[..8].try_into().ok()?)).ok()?;
        if len < HEAD || len > rest.len() {
            return None;
        }
        let int = |at: usize| Some(i32::from_le_bytes(rest[at..at + 4].try_into().ok()?));
        let whole = len.next_multiple_of(8).min(rest.len());
        if (int(8)?, int(12)?) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            kept.extend(&rest[..whole]);
        }
        rest = &rest[whole..];
    }
    Some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_bytes_are_left_out() {
        let all = Pieces(vec![[100, 10], [200, 0], [300, 5]]);
        assert_eq!(all.total(), Some(15));
        assert_eq!(all.after(0).0, [[100, 10], [300, 5]]);
        assert_eq!(all.after(4).0, [[104, 6], [300, 5]]);
        assert_eq!(all.after(10).0, [[300, 5]]);
        assert_eq!(all.after(14).0, [[304, 1]]);
        assert_eq!(all.after(15).count(), 0);
        assert_eq!(Pieces(vec![[0, u64::MAX], [0, 1]]).total(), None);
    }

    #[test]
    fn descriptors_are_sent_once() {
        let item = |kind: i32, data: &[u8]| {
            let mut b = (16 + data.len() as u64).to_le_bytes().to_vec();
            b.extend(libc::SOL_SOCKET.to_le_bytes());
            b.extend(kind.to_le_bytes());
            b.extend(data);
            b.resize(b.len().next_multiple_of(8), 0);
            b
        };
        let (rights, own) = (item(libc::SCM_RIGHTS, &[1; 4]), item(libc::SCM_CREDENTIALS, &[2; 12]));
        assert_eq!(without_descriptors(&[&rights[..], &own].concat()).unwrap(), own);
        assert_eq!(without_descriptors(&[&own[..], &rights].concat()).unwrap(), own);
        assert_eq!(without_descriptors(&rights[..20]).unwrap(), []);
        assert_eq!(without_descriptors(&rights[..18]), None);
        assert_eq!(without_descriptors(&[]).unwrap(), []);
    }
}
