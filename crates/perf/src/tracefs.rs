//! Numbers of the kernel's tracepoints.

use std::ffi::CStr;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::{fs, fs::File};

/// The directories where distributions mount the file system with these numbers.
const MOUNTED: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// `FSCONFIG_CMD_CREATE` of linux/mount.h.
const CREATE: libc::c_ulong = 6;

/// Returns the number of a tracepoint (`group/name`) for `perf_event_open`. If the file system is not
/// mounted, it is mounted invisibly to other programs for the time of the read; that needs CAP_SYS_ADMIN.
pub(crate) fn tracepoint(name: &str) -> io::Result<u64> {
    let file = format!("events/{name}/id");
    let text = MOUNTED.iter().find_map(|root| fs::read_to_string(Path::new(root).join(&file)).ok());
    let text = text.map_or_else(|| read_unmounted(&file), Ok)?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

fn read_unmounted(file: &str) -> io::Result<String> {
    let root = mount_unseen(c"tracefs")?;
    let mut text = String::new();
    // The descriptor is a directory, and /proc leads into it although it is part of no tree.
    File::open(format!("/proc/self/fd/{}/{file}", root.as_raw_fd()))?.read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the root of a file system of this kind, attached to no directory, read-only; it vanishes with the
/// descriptor.
fn mount_unseen(kind: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: a null-terminated string, and flags; returns a new descriptor or -1.
    let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), libc::FD_CLOEXEC) })?;
    let (fd, none) = (context.as_raw_fd(), std::ptr::null::<libc::c_char>());
    // SAFETY: a descriptor of the right kind, and a command without operands.
    if unsafe { libc::syscall(libc::SYS_fsconfig, fd, CREATE, none, none, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    // SAFETY: a descriptor of the right kind, and flags; returns a new descriptor or -1.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, fd, libc::FD_CLOEXEC, attributes) })
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(fd) {
        // SAFETY: the kernel has just created this descriptor, and it has no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracepoints_have_numbers() {
        let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
        let before = mounts();
        match tracepoint("raw_syscalls/sys_enter") {
            Ok(id) => assert!(id > 0),
            Err(e) => assert_eq!(e.kind(), io::ErrorKind::PermissionDenied, "{e}"),
        }
        assert!(tracepoint("raw_syscalls/no_such").is_err());
        assert_eq!(mounts(), before);
    }
}
