//! The limit on open files, raised temporarily.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// While this value lives, the soft limit on open files is the hard limit. The limit is that of the whole
/// process; files opened meanwhile stay open when it falls again.
#[derive(Debug)]
pub(crate) struct RaisedFileLimit {
    before: Rlimit,
}

impl RaisedFileLimit {
    pub(crate) fn raise() -> io::Result<Self> {
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum })?;
        Ok(Self { before })
    }

    /// Returns the hard limit.
    pub(crate) fn hard(&self) -> u64 {
        self.before.maximum.unwrap_or(u64::MAX)
    }
}

impl Drop for RaisedFileLimit {
    fn drop(&mut self) {
        // Lowering the own soft limit is always allowed.
        let _ = setrlimit(Resource::Nofile, self.before);
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
        let set = |soft| {
            setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: Some(hard) }).unwrap();
        };
        set(hard.min(500));
        let raised = RaisedFileLimit::raise().unwrap();
        assert_eq!(soft().0, soft().1);
        drop(raised);
        assert_eq!(soft().0, hard.min(500).to_string());
        set(hard);
    }
}
