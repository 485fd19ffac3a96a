//! The script that makes sysbench time each transaction, and the memory in which it counts the times.

use crate::error::Error;
use crate::transactions::{BUCKETS, PER_OCTAVE, Transactions};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const SCRIPT: &str = include_str!("../assets/timed.lua");
/// The name of the script in the run's folder.
pub const NAME: &str = "timed.lua";

/// The times that the threads of a load count. They are in memory, so no disk is written, and nothing is left
/// when the lab ends.
#[derive(Debug)]
pub struct Times(File);

impl Times {
    /// Creates the memory for a number of threads.
    ///
    /// # Errors
    /// [`Error::File`] if the system refuses the memory.
    pub fn new(threads: usize) -> Result<Self, Error> {
        let size = (1 + u64::from(BUCKETS)) * 8 * threads as u64;
        let make = || {
            let file = File::from(memfd_create("whet-lab", MemfdFlags::CLOEXEC)?);
            file.set_len(size).map(|()| file)
        };
        Ok(Self(make().map_err(Error::file("the memory for response times"))?))
    }

    /// Writes the script that times a load, and returns its path.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be written; [`Error::Usage`] if no load can have this name.
    pub fn script(&self, load: &str, folder: &Path) -> Result<PathBuf, Error> {
        if !load.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(Error::Usage(format!("{load:?} is no name of a load of sysbench")));
        }
        let memory = format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd());
        let names = format!(
            "local LOAD, TIMES, PER_OCTAVE, BUCKETS = \"{load}\", \"{memory}\", {PER_OCTAVE}, {BUCKETS}\n"
        );
        let path = folder.join(NAME);
        fs::write(&path, names + SCRIPT).map_err(Error::file(&path))?;
        Ok(path)
    }

    /// Returns all transactions so far.
    ///
    /// # Errors
    /// [`Error::File`] if the memory cannot be read.
    pub fn read(&self) -> Result<Transactions, Error> {
        let read = || {
            let length = usize::try_from(self.0.metadata()?.len()).unwrap_or(0);
            let mut bytes = vec![0; length];
            self.0.read_exact_at(&mut bytes, 0).map(|()| bytes)
        };
        Ok(Transactions::parse(&read().map_err(Error::file("the memory for response times"))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A load whose transactions fail once, for a reason of the data, before they succeed. It sleeps for 20 ms before
    /// either.
    const LOAD: &str = r#"
        local ffi = require("ffi")
        ffi.cdef("int usleep(unsigned time);")
        local calls = 0
        function event()
           calls = calls + 1
           ffi.C.usleep(20000)
           if calls % 2 == 1 then error({ errcode = sysbench.error.RESTART_EVENT }) end
        end
    "#;

    #[test]
    fn a_transaction_is_timed_from_its_first_try() {
        if crate::command::find("sysbench").is_none() {
            println!("skipped: no sysbench here");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("failing.lua"), LOAD).unwrap();
        let times = Times::new(3).unwrap();
        let script = times.script("failing", dir.path()).unwrap();
        assert_eq!(times.read().unwrap(), Transactions::default());
        let mut sysbench = Command::new("sysbench");
        sysbench.arg(script).args(["--threads=3", "--events=20", "--time=0", "run"]).current_dir(dir.path());
        let output = sysbench.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let found = times.read().unwrap();
        assert_eq!(found.count(), 20, "{found:?}");
        // 40 ms, within the width of a bucket.
        let shortest = found.percentile_ms(0.0).unwrap();
        assert!(shortest > 39.5 && found.mean_ms().unwrap() >= 40.0, "{found:?}");
    }

    #[test]
    fn a_load_is_a_plain_name() {
        let dir = tempfile::tempdir().unwrap();
        let e = Times::new(1).unwrap().script("x\")os.exit()--", dir.path()).unwrap_err();
        assert!(e.to_string().contains("is no name of a load"), "{e}");
    }
}
