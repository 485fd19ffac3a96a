//! Sealed files. Each is the only file of its own file system in memory, which can never be written again.
//!
//! The file system (`tmpfs`) is attached to no folder. It lives as long as a descriptor or a mapping of its
//! file, so nothing is left behind, and no disk can be full. This private mount is never `noexec`. After the
//! file is written, the mount becomes read-only for ever: even root cannot open the file for writing
//! through `/proc/PID/map_files`. A `memfd` can be sealed as well, but profilers regard its mappings as
//! memory without a file.

use crate::Process;
use addr::AvmaRange;
use rustix::fs::{StatVfsMountFlags, fstatfs, fstatvfs};
use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// Commands of `fsconfig` (`include/uapi/linux/mount.h`): set a string, create the file system.
const SET_STRING: libc::c_uint = 1;
const CREATE: libc::c_uint = 6;
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const READ_ONLY: u64 = 1;
/// The kind of these file systems (`include/uapi/linux/magic.h`).
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// No set-user-id programs, no devices.
const NO_SUID_NO_DEV: u64 = 2 | 4;

/// `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// A file that no process can change. It is open for reading.
#[derive(Debug)]
pub struct SealedFile(File);

/// The content of a [`SealedFile`].
#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    /// Bytes with their offsets. The rest is zero.
    pub parts: &'a [(u64, &'a [u8])],
    /// The size of the file. Bytes.
    pub len: u64,
    /// Whether the file lies on huge pages, as far as it fills whole ones and the kernel gives any.
    pub huge: bool,
}

impl SealedFile {
    /// Creates a file. `path` is its absolute path in its own file system, which `/proc/PID/maps` shows.
    ///
    /// # Errors
    /// The kernel's errors: `EPERM` without `CAP_SYS_ADMIN`, `ENOSYS` before Linux 5.12.
    pub fn create(path: &Path, content: Content<'_>) -> io::Result<Self> {
        let mount = mount(if content.huge { c"within_size" } else { c"never" })?;
        // The mount has no path but that of its descriptor.
        let root = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        let names = path.components().filter(|c| matches!(c, Component::Normal(_)));
        let inside = root.join(names.collect::<PathBuf>());
        if let Some(folder) = inside.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o444).open(&inside)?;
        file.set_len(content.len)?;
        for (offset, bytes) in content.parts {
            file.write_all_at(bytes, *offset)?;
        }
        drop(file);
        let file = File::open(&inside)?;
        make_read_only(&mount)?;
        Ok(Self(file))
    }

    /// Opens the file that a process has mapped at `range`, which is one whole mapping.
    ///
    /// # Errors
    /// The kernel's errors: `EPERM` without `CAP_SYS_ADMIN` in the first user namespace, `ENOENT` if there is no such
    /// mapping or the first thread has ended; `EINVAL` if the file is not as [`SealedFile::create`] makes it: in
    /// memory, of this process's user, without write permission, on a read-only mount.
    pub fn mapped(process: &Process, range: AvmaRange) -> io::Result<Self> {
        let link = process.file(&format!("map_files/{:x}-{:x}", range.start.0, range.end.0));
        // The process may have mapped anything, and a device may act when it is opened for reading.
        let handle = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(link)?;
        let facts = handle.metadata()?;
        let is_memory = u64::try_from(fstatfs(&handle)?.f_type).is_ok_and(|kind| kind == TMPFS_MAGIC);
        let is_read_only = fstatvfs(&handle)?.f_flag.contains(StatVfsMountFlags::RDONLY);
        let is_ours = facts.is_file() && facts.uid() == rustix::process::geteuid().as_raw();
        if !is_memory || !is_read_only || !is_ours || facts.mode() & 0o222 != 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        File::open(format!("/proc/self/fd/{}", handle.as_raw_fd())).map(Self)
    }

    /// Returns the descriptor, which is open for reading.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.0
    }
}

/// Mounts a new file system in memory, attached to nothing.
fn mount(huge: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads a string that ends with a zero byte, and returns a new descriptor or an error.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), FSOPEN_CLOEXEC) };
    let context = descriptor(context)?;
    let set = |key: &CStr, value: &CStr| {
        let fd = context.as_raw_fd();
        // SAFETY: the kernel reads two strings that end with a zero byte.
        let r = unsafe { libc::syscall(libc::SYS_fsconfig, fd, SET_STRING, key.as_ptr(), value.as_ptr(), 0) };
        result(r)
    };
    set(c"mode", c"0755")?;
    // Kernels without huge pages do not have this option.
    let _ = set(c"huge", huge);
    let (fd, none) = (context.as_raw_fd(), std::ptr::null::<libc::c_char>());
    // SAFETY: this command takes no strings.
    result(unsafe { libc::syscall(libc::SYS_fsconfig, fd, CREATE, none, none, 0) })?;
    // SAFETY: the kernel returns a new descriptor or an error, and accesses no memory.
    descriptor(unsafe { libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, NO_SUID_NO_DEV) })
}

fn make_read_only(mount: &OwnedFd) -> io::Result<()> {
    let attr = MountAttr { set: READ_ONLY, clear: 0, propagation: 0, user_namespace: 0 };
    let (fd, path) = (mount.as_raw_fd(), c"".as_ptr());
    let (flags, size) = (libc::AT_EMPTY_PATH, size_of::<MountAttr>());
    // SAFETY: the kernel reads an empty string and a `mount_attr` of the size stated.
    result(unsafe { libc::syscall(libc::SYS_mount_setattr, fd, path, flags, &raw const attr, size) })
}

fn result(r: libc::c_long) -> io::Result<()> {
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn descriptor(r: libc::c_long) -> io::Result<OwnedFd> {
    result(r)?;
    let fd = i32::try_from(r).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: the kernel has just returned this descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_can_write() {
        let path = Path::new("/run/whet/some.whet");
        let content = Content { parts: &[(0, b"head"), (5000, b"tail")], len: 9000, huge: false };
        let file = match SealedFile::create(path, content) {
            Ok(file) => file,
            Err(e) if [libc::EPERM, libc::ENOSYS].map(Some).contains(&e.raw_os_error()) => {
                return println!("skipped: no mounts here: {e}");
            }
            Err(e) => panic!("{e}"),
        };
        let mut all = vec![1; 9000];
        file.file().read_exact_at(&mut all, 0).unwrap();
        assert_eq!((&all[..6], &all[4999..5005]), (&b"head\0\0"[..], &b"\0tail\0"[..]));
        let link = format!("/proc/self/fd/{}", file.file().as_raw_fd());
        assert_eq!(std::fs::read_link(&link).unwrap(), path);
        let error = OpenOptions::new().write(true).open(&link).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EROFS));
        assert!(file.file().set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777)).is_err());
    }
}
