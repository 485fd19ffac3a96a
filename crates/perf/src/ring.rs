//! The buffer into which the kernel writes records, and from which this process reads them.

use perf_event_open_sys::bindings::perf_event_mmap_page;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of a small page on x86-64. Bytes.
pub(crate) const PAGE: usize = 4096;

/// A mapped buffer: one control page, then a power of two of data pages.
#[derive(Debug)]
pub(crate) struct Ring {
    base: NonNull<u8>,
    data_len: usize,
}

// SAFETY: the mapping belongs to this value alone and to no particular thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the buffer of an event. `pages` is a power of two.
    pub(crate) fn map(event: &OwnedFd, pages: usize) -> io::Result<Self> {
        let data_len = pages.checked_mul(PAGE).ok_or(io::ErrorKind::InvalidInput)?;
        let len = data_len.checked_add(PAGE).ok_or(io::ErrorKind::InvalidInput)?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, event.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { base, data_len })
    }

    /// Moves all available records to the end of `out`, and returns their space to the kernel.
    pub(crate) fn take(&mut self, out: &mut Vec<u8>) {
        let page = self.base.as_ptr().cast::<perf_event_mmap_page>();
        // SAFETY: `page` is mapped and aligned to a page; only an address is computed.
        let head_at = unsafe { &raw mut (*page).data_head };
        // SAFETY: as above.
        let tail_at = unsafe { &raw mut (*page).data_tail };
        // SAFETY: aligned, mapped as long as `self`, and only accessed atomically here; the kernel writes it
        // in one store.
        let head = unsafe { AtomicU64::from_ptr(head_at) };
        // SAFETY: as above; only this side writes it.
        let tail = unsafe { AtomicU64::from_ptr(tail_at) };
        // Records up to `head` are complete: the kernel stores it after them, and this load orders their
        // reads behind it.
        let upto = head.load(Ordering::Acquire);
        for part in parts(tail.load(Ordering::Relaxed), upto, self.data_len) {
            // SAFETY: `part` is within the data pages, which begin one page after `base`.
            let from = unsafe { self.base.as_ptr().add(PAGE + part.start) };
            // SAFETY: mapped for `part.len()` bytes and initialized (zeroed) by the kernel. The kernel does
            // not write them until the tail has passed them.
            let bytes = unsafe { std::slice::from_raw_parts(from, part.len()) };
            out.extend_from_slice(bytes);
        }
        // The kernel may overwrite bytes before the tail: the copies must come first.
        tail.store(upto, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`; no borrow of it is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.data_len + PAGE) };
    }
}

/// Returns the ranges of the records between two ever-growing positions in a buffer of `len` bytes: one part
/// or two.
fn parts(tail: u64, head: u64, len: usize) -> [Range<usize>; 2] {
    let used = usize::try_from(head.wrapping_sub(tail)).unwrap_or(usize::MAX);
    // More than fits can only be an error of the kernel; reading nothing skips it.
    if used > len || len == 0 {
        return [0..0, 0..0];
    }
    let start = usize::try_from(tail % len as u64).unwrap_or(0);
    let first = used.min(len - start);
    [start..start + first, 0..used - first]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_wrap_at_the_end() {
        assert_eq!(parts(0, 0, 16), [0..0, 0..0]);
        assert_eq!(parts(16, 24, 16), [0..8, 0..0]);
        assert_eq!(parts(24, 40, 16), [8..16, 0..8]);
        assert_eq!(parts(8, 24, 16), [8..16, 0..8]);
        assert_eq!(parts(0, 17, 16), [0..0, 0..0]);
        assert_eq!(parts(u64::MAX - 7, 8, 16), [8..16, 0..8]);
    }

    #[test]
    fn written_bytes_are_read_back() {
        arbtest::arbtest(|u| {
            let len = 8usize << u.int_in_range(0..=5)?;
            let mut ring = vec![0u8; len];
            let start: u64 = u.arbitrary()?;
            let (mut head, mut tail) = (start, start);
            for _ in 0..u.int_in_range(0..=20)? {
                let sent: Vec<u8> = u.arbitrary()?;
                let sent = &sent[..sent.len().min(len)];
                for &b in sent {
                    ring[usize::try_from(head % len as u64).unwrap()] = b;
                    head = head.wrapping_add(1);
                }
                let got: Vec<u8> =
                    parts(tail, head, len).into_iter().flat_map(|r| ring[r].to_vec()).collect();
                assert_eq!(got, sent);
                tail = head;
            }
            Ok(())
        })
        .budget_ms(300);
    }
}
