//! Writes a clone's exception table.

use crate::leb::put_uleb;
use crate::pointer::{ABSPTR, OMIT, ULEB128};
use crate::{CallSite, Error, Lsda};
use addr::{Addr, Avma};

impl Lsda {
    /// Returns the table of a clone that begins at `clone_start`. `self.call_sites` are in clone addresses,
    /// in any order. Code outside them stays outside, so an exception from there still ends in
    /// `std::terminate`. Landing pads stay in the original code, at any distance.
    ///
    /// The bytes may lie at any address, unaligned. The landing pad base is stated, because the default would
    /// be the clone's start. The base lies one byte below the lowest pad, because distance 0 means that there
    /// is no pad. It is never 0, which libc++abi treats as absent. Types are full addresses, so they reach
    /// any distance. Call sites are LEB128. Equal neighbours are merged.
    ///
    /// # Errors
    /// [`Error::CallSite`] for call sites that overlap or lie before the clone, [`Error::NullPad`].
    pub fn write(&self, clone_start: Avma) -> Result<Vec<u8>, Error> {
        let sites = merged(&self.call_sites)?;
        let base = match sites.iter().filter_map(|s| s.landing_pad).min() {
            // The base must not be 0 either.
            Some(lowest) => Some(lowest.raw().checked_sub(1).filter(|&b| b != 0).ok_or(Error::NullPad)?),
            None => None,
        };

        let mut records = Vec::with_capacity(sites.len() * 8);
        for site in &sites {
            let start = site.range.start.since(clone_start).ok_or(Error::CallSite { site: site.range })?;
            put_uleb(&mut records, start);
            put_uleb(&mut records, site.range.len());
            let pad = site.landing_pad.zip(base).map_or(0, |(pad, base)| pad.raw() - base);
            put_uleb(&mut records, pad);
            put_uleb(&mut records, site.action);
        }

        // From the call site encoding on: all bytes between the header and the type base.
        let mut rest = vec![ULEB128];
        put_uleb(&mut rest, records.len() as u64);
        rest.extend_from_slice(&records);
        rest.extend_from_slice(&self.actions);
        for ty in self.types.iter().rev() {
            rest.extend_from_slice(&ty.map_or(0, |t| t.raw()).to_le_bytes());
        }

        let mut out = Vec::with_capacity(rest.len() + self.filters.len() + 24);
        match base {
            Some(base) => {
                out.push(ABSPTR);
                out.extend_from_slice(&base.to_le_bytes());
            }
            None => out.push(OMIT),
        }
        if self.types.is_empty() && self.filters.is_empty() {
            out.push(OMIT);
        } else {
            out.push(ABSPTR);
            put_uleb(&mut out, rest.len() as u64);
        }
        out.extend_from_slice(&rest);
        out.extend_from_slice(&self.filters);
        Ok(out)
    }
}

/// Returns the call sites by rising address, without empty ones; touching equal ones are merged.
fn merged(sites: &[CallSite]) -> Result<Vec<CallSite>, Error> {
    let mut sorted: Vec<CallSite> = sites.iter().filter(|s| !s.range.is_empty()).copied().collect();
    sorted.sort_by_key(|s| s.range.start);
    let mut out: Vec<CallSite> = Vec::with_capacity(sorted.len());
    for site in sorted {
        match out.last_mut() {
            Some(last) if site.range.start < last.range.end => {
                return Err(Error::CallSite { site: site.range });
            }
            Some(last)
                if site.range.start == last.range.end
                    && site.landing_pad == last.landing_pad
                    && site.action == last.action =>
            {
                last.range.end = site.range.end;
            }
            _ => out.push(site),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::AvmaRange;

    fn site(start: u64, end: u64, pad: Option<u64>, action: u64) -> CallSite {
        let range = AvmaRange::new(Avma(start), Avma(end));
        CallSite { range, landing_pad: pad.map(Avma), action }
    }

    fn lsda(call_sites: Vec<CallSite>) -> Lsda {
        Lsda { call_sites, actions: Vec::new(), types: Vec::new(), filters: Vec::new() }
    }

    #[test]
    fn bytes_of_a_small_table() {
        let table = Lsda {
            actions: vec![1, 0],
            types: vec![Some(Avma(0x1122)), None],
            filters: vec![2, 0],
            // Not in order; the second and third are equal.
            call_sites: vec![
                site(0x1020, 0x1030, None, 0),
                site(0x1004, 0x1008, Some(0x9000), 1),
                site(0x1008, 0x100c, Some(0x9000), 1),
            ],
        };
        let mut want = vec![0x00, 0xff, 0x8f, 0, 0, 0, 0, 0, 0]; // Pads from 0x8fff.
        want.extend([0x00, 28]); // Types: full addresses, ending 28 bytes on.
        want.extend([0x01, 8, 4, 8, 1, 1, 0x20, 0x10, 0, 0]); // Call sites.
        want.extend([1, 0]); // Actions.
        want.extend([0; 8]); // Type 2.
        want.extend([0x22, 0x11, 0, 0, 0, 0, 0, 0]); // Type 1.
        want.extend([2, 0]); // Specifications.
        assert_eq!(table.write(Avma(0x1000)).unwrap(), want);
    }

    #[test]
    fn without_pads_and_types_both_are_omitted() {
        let table = lsda(vec![site(0x1000, 0x1001, None, 0)]);
        assert_eq!(table.write(Avma(0x1000)).unwrap(), [0xff, 0xff, 1, 4, 0, 1, 0, 0]);
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let write = |sites| lsda(sites).write(Avma(0x1000));
        let overlap = write(vec![site(0x1000, 0x1008, None, 0), site(0x1007, 0x1009, None, 0)]);
        assert!(matches!(overlap, Err(Error::CallSite { .. })));
        assert!(matches!(write(vec![site(0xfff, 0x1008, None, 0)]), Err(Error::CallSite { .. })));
        assert_eq!(write(vec![site(0x1000, 0x1008, Some(0), 0)]), Err(Error::NullPad));
        assert_eq!(write(vec![site(0x1000, 0x1008, Some(1), 0)]), Err(Error::NullPad));
    }
}
