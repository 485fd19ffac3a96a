//! How the target's C library cancels threads (`pthread_cancel`).
//!
//! glibc before 2.41 cancels in the handler of a signal, wherever the thread is. In glibc from 2.41 on, and
//! in musl, the handler checks by an address whether the thread is about to wait, and does nothing in a
//! routine of whet. There the signal ends the call, as any signal with a handler does. Behind the call the
//! library checks whether the thread is to be cancelled. But the signal restarts calls (`SA_RESTART`). So a
//! transfer must not be restartable: see [`crate::finish`]. Waits with a timeout never are (`signal(7)`).
//!
//! LIMIT: the signal may come in the nanoseconds between a thread's return to user code and its call in the
//! routine. Then a wait continues until its timeout.

use crate::Process;
use crate::process::mapping_range;
use addr::ReadMemory;

/// The first minor version of glibc 2 that cancels by the address at which a call is made.
const CANCELS_BY_ADDRESS: u32 = 41;
/// The text before the minor version in glibc's constants.
const RELEASE: &[u8] = b"release version 2.";

/// Returns whether a thread in a waiting call is cancelled at any address; `false` unless the C library does
/// so for certain.
pub(crate) fn cancels_anywhere(process: &Process) -> bool {
    let maps = process.maps_text().unwrap_or_default();
    let minor = maps.lines().filter(|line| is_constants(line)).find_map(|line| {
        let bytes = process.bytes(mapping_range(line)?).ok()?;
        minor_version(&bytes)
    });
    minor.is_some_and(|minor| minor < CANCELS_BY_ADDRESS)
}

/// Returns whether a line of the mappings is that of glibc's constants. A replaced file is marked as deleted.
fn is_constants(line: &str) -> bool {
    let path = line.strip_suffix(" (deleted)").unwrap_or(line);
    let name = path.rsplit('/').next().unwrap_or_default();
    // Until 2.33 the file had the version in its name.
    let is_libc = name == "libc.so.6" || name.strip_prefix("libc-2.").is_some_and(|n| n.ends_with(".so"));
    is_libc && path.contains('/') && line.split(' ').nth(1) == Some("r--p")
}

/// Returns the minor version of glibc 2 from its constants.
fn minor_version(constants: &[u8]) -> Option<u32> {
    let from = constants.windows(RELEASE.len()).position(|w| w == RELEASE)? + RELEASE.len();
    let digits = constants[from..].iter().map(|&b| char::from(b)).take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_the_library_by_its_name() {
        let line = |perms: &str, path: &str| format!("7f00-7f10 {perms} 00000000 08:01 123 {path}");
        for path in ["/usr/lib/libc.so.6", "/lib/x86_64-linux-gnu/libc-2.31.so", "/lib/libc.so.6 (deleted)"] {
            assert!(is_constants(&line("r--p", path)), "{path}");
            assert!(!is_constants(&line("r-xp", path)), "{path}");
        }
        for path in
            ["/lib/ld-musl-x86_64.so.1", "/usr/lib/libcurl.so.4", "/lib/libc-2.31.so.bak", "", "libc.so.6"]
        {
            assert!(!is_constants(&line("r--p", path)), "{path}");
        }
    }

    #[test]
    fn the_version_is_in_the_constants() {
        assert_eq!(minor_version(b"x GNU C Library stable release version 2.36.\n"), Some(36));
        assert_eq!(minor_version(b"stable release version 2.41, by"), Some(41));
        assert_eq!(minor_version(b"stable release version 2."), None);
        assert_eq!(minor_version(b"musl libc"), None);
    }
}
