//! Little-endian numbers and strings, read from untrusted bytes.

/// Returns `N` bytes from `at`.
pub(crate) fn array<const N: usize>(b: &[u8], at: usize) -> Option<[u8; N]> {
    b.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    array(b, at).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    array(b, at).map(u32::from_le_bytes)
}

pub(crate) fn i32_at(b: &[u8], at: usize) -> Option<i32> {
    array(b, at).map(i32::from_le_bytes)
}

pub(crate) fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    array(b, at).map(u64::from_le_bytes)
}

/// Returns the bytes `offset..offset + len` of a file. Both numbers come from the file's headers.
pub(crate) fn slice(b: &[u8], offset: u64, len: u64) -> Option<&[u8]> {
    let from = usize::try_from(offset).ok()?;
    let to = from.checked_add(usize::try_from(len).ok()?)?;
    b.get(from..to)
}

/// The longest name that is read, in bytes. A table of a million entries may point a million times into one
/// endless string. The longest names of C++ with many templates are about half as long.
pub(crate) const MAX_NAME: usize = 1 << 16;

/// Returns the NUL-terminated string at `at`; `None` if it does not end within [`MAX_NAME`] bytes or is not
/// UTF-8.
pub(crate) fn c_str(b: &[u8], at: usize) -> Option<&str> {
    let rest = b.get(at..)?;
    let len = rest.iter().take(MAX_NAME).position(|&c| c == 0)?;
    std::str::from_utf8(rest.get(..len)?).ok()
}
