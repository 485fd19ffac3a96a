//! `/proc/PID/status`, parsed.

use crate::{Error, Pid};

/// The kernel's status of a process or thread. Signal sets have bit `n - 1` for signal `n`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// The command name, at most 15 bytes.
    pub name: String,
    /// The state letter: R S D T t Z X I.
    pub state: char,
    /// The process that the thread belongs to.
    pub tgid: i32,
    /// The parent.
    pub ppid: i32,
    /// The tracer; 0 for none.
    pub tracer_pid: i32,
    /// Real, effective, saved and file-system user id.
    pub uid: [u32; 4],
    /// Real, effective, saved and file-system group id.
    pub gid: [u32; 4],
    /// How many threads the process has.
    pub threads: u32,
    /// 0 none, 1 strict, 2 filters.
    pub seccomp: u8,
    /// The id in each pid namespace from this one inwards.
    pub ns_pid: Vec<i32>,
    /// Whether exec can give no new rights.
    pub no_new_privs: bool,
    /// Whether it has memory of its own (kernel threads have none, nor do ended processes).
    pub has_memory: bool,
    /// Signals pending for this thread.
    pub sig_pnd: u64,
    /// Signals pending for the process.
    pub shd_pnd: u64,
    /// Signals blocked.
    pub sig_blk: u64,
    /// Signals ignored.
    pub sig_ign: u64,
    /// Signals caught.
    pub sig_cgt: u64,
    /// Effective capabilities.
    pub cap_eff: u64,
}

impl Status {
    /// Returns whether any signal has a handler, except SIGCANCEL and SIGSETXID, which are the C library's.
    pub(crate) fn has_handlers(&self) -> bool {
        const LIBRARY: u64 = 1 << 31 | 1 << 32;
        self.sig_cgt & !LIBRARY != 0
    }

    /// Parses the file's text.
    ///
    /// # Errors
    /// [`Error::ProcFormat`] if `State` or `Tgid` is missing or malformed; other missing or malformed fields
    /// keep their zero.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut s = Self::default();
        let (mut state, mut tgid) = (None, None);
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            let hex = || u64::from_str_radix(value, 16).unwrap_or(0);
            match key {
                "Name" => value.clone_into(&mut s.name),
                "State" => state = value.chars().next(),
                "Tgid" => tgid = value.parse().ok(),
                "PPid" => s.ppid = value.parse().unwrap_or(0),
                "TracerPid" => s.tracer_pid = value.parse().unwrap_or(0),
                "Uid" => {
                    for (to, from) in s.uid.iter_mut().zip(value.split_whitespace()) {
                        *to = from.parse().unwrap_or(0);
                    }
                }
                "Gid" => {
                    for (to, from) in s.gid.iter_mut().zip(value.split_whitespace()) {
                        *to = from.parse().unwrap_or(0);
                    }
                }
                "Threads" => s.threads = value.parse().unwrap_or(0),
                "Seccomp" => s.seccomp = value.parse().unwrap_or(0),
                "NSpid" => s.ns_pid = value.split_whitespace().filter_map(|n| n.parse().ok()).collect(),
                "NoNewPrivs" => s.no_new_privs = value == "1",
                "VmSize" => s.has_memory = true,
                "SigPnd" => s.sig_pnd = hex(),
                "ShdPnd" => s.shd_pnd = hex(),
                "SigBlk" => s.sig_blk = hex(),
                "SigIgn" => s.sig_ign = hex(),
                "SigCgt" => s.sig_cgt = hex(),
                "CapEff" => s.cap_eff = hex(),
                _ => {}
            }
        }
        let bad = |what| Error::ProcFormat { path: "/proc/PID/status".into(), what };
        s.state = state.ok_or_else(|| bad("State"))?;
        s.tgid = tgid.ok_or_else(|| bad("Tgid"))?;
        Ok(s)
    }

    /// Returns the process that the thread belongs to.
    #[must_use]
    pub fn process(&self) -> Pid {
        Pid(self.tgid)
    }

    /// Returns whether it has ended or is just ending.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_status() {
        let text = "Name:\tmy: prog\nUmask:\t0022\nState:\tt (tracing stop)\nTgid:\t12\nPid:\t13\nPPid:\t1\n\
            TracerPid:\t99\nUid:\t1\t2\t3\t4\nNSpid:\t12\t3\nVmSize:\t  10 kB\nThreads:\t7\nSigPnd:\t0000000000000001\n\
            ShdPnd:\tffffffff00000000\nSigBlk:\t10\nSeccomp:\t2\nNoNewPrivs:\t1\nCapEff:\t000001fffeffffff\n";
        let s = Status::parse(text).unwrap();
        assert_eq!((s.name.as_str(), s.state, s.tgid, s.tracer_pid, s.threads), ("my: prog", 't', 12, 99, 7));
        assert_eq!(
            (s.uid, s.ns_pid.as_slice(), s.seccomp, s.no_new_privs),
            ([1, 2, 3, 4], &[12, 3][..], 2, true)
        );
        assert_eq!((s.sig_pnd, s.shd_pnd, s.sig_blk), (1, 0xffff_ffff_0000_0000, 0x10));
        assert!(s.has_memory);
    }

    #[test]
    fn foreign_text_does_not_panic() {
        for t in ["", ":", "State:\n", "State:\tR\nTgid: x\n", "State:\tR\nUid:\t9 9 9 9 9 9\nTgid:\t-1\n"] {
            let _ = Status::parse(t);
        }
        assert!(Status::parse("State:\tR\n").is_err());
    }
}
