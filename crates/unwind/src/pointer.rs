//! The bytes of an exception table, fetched on demand, and the encoded pointers in them.

use crate::Error;
use addr::{Addr, Avma, ReadMemory};

/// The largest size of an exception table, in bytes. Tables hold about ten bytes per call, so this is far
/// above any function that a compiler finishes. A larger claim is a fault; it must not cause unbounded reads
/// or memory use.
const MAX_SPAN: u64 = 4 << 20;

/// The size of one fetch, in bytes. A power of two, at most a page, so fetching ahead touches no other page.
const CHUNK: u64 = 512;

/// "Absent" in place of an encoding (`DW_EH_PE_omit`).
pub(crate) const OMIT: u8 = 0xff;
/// A full address (`DW_EH_PE_absptr`).
pub(crate) const ABSPTR: u8 = 0x00;
/// An unsigned LEB128 number (`DW_EH_PE_uleb128`).
pub(crate) const ULEB128: u8 = 0x01;

/// Bit of an encoding: the value is the address of the pointer, not the pointer (`DW_EH_PE_indirect`).
const INDIRECT: u8 = 0x80;
/// The bits of an encoding that define the base of the value.
const APPLICATION: u8 = 0x70;
/// The bits of an encoding that define the format of the value.
const FORMAT: u8 = 0x0f;

/// The bytes of one table from its start; grows on demand.
pub(crate) struct Window<'a> {
    mem: &'a dyn ReadMemory,
    at: Avma,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    pub(crate) fn new(mem: &'a dyn ReadMemory, at: Avma) -> Self {
        Self { mem, at, bytes: Vec::new() }
    }

    /// Returns a fault at `offset` of this table.
    pub(crate) fn fault(&self, offset: u64, what: &'static str) -> Error {
        Error::Lsda { at: self.at, offset, what }
    }

    /// Returns an error for an encoding that this table must not have.
    pub(crate) fn bad_encoding(&self, encoding: u8) -> Error {
        Error::Encoding { at: self.at, encoding }
    }

    /// Returns the bytes `offset..offset + len`.
    pub(crate) fn get(&mut self, offset: u64, len: u64) -> Result<&[u8], Error> {
        let too_large = self.fault(offset, "it is too large");
        let end = offset.checked_add(len).filter(|&e| e <= MAX_SPAN).ok_or(too_large.clone())?;
        if end > self.bytes.len() as u64 {
            self.grow(end)?;
        }
        let from = usize::try_from(offset).map_err(|_| too_large.clone())?;
        let to = usize::try_from(end).map_err(|_| too_large.clone())?;
        self.bytes.get(from..to).ok_or(too_large)
    }

    fn grow(&mut self, end: u64) -> Result<(), Error> {
        let have = self.bytes.len();
        let last = Error::OutsideAddressSpace { at: self.at, len: end };
        let stop = self.at.raw().checked_add(end).ok_or(last.clone())?;
        let ahead = stop.checked_next_multiple_of(CHUNK).and_then(|s| s.checked_sub(self.at.raw()));
        let from = self.at.add(have as u64);
        for want in ahead.into_iter().chain([end]) {
            let want = usize::try_from(want).map_err(|_| last.clone())?;
            self.bytes.resize(want, 0);
            if let Some(fresh) = self.bytes.get_mut(have..)
                && self.mem.read(from, fresh).is_ok()
            {
                return Ok(());
            }
        }
        self.bytes.truncate(have);
        Err(Error::Unreadable(addr::Unreadable { at: from, len: end - have as u64 }))
    }
}

/// A place in a table.
pub(crate) struct Cursor<'w, 'a> {
    pub(crate) window: &'w mut Window<'a>,
    /// The offset from the table's start, in bytes.
    pub(crate) offset: u64,
}

impl Cursor<'_, '_> {
    pub(crate) fn u8(&mut self) -> Result<u8, Error> {
        Ok(self.fixed::<1>()?[0])
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut out = [0; N];
        out.copy_from_slice(self.window.get(self.offset, N as u64)?);
        self.offset += N as u64;
        Ok(out)
    }

    /// Reads the seven-bit groups of a LEB128 number, its width in bits and its last byte.
    fn groups(&mut self) -> Result<(u64, u32, u8), Error> {
        let start = self.offset;
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.u8()?;
            // The tenth byte has room for one bit; its other bits may only repeat the sign.
            if shift == 63 && !matches!(byte, 0x00 | 0x01 | 0x7f) {
                break;
            }
            value |= u64::from(byte & 0x7f).wrapping_shl(shift);
            if byte & 0x80 == 0 {
                return Ok((value, shift + 7, byte));
            }
        }
        Err(self.window.fault(start, "a number is longer than 64 bits"))
    }

    pub(crate) fn uleb(&mut self) -> Result<u64, Error> {
        let start = self.offset;
        match self.groups()? {
            (_, 70.., 0x7f) => Err(self.window.fault(start, "a number is longer than 64 bits")),
            (value, ..) => Ok(value),
        }
    }

    pub(crate) fn sleb(&mut self) -> Result<i64, Error> {
        let start = self.offset;
        match self.groups()? {
            (_, 70.., 0x01) => Err(self.window.fault(start, "a number is longer than 64 bits")),
            (value, bits, last) if bits < 64 && last & 0x40 != 0 => {
                Ok((value | (u64::MAX << bits)).cast_signed())
            }
            (value, ..) => Ok(value.cast_signed()),
        }
    }

    /// Reads a number in the format of `encoding`'s low bits, with no base and no indirection.
    pub(crate) fn value(&mut self, encoding: u8) -> Result<u64, Error> {
        Ok(match encoding & FORMAT {
            0x00 | 0x04 | 0x0c => u64::from_le_bytes(self.fixed()?),
            0x01 => self.uleb()?,
            0x02 => u64::from(u16::from_le_bytes(self.fixed()?)),
            0x03 => u64::from(u32::from_le_bytes(self.fixed()?)),
            0x09 => self.sleb()?.cast_unsigned(),
            0x0a => i64::from(i16::from_le_bytes(self.fixed()?)).cast_unsigned(),
            0x0b => i64::from(i32::from_le_bytes(self.fixed()?)).cast_unsigned(),
            _ => return Err(self.window.bad_encoding(encoding)),
        })
    }

    /// Reads a pointer; `None` if the stored value, or the slot it goes through, is zero: a null pointer has
    /// no base.
    ///
    /// `func` is the start of the table's function. Text- and data-relative pointers have no defined base on
    /// x86-64 Linux and are refused.
    pub(crate) fn pointer(&mut self, encoding: u8, func: Avma) -> Result<Option<Avma>, Error> {
        let application = encoding & APPLICATION;
        if application == 0x50 {
            // `DW_EH_PE_aligned` excludes other bits: an address at the next multiple of its size.
            if encoding != 0x50 {
                return Err(self.window.bad_encoding(encoding));
            }
            let here = self.window.at.add(self.offset).raw();
            self.offset += here.wrapping_neg() % 8;
            let raw = self.value(ABSPTR)?;
            return Ok((raw != 0).then_some(Avma(raw)));
        }
        let base = match application {
            0x00 => Avma(0),
            0x10 => self.window.at.add(self.offset),
            0x40 => func,
            _ => return Err(self.window.bad_encoding(encoding)),
        };
        let raw = self.value(encoding)?;
        if raw == 0 {
            return Ok(None);
        }
        let mut to = base.add(raw);
        if encoding & INDIRECT != 0 {
            to = Avma(self.window.mem.u64(to)?);
        }
        Ok((to.raw() != 0).then_some(to))
    }
}

/// Returns the size of a pointer with this encoding, in bytes; `None` if it has no fixed size.
pub(crate) fn fixed_size(encoding: u8) -> Option<u64> {
    if encoding & APPLICATION == 0x50 {
        return None;
    }
    match encoding & FORMAT {
        0x00 | 0x04 | 0x0c => Some(8),
        0x02 | 0x0a => Some(2),
        0x03 | 0x0b => Some(4),
        _ => None,
    }
}

/// Returns whether this encoding is of a plain number: without a base and not indirect.
pub(crate) fn is_plain(encoding: u8) -> bool {
    encoding & (APPLICATION | INDIRECT) == 0
}
