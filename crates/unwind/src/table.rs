//! All FDEs of one `.eh_frame`.
//!
//! Sound tables are read completely. Unsound entries are left out and counted. The work stays linear in the
//! section, whatever its bytes claim: no byte belongs to two FDEs, and parsing decodes each CIE once.

use crate::rows::{State, evaluate};
use crate::{Error, Fde, Row};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use gimli::{
    BaseAddresses, CommonInformationEntry, EhFrame, EhFrameOffset, EndianSlice, LittleEndian, UnwindSection,
};
use std::collections::{BTreeSet, HashMap};
use std::fmt;

pub(crate) type Bytes<'a> = EndianSlice<'a, LittleEndian>;
pub(crate) type Cie<'a> = CommonInformationEntry<Bytes<'a>>;

/// The longest accepted CIE, in bytes (real ones have about 30). A CIE is decoded again for each FDE whose
/// rows are requested.
const MAX_CIE: usize = 4096;

/// One module's `.eh_frame`, indexed by address.
#[derive(Clone, Default)]
pub struct FrameTable {
    bytes: Vec<u8>,
    at: Avma,
    fdes: Vec<Fde>,
    skipped: usize,
    overlaps: usize,
}

impl fmt::Debug for FrameTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameTable")
            .field("at", &self.at)
            .field("len", &self.bytes.len())
            .field("fdes", &self.fdes.len())
            .field("skipped", &self.skipped)
            .field("overlaps", &self.overlaps)
            .finish()
    }
}

/// The data that all FDEs of one CIE share.
struct Shared<'a> {
    cie: Cie<'a>,
    personality: Option<Avma>,
}

impl FrameTable {
    /// Reads the section `eh_frame` at `at`. It ends at its zero terminator or with the bytes, so the bytes
    /// may continue past the section. `mem` is read only for the slots of indirect pointers.
    ///
    /// FDEs that cannot be understood are left out and counted by [`skipped`](Self::skipped). These include
    /// empty FDEs, those whose return address column is not 16, and those whose personality cannot be read.
    ///
    /// # Errors
    /// [`Error::OutsideAddressSpace`] if the bytes do not fit at `at`.
    pub fn parse(eh_frame: Vec<u8>, at: Avma, mem: &dyn ReadMemory) -> Result<FrameTable, Error> {
        FrameTable::collect(eh_frame, at, mem, |reader| reader.all())
    }

    /// Works like [`parse`](Self::parse), but reads only the FDEs at these addresses: those in the search
    /// table of `.eh_frame_hdr`, which unwinders use. The section may also hold FDEs of code that is gone,
    /// and zero words between: llvm-bolt's new section has its own FDEs, a terminator, and then all old ones.
    ///
    /// # Errors
    /// The errors of [`parse`](Self::parse).
    pub fn parse_listed(
        eh_frame: Vec<u8>,
        at: Avma,
        listed: &[Avma],
        mem: &dyn ReadMemory,
    ) -> Result<FrameTable, Error> {
        let rising: BTreeSet<Avma> = listed.iter().copied().collect();
        FrameTable::collect(eh_frame, at, mem, |reader| reader.listed(at, rising))
    }

    fn collect(
        mut eh_frame: Vec<u8>,
        at: Avma,
        mem: &dyn ReadMemory,
        read: impl FnOnce(&mut Reader<'_>) -> usize,
    ) -> Result<FrameTable, Error> {
        let len = eh_frame.len() as u64;
        if at.raw().checked_add(len).is_none() {
            return Err(Error::OutsideAddressSpace { at, len });
        }
        let (section, bases) = section(&eh_frame, at);
        let bytes = &eh_frame[..];
        let mut reader =
            Reader { bytes, mem, section, bases, cies: HashMap::new(), fdes: Vec::new(), skipped: 0 };
        let used = read(&mut reader);
        let Reader { mut fdes, skipped, .. } = reader;
        eh_frame.truncate(used);
        eh_frame.shrink_to_fit();
        fdes.sort_by_key(|f| (f.range.start, f.offset));
        let overlaps = fdes.windows(2).filter(|w| w[0].range.overlaps(&w[1].range)).count();
        Ok(FrameTable { bytes: eh_frame, at, fdes, skipped, overlaps })
    }

    /// Returns the bytes from the section's start to the end of the last entry that was read.
    #[must_use]
    pub fn extent(&self) -> AvmaRange {
        AvmaRange::with_len(self.at, self.bytes.len() as u64)
    }

    /// Returns all FDEs by rising start.
    #[must_use]
    pub fn fdes(&self) -> &[Fde] {
        &self.fdes
    }

    /// Returns the number of FDEs that were left out because they could not be understood.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Returns the number of FDEs that overlap the next one.
    #[must_use]
    pub fn overlaps(&self) -> usize {
        self.overlaps
    }

    /// Returns the FDE of an instruction. If FDEs overlap, returns the last that starts at or before it, as
    /// unwinders do.
    #[must_use]
    pub fn find(&self, pc: Avma) -> Option<&Fde> {
        let after = self.fdes.partition_point(|f| f.range.start <= pc);
        self.fdes.get(after.checked_sub(1)?).filter(|f| f.range.contains(pc))
    }

    /// Returns the rules of all instructions of `fde` (an FDE of this table): rising, without gaps, covering
    /// its range; neighbours differ.
    ///
    /// # Errors
    /// [`Error::NoFde`], [`Error::Entry`] or [`Error::Program`]: the frame cannot be carried over.
    pub fn rows(&self, fde: &Fde) -> Result<Vec<Row>, Error> {
        let (section, bases) = section(&self.bytes, self.at);
        let (entry, cie) = self.entries(&section, &bases, fde)?;
        let state = State::initial(&self.bytes, fde, &cie, cie.instructions(&section, &bases))?;
        evaluate(&self.bytes, fde, &cie, &state, entry.instructions(&section, &bases))
    }

    /// Returns the rule at the start of `fde` according to its CIE alone: on x86-64, for a usual CIE, CFA =
    /// rsp + 8 and the return address just below.
    ///
    /// # Errors
    /// The errors of [`rows`](Self::rows).
    pub fn initial_row(&self, fde: &Fde) -> Result<Row, Error> {
        let (section, bases) = section(&self.bytes, self.at);
        let (_, cie) = self.entries(&section, &bases, fde)?;
        State::initial(&self.bytes, fde, &cie, cie.instructions(&section, &bases))?.row(fde, fde.range)
    }

    fn entries<'a>(
        &self,
        section: &EhFrame<Bytes<'a>>,
        bases: &BaseAddresses,
        fde: &Fde,
    ) -> Result<(gimli::FrameDescriptionEntry<Bytes<'a>>, Cie<'a>), Error> {
        let none = Error::NoFde { offset: fde.offset };
        let offset = usize::try_from(fde.offset).map_err(|_| none.clone())?;
        // A key of another table could point anywhere; this check also keeps the results of `parse` for the
        // entry.
        if self.find_exact(fde).is_none() {
            return Err(none);
        }
        let entry = section
            .fde_from_offset(bases, EhFrameOffset(offset), EhFrame::cie_from_offset)
            .map_err(|source| Error::Entry { offset: fde.offset, source })?;
        let cie = entry.cie().clone();
        Ok((entry, cie))
    }

    fn find_exact(&self, fde: &Fde) -> Option<&Fde> {
        let key = (fde.range.start, fde.offset);
        let at = self.fdes.binary_search_by_key(&key, |f| (f.range.start, f.offset)).ok()?;
        self.fdes.get(at).filter(|f| *f == fde)
    }
}

fn section(bytes: &[u8], at: Avma) -> (EhFrame<Bytes<'_>>, BaseAddresses) {
    let mut section = EhFrame::new(bytes, LittleEndian);
    section.set_address_size(8);
    (section, BaseAddresses::default().set_eh_frame(at.raw()))
}

/// The extent of one entry.
enum Entry {
    /// A length of zero.
    Terminator,
    /// An entry that runs past the end of the section.
    Cut,
    /// `id` is 0 for a CIE; `None` if the entry is too short to have one. `end` is the next entry's offset.
    Whole { id: Option<u32>, end: usize },
}

impl Entry {
    fn at(bytes: &[u8], at: usize) -> Option<Entry> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let short = word(at)?;
        if short == 0 {
            return Some(Entry::Terminator);
        }
        let (head, len) = if short == u32::MAX {
            match bytes.get(at + 4..).and_then(|b| b.first_chunk()) {
                Some(long) => (12, u64::from_le_bytes(*long)),
                None => return Some(Entry::Cut),
            }
        } else {
            (4, u64::from(short))
        };
        let body = at + head;
        match usize::try_from(len).ok().and_then(|l| body.checked_add(l)).filter(|&e| e <= bytes.len()) {
            Some(end) => Some(Entry::Whole { id: (len >= 4).then(|| word(body)).flatten(), end }),
            None => Some(Entry::Cut),
        }
    }
}

/// Collects the FDEs of a section.
struct Reader<'a> {
    bytes: &'a [u8],
    mem: &'a dyn ReadMemory,
    section: EhFrame<Bytes<'a>>,
    bases: BaseAddresses,
    /// CIEs by their offsets; `None` if their FDEs cannot be used.
    cies: HashMap<usize, Option<Shared<'a>>>,
    fdes: Vec<Fde>,
    skipped: usize,
}

impl<'a> Reader<'a> {
    /// Reads all entries up to the terminator; returns the size of the section without it.
    fn all(&mut self) -> usize {
        let mut at = 0;
        while let Some(entry) = Entry::at(self.bytes, at) {
            let Entry::Whole { id, end } = entry else {
                // The length leaves the section, so the next entry cannot be found.
                self.skipped += usize::from(matches!(entry, Entry::Cut));
                break;
            };
            if id != Some(0) {
                self.take(at);
            }
            at = end;
        }
        at
    }

    /// Reads the FDEs at these addresses in a section at `base`; returns the end of the last. An entry that
    /// begins inside another is rejected, so no byte is read for more than one entry.
    fn listed(&mut self, base: Avma, rising: BTreeSet<Avma>) -> usize {
        let mut last = 0;
        for fde in rising {
            let offset = fde.since(base).and_then(|o| usize::try_from(o).ok()).filter(|o| *o >= last);
            match offset.and_then(|at| Some((at, Entry::at(self.bytes, at)?))) {
                Some((at, Entry::Whole { id, end })) if id != Some(0) => {
                    self.take(at);
                    last = end;
                }
                _ => self.skipped += 1,
            }
        }
        last
    }

    fn take(&mut self, offset: usize) {
        match self.fde(offset) {
            Some(fde) => self.fdes.push(fde),
            None => self.skipped += 1,
        }
    }

    fn fde(&mut self, offset: usize) -> Option<Fde> {
        let Reader { bytes, mem, section, bases, cies, .. } = self;
        let partial = section.partial_fde_from_offset(bases, EhFrameOffset(offset)).ok()?;
        let of = partial.cie_offset().0;
        let shared = cies.entry(of).or_insert_with(|| share(section, bases, bytes, of, *mem)).as_ref()?;
        let entry = partial.parse(|_, _, _| Ok(shared.cie.clone())).ok()?;
        let end = entry.initial_address().checked_add(entry.len())?;
        if entry.len() == 0 {
            return None;
        }
        let own = entry_range(bases, offset, entry.entry_len());
        let lsda = match entry.lsda() {
            Some(pointer) => resolve(pointer, own, *mem)?,
            None => None,
        };
        Some(Fde {
            range: AvmaRange::new(Avma(entry.initial_address()), Avma(end)),
            personality: shared.personality,
            lsda,
            signal_frame: entry.is_signal_trampoline(),
            offset: offset as u64,
        })
    }
}

/// Decodes the CIE at `offset`; `None` if its FDEs cannot be used.
fn share<'a>(
    section: &EhFrame<Bytes<'a>>,
    bases: &BaseAddresses,
    bytes: &[u8],
    offset: usize,
    mem: &dyn ReadMemory,
) -> Option<Shared<'a>> {
    let Entry::Whole { id: Some(0), end } = Entry::at(bytes, offset)? else { return None };
    if end - offset > MAX_CIE {
        return None;
    }
    let cie = section.cie_from_offset(bases, EhFrameOffset(offset)).ok()?;
    if cie.return_address_register() != gimli::X86_64::RA {
        return None;
    }
    let own = entry_range(bases, offset, cie.entry_len());
    let personality = match cie.personality() {
        Some(pointer) => resolve(pointer, own, mem)?,
        None => None,
    };
    Some(Shared { cie, personality })
}

/// Returns the addresses of an entry's own bytes (`len` as the entry states it, without the length field).
/// The end must be exact, because the exception tables that the section's last entry names may follow
/// directly. 64-bit lengths, which no compiler writes here, are recognized by their size.
fn entry_range(bases: &BaseAddresses, offset: usize, len: usize) -> AvmaRange {
    let at = bases.eh_frame.section.unwrap_or(0).saturating_add(offset as u64);
    let (len, wide) = (len as u64, len as u64 >= 0xffff_fff0);
    AvmaRange::with_len(Avma(at), len.saturating_add(if wide { 12 } else { 4 }))
}

/// Returns the resolved pointer: `Some(None)` for a null pointer, `None` if it cannot be read.
///
/// A stored zero means null, whatever its base, but the decoder has already added the base. A pc-relative
/// null becomes the address of its own field, and no real object lies inside the entry that names it.
fn resolve(pointer: gimli::Pointer, own: AvmaRange, mem: &dyn ReadMemory) -> Option<Option<Avma>> {
    let raw = Avma(pointer.pointer());
    if raw.raw() == 0 || own.contains(raw) {
        return Some(None);
    }
    let to = match pointer {
        gimli::Pointer::Direct(_) => raw,
        gimli::Pointer::Indirect(_) => Avma(mem.u64(raw).ok()?),
    };
    Some((to.raw() != 0).then_some(to))
}
