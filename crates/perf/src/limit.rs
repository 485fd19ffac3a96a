//! The limit on open files, raised temporarily.

use std::io;

/// While this value lives, the soft limit on open files is the hard limit. The limit is that of the whole
/// process; files opened meanwhile stay open when it falls again.
#[derive(Debug)]
pub(crate) struct RaisedFileLimit {
    before: libc::rlimit,
}

impl RaisedFileLimit {
    pub(crate) fn raise() -> io::Result<Self> {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes one `rlimit` to the address of a local variable.
        if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) } != 0 {
            return Err(io::Error::last_os_error());
        }
        set(libc::rlimit { rlim_cur: before.rlim_max, ..before })?;
        Ok(Self { before })
    }

    /// Returns the hard limit.
    pub(crate) fn hard(&self) -> u64 {
        self.before.rlim_max
    }
}

impl Drop for RaisedFileLimit {
    fn drop(&mut self) {
        // Lowering the own soft limit is always allowed.
        let _ = set(self.before);
    }
}

fn set(limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: the kernel reads one `rlimit` from the address.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_restored() {
        let soft = || {
            let text = std::fs::read_to_string("/proc/self/limits").unwrap();
            let line = text.lines().find(|l| l.starts_with("Max open files")).unwrap().to_owned();
            let mut numbers = line.split_whitespace().skip(3).map(str::to_owned);
            (numbers.next().unwrap(), numbers.next().unwrap())
        };
        let hard = RaisedFileLimit::raise().unwrap().hard();
        set(libc::rlimit { rlim_cur: hard.min(500), rlim_max: hard }).unwrap();
        let raised = RaisedFileLimit::raise().unwrap();
        assert_eq!(soft().0, soft().1);
        drop(raised);
        assert_eq!(soft().0, hard.min(500).to_string());
        set(libc::rlimit { rlim_cur: hard, rlim_max: hard }).unwrap();
    }
}
