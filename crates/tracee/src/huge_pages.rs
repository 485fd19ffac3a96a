//! Finds which parts of a mapping are in huge pages.
//!
//! If the kernel can, it reports only these pages (`PAGEMAP_SCAN`, Linux 6.7). `smaps` instead counts all
//! pages of the process, with its `mmap_lock` held for each mapping. That takes 9 ns a page, so a second for
//! 400 GB, in which no thread of the process can map memory.

use crate::process::mapping_range;
use addr::{Avma, AvmaRange};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// `_IOWR('f', 16, struct pm_scan_arg)` (`include/uapi/linux/fs.h`).
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const PAGE: u64 = 4096;
/// The page is mapped by one entry of the page table's second level.
const PAGE_IS_HUGE: u64 = 1 << 6;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    /// The address where the scan ended.
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// Returns the huge pages in `range` of the process with this pagemap. The ends of `range` are page
/// boundaries.
///
/// # Errors
/// `ENOTTY` before Linux 6.7, `ESRCH` for a process that has no memory any more; other errors of the kernel.
pub fn scan(pagemap: &File, range: AvmaRange) -> io::Result<Vec<AvmaRange>> {
    // If a process was about to end when its pagemap was opened, there is no memory behind it. A read detects
    // that, while `do_pagemap_scan()` follows a null pointer there before Linux 6.16.
    if pagemap.read_at(&mut [0; 8], range.start.0 / PAGE * 8)? == 0 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    let mut found = Vec::new();
    let mut regions = [Region::default(); 64];
    let mut from = range.start.0;
    while from < range.end.0 {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: from,
            end: range.end.0,
            regions: regions.as_mut_ptr().expose_provenance() as u64,
            regions_len: regions.len() as u64,
            category_mask: PAGE_IS_HUGE,
            return_mask: PAGE_IS_HUGE,
            ..ScanArg::default()
        };
        // SAFETY: the kernel reads and writes one `pm_scan_arg` of the size stated in it, which lives on this
        // stack. It writes at most `regions_len` regions to the array of that length that `regions` points
        // to, and nothing else refers to this array meanwhile.
        let n = unsafe { libc::syscall(libc::SYS_ioctl, pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        let written = regions.get(..n).unwrap_or_default();
        found.extend(written.iter().map(|r| AvmaRange::new(Avma(r.start), Avma(r.end))));
        if arg.walk_end <= from {
            break;
        }
        from = arg.walk_end;
    }
    Ok(found)
}

/// As [`scan`], by the text of `smaps`. It states how much of a mapping is in huge pages, but not which part:
/// the first part of the range is assumed.
pub fn from_smaps(smaps: &str, range: AvmaRange) -> Vec<AvmaRange> {
    let bytes = bytes(smaps, range).min(range.len());
    if bytes == 0 { Vec::new() } else { vec![AvmaRange::with_len(range.start, bytes)] }
}

/// Lines of `smaps` about huge pages: of private memory, of a file in memory, and of another file.
const KINDS: [&str; 3] = ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"];

/// Returns how many bytes of the mappings that overlap `range` are in huge pages.
fn bytes(smaps: &str, range: AvmaRange) -> u64 {
    let mut inside = false;
    let mut sum = 0u64;
    for line in smaps.lines() {
        if let Some(r) = mapping_range(line) {
            inside = r.overlaps(&range);
        } else if inside && let Some(kb) = KINDS.iter().find_map(|kind| line.strip_prefix(kind)) {
            let kb: u64 = kb.trim().trim_end_matches(" kB").trim().parse().unwrap_or(0);
            sum = sum.saturating_add(kb.saturating_mul(1024));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: u64 = 2 << 20;

    /// The second and third of four huge pages are touched.
    #[test]
    fn scan_agrees_with_smaps() {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory in use.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                5 << 21,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        let first = at.cast::<u8>().wrapping_add(at.align_offset(1 << 21));
        // SAFETY: advice within the new mapping.
        unsafe { libc::madvise(first.cast(), 4 << 21, libc::MADV_HUGEPAGE) };
        let page = |n: u64| AvmaRange::with_len(Avma(first.addr() as u64 + n * HUGE), HUGE);
        for n in [1, 2] {
            // SAFETY: in the mapping, which can be written to.
            unsafe { first.wrapping_add(n << 21).write_volatile(1) };
        }
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let scanned = |from: u64, to: u64| scan(&pagemap, AvmaRange::new(page(from).start, page(to).start));
        match scanned(0, 4) {
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => println!("skipped: this kernel cannot scan"),
            _ if from_smaps(&smaps, page(0)).is_empty() => println!("skipped: no huge pages here"),
            whole => {
                let sum: u64 = whole.unwrap().iter().map(AvmaRange::len).sum();
                assert_eq!(sum, bytes(&smaps, page(0)));
                let each = [0, 1, 2, 3].map(|n| scanned(n, n + 1).unwrap());
                assert!(each[0].is_empty() && each[3].is_empty(), "{each:?}");
                // The kernel may have had one huge page and not two.
                assert!(each[1] == [page(1)] || each[2] == [page(2)], "{each:?}");
            }
        }
        // SAFETY: the whole mapping made above; nothing refers to it any more.
        unsafe { libc::munmap(at, 5 << 21) };
    }

    #[test]
    fn smaps_is_summed_over_the_range() {
        let smaps = "1000-3000 r-xp 0 00:00 0\nSize: 8 kB\nAnonHugePages:      2048 kB\n\
            3000-4000 rw-p 0 00:00 0 /a-b c\nAnonHugePages: 4 kB\n\
            5000-6000 r-xp 0 00:20 9 /c\nAnonHugePages: 0 kB\nShmemPmdMapped: 2048 kB\nFilePmdMapped: 2048 kB\n";
        assert_eq!(bytes(smaps, AvmaRange::new(Avma(0x2000), Avma(0x2001))), 2048 * 1024);
        assert_eq!(bytes(smaps, AvmaRange::new(Avma(0x2000), Avma(0x3001))), 2052 * 1024);
        assert_eq!(bytes(smaps, AvmaRange::new(Avma(0x4000), Avma(0x5000))), 0);
        assert_eq!(bytes(smaps, AvmaRange::new(Avma(0x5000), Avma(0x6000))), 4096 * 1024);
    }
}
