//! One write of a change, and the later check whether the kernel lost it.

use crate::Error;
use addr::{Avma, AvmaRange};
use tracee::Process;

/// Bytes to write at an address, with the bytes that they replace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    pub at: Avma,
    pub before: Vec<u8>,
    pub now: Vec<u8>,
}

impl Write {
    /// Returns the written addresses.
    pub fn range(&self) -> AvmaRange {
        AvmaRange::with_len(self.at, self.now.len() as u64)
    }

    pub fn put(&self, process: &Process) -> Result<(), Error> {
        Ok(process.write(self.at, &self.now)?)
    }

    /// Returns whether the write was lost: all bytes that it changes are as before. Other bytes mean that the
    /// program or another tool has changed them since.
    fn is_lost(&self, found: &[u8]) -> bool {
        let bytes = self.before.iter().zip(&self.now).zip(found);
        let mut changed = bytes.filter(|((before, now), _)| before != now).peekable();
        changed.peek().is_some() && changed.all(|((before, _), found)| before == found)
    }
}

/// Checks that no write was lost. The threads may run again: a stop need not wait for this.
///
/// # Errors
/// [`Error::WriteLost`], [`Error::Tracee`].
pub fn check(process: &Process, writes: &[Write]) -> Result<(), Error> {
    let ranges: Vec<AvmaRange> = writes.iter().map(Write::range).collect();
    let found = process.read_many(&ranges)?;
    match writes.iter().zip(&found).find(|(write, found)| write.is_lost(found)) {
        Some((write, _)) => Err(Error::WriteLost { range: write.range() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_lost_only_where_all_is_as_before() {
        let write = Write { at: Avma(0x1000), before: vec![1, 2, 3, 4], now: vec![1, 9, 8, 4] };
        assert!(write.is_lost(&[1, 2, 3, 4]));
        assert!(write.is_lost(&[7, 2, 3, 7]), "the program has changed the bytes beside");
        assert!(!write.is_lost(&[1, 9, 8, 4]));
        assert!(!write.is_lost(&[1, 5, 8, 4]), "a tool has changed one of them since");
        assert!(!write.is_lost(&[1, 5, 5, 4]));
        let nothing = Write { now: write.before.clone(), ..write };
        assert!(!nothing.is_lost(&[1, 2, 3, 4]));
    }
}
