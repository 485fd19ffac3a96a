//! Numbers of the kernel's tracepoints.

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::ffi::CStr;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::{fs, fs::File};

/// The directories where distributions mount the file system with these numbers.
const MOUNTED: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

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
    use MountAttrFlags as Attr;
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = Attr::MOUNT_ATTR_RDONLY | Attr::MOUNT_ATTR_NOSUID | Attr::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
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
