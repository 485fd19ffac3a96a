//! A target's memory as it was before whet: redirects of earlier generations are replaced by the original
//! bytes.

use addr::{Addr, Avma, ReadMemory, Unreadable};
use splice::{Installed, Record};

/// Reads other memory and puts original bytes where redirects are.
#[derive(Debug)]
pub struct Pristine<'a, M: ReadMemory> {
    under: &'a M,
    /// Redirects, sorted by address.
    records: Vec<Record>,
}

impl<'a, M: ReadMemory> Pristine<'a, M> {
    /// Creates a view without the redirects that `installed` lists.
    pub fn new(under: &'a M, installed: Option<&Installed>) -> Self {
        let mut records: Vec<Record> = installed.into_iter().flat_map(Installed::records).collect();
        records.sort_by_key(|r| (r.at, r.len));
        Self { under, records }
    }
}

impl<M: ReadMemory> ReadMemory for Pristine<'_, M> {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        self.under.read(at, buf)?;
        let end = at.add(buf.len() as u64);
        let first = self.records.partition_point(|r| r.range().end <= at && r.at.add(8) <= at);
        for r in self.records[first..].iter().take_while(|r| r.at < end) {
            put_back(r, at, buf);
        }
        Ok(())
    }
}

/// Puts one redirect's original bytes over the bytes of `buf` (read from `at`) that it covers.
fn put_back(r: &Record, at: Avma, buf: &mut [u8]) {
    for (i, &b) in r.old_bytes().iter().enumerate() {
        let o = r.at.add(i as u64).since(at).and_then(|o| usize::try_from(o).ok());
        if let Some(slot) = o.and_then(|o| buf.get_mut(o)) {
            *slot = b;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use splice::RedirectKind;

    #[test]
    fn any_overlap_reads_the_original_bytes() {
        let bytes = [0xe9u8; 32];
        let under = (Avma(0x1000), &bytes[..]);
        let record = Record {
            at: Avma(0x1008),
            kind: RedirectKind::Entry,
            len: 5,
            interior: 0,
            old: [1, 2, 3, 4, 5, 0, 0, 0],
            new: [0xe9; 8],
            mark: None,
        };
        let m = Pristine { under: &under, records: vec![record] };
        for from in 0x1000u64..0x1010 {
            for len in 1usize..16 {
                let mut got = vec![0; len];
                m.read(Avma(from), &mut got).unwrap();
                for (i, &b) in got.iter().enumerate() {
                    let at = from + i as u64;
                    let want = if (0x1008..0x100d).contains(&at) {
                        u8::try_from(at - 0x1007).unwrap()
                    } else {
                        0xe9
                    };
                    assert_eq!(b, want, "{from:#x}+{i}");
                }
            }
        }
    }
}
