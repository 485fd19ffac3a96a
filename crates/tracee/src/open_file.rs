//! Properties of a target's open file that matter to waiting calls.

use crate::Process;
use rustix::net::SocketType;
use rustix::net::sockopt::{self, Timeout};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// Kinds of open files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Pipe,
    Socket,
    Terminal,
    /// `/dev/random`, `/dev/urandom`.
    Random,
    Other,
}

/// The properties of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Socket {
    /// `AF_*`.
    pub(crate) domain: i32,
    /// Whether it is a stream of bytes.
    pub(crate) stream: bool,
    /// Its timeouts for receiving and sending; 0 for none. Nanoseconds.
    pub(crate) receive_ns: u64,
    pub(crate) send_ns: u64,
}

/// Returns the kind of an open file, by its descriptor.
pub(crate) fn kind(process: &Process, fd: u64) -> Kind {
    let Ok(meta) = fs::metadata(process.memory_file(&format!("fd/{}", fd & 0xffff_ffff))) else {
        return Kind::Other;
    };
    let kind = meta.file_type();
    if kind.is_fifo() {
        return Kind::Pipe;
    }
    if kind.is_socket() {
        return Kind::Socket;
    }
    if !kind.is_char_device() {
        return Kind::Other;
    }
    // Documentation/admin-guide/devices.txt
    match (libc::major(meta.rdev()), libc::minor(meta.rdev())) {
        (1, 8 | 9) => Kind::Random,
        (4 | 5 | 136..=143 | 188, _) => Kind::Terminal,
        _ => Kind::Other,
    }
}

/// Returns a number for the file of a descriptor. Two files that are open at the same time have different
/// numbers, except by chance.
pub(crate) fn identity(process: &Process, fd: u64) -> u64 {
    let meta = fs::metadata(process.memory_file(&format!("fd/{}", fd & 0xffff_ffff)));
    meta.map_or(0, |m| m.dev().rotate_left(40) ^ m.ino())
}

/// Reads a socket's properties through a duplicate of its descriptor; `None` if there can be none (Linux
/// before 5.6).
pub(crate) fn socket(process: &Process, fd: u64) -> Option<Socket> {
    let number = i32::try_from(fd & 0xffff_ffff).ok()?;
    let own = pidfd_getfd(process.pidfd(), number, PidfdGetfdFlags::empty()).ok()?;
    // 0 is no limit.
    let ns = |which| {
        let limit = sockopt::socket_timeout(&own, which).ok()?;
        u64::try_from(limit.unwrap_or_default().as_nanos()).ok()
    };
    Some(Socket {
        domain: sockopt::socket_domain(&own).ok()?.as_raw().into(),
        stream: sockopt::socket_type(&own).ok()? == SocketType::STREAM,
        receive_ns: ns(Timeout::Recv)?,
        send_ns: ns(Timeout::Send)?,
    })
}

/// Returns how many completions lie in an io_uring's queue; `None` if the kernel does not show it
/// (`io_uring_show_fdinfo`).
pub(crate) fn completions(process: &Process, fd: u64) -> Option<u32> {
    let text = fs::read(process.memory_file(&format!("fdinfo/{}", fd & 0xffff_ffff))).ok()?;
    let text = String::from_utf8_lossy(&text);
    let number = |name| text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<u32>().ok());
    Some(number("CachedCqTail:")?.wrapping_sub(number("CqHead:")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pid;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    #[test]
    fn kinds_and_timeouts_of_open_files() {
        let me = Process::open(Pid(std::process::id().cast_signed())).unwrap();
        let number = |fd: &dyn AsRawFd| i64::from(fd.as_raw_fd()).cast_unsigned();
        let (stream, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
        assert_eq!(kind(&me, number(&stream)), Kind::Socket);
        let of_stream = Socket { domain: libc::AF_UNIX, stream: true, receive_ns: 1_500_000_000, send_ns: 0 };
        // If the kernel or a sandbox lacks the call, the properties are unknown.
        assert!(socket(&me, number(&stream)).is_none_or(|s| s == of_stream));
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(socket(&me, number(&datagrams)).is_none_or(|s| !s.stream && s.domain == libc::AF_INET));
        let (pipe, _end) = std::io::pipe().unwrap();
        assert_eq!(kind(&me, number(&pipe)), Kind::Pipe);
        assert_eq!(kind(&me, number(&fs::File::open("/dev/urandom").unwrap())), Kind::Random);
        assert_eq!(kind(&me, number(&fs::File::open("/dev/null").unwrap())), Kind::Other);
        assert_eq!(kind(&me, number(&fs::File::open("/proc/self/exe").unwrap())), Kind::Other);
        assert_eq!(kind(&me, 0xffff_fff0), Kind::Other);
        assert_ne!(identity(&me, number(&pipe)), identity(&me, number(&stream)));
        assert_eq!(identity(&me, number(&pipe)), identity(&me, number(&pipe.try_clone().unwrap())));
        assert_eq!(identity(&me, 0xffff_fff0), 0);
    }
}
