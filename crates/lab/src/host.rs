//! The host of a server: this one, or another one that a shell reaches.

use crate::command::{Answer, Commands, Spec, quote};
use crate::error::Error;
use crate::procfs::{self, CpuTicks, Spent, Stat};
use crate::shell::Shell;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Where a server runs, and so where whet runs and where /proc is read.
#[derive(Clone, Debug)]
pub struct Host {
    commands: Commands,
    shell: Option<Shell>,
}

impl Host {
    /// Describes this host, or the host that a shell reaches. `shell` is the command that starts it.
    pub fn new(commands: &Commands, shell: Option<&str>) -> Self {
        Self { commands: commands.clone(), shell: shell.map(Shell::new) }
    }

    /// Returns whether it is the lab's own host.
    pub fn is_here(&self) -> bool {
        self.shell.is_none()
    }

    /// Returns the same host for commands that run to their end whatever the user's interrupt.
    #[must_use]
    pub fn calm(&self) -> Self {
        let mut calm = self.clone();
        calm.commands.interrupt = crate::interrupt::Interrupt::default();
        calm
    }

    /// Runs a program there to its end. The caller judges the exit status.
    ///
    /// # Errors
    /// As [`Commands::run`]; [`Error::Shell`] if the shell fails.
    pub fn run(&self, spec: &Spec, limit: Duration) -> Result<Answer, Error> {
        match &self.shell {
            Some(shell) => shell.run(&self.commands, spec, limit),
            None => self.commands.run(spec, limit),
        }
    }

    /// Returns the text of a file, trimmed. Empty if it cannot be read.
    ///
    /// # Errors
    /// [`Error::Shell`] if the shell fails.
    pub fn text(&self, path: &str) -> Result<String, Error> {
        let text = match &self.shell {
            Some(shell) => shell.read(&self.commands, &format!("cat {} 2>/dev/null", quote(path)))?,
            None => fs::read_to_string(path).unwrap_or_default(),
        };
        Ok(text.trim().to_owned())
    }

    /// Returns the first 60 lines of each of some files, each line as `PATH:LINE`. `patterns` are those of the shell.
    /// Files that cannot be read are left out. Of this host, nothing.
    ///
    /// # Errors
    /// [`Error::Shell`] if the shell fails.
    pub fn lines(&self, patterns: &str) -> Result<String, Error> {
        // Other shells than sh, of which a login may start one, refuse patterns without a match.
        let script = format!("sh -c {}", quote(&format!("grep -Hs -m 60 '' {patterns}")));
        self.shell.as_ref().map_or(Ok(String::new()), |shell| shell.read(&self.commands, &script))
    }

    /// Returns the path of a process's program. `None` if it cannot be read.
    ///
    /// # Errors
    /// [`Error::Shell`] if the shell fails.
    pub fn exe(&self, pid: i32) -> Result<Option<PathBuf>, Error> {
        let path = format!("/proc/{pid}/exe");
        Ok(match &self.shell {
            Some(shell) => {
                let link = shell.read(&self.commands, &format!("readlink {path}"))?;
                Some(PathBuf::from(link.trim())).filter(|link| !link.as_os_str().is_empty())
            }
            None => fs::read_link(path).ok(),
        })
    }

    /// Returns the CPU time of the machine since its start.
    ///
    /// # Errors
    /// [`Error::Shell`] if the shell fails.
    pub fn ticks(&self) -> Result<CpuTicks, Error> {
        match &self.shell {
            // `read` is a part of the shell, so this starts no process.
            Some(shell) => shell
                .read(&self.commands, "read -r line </proc/stat; echo \"$line\"")
                .map(|text| CpuTicks::parse(&text)),
            None => Ok(CpuTicks::now()),
        }
    }

    /// Returns the status of a process, and its CPU time: by its clock, or, through a shell, which reads no
    /// clock, by its threads. `None` if the process is gone.
    ///
    /// # Errors
    /// [`Error::Shell`] if the shell fails.
    pub fn process(&self, pid: i32) -> Result<Option<(Stat, Spent)>, Error> {
        let Some(shell) = &self.shell else {
            let stat = Stat::parse(&self.text(&format!("/proc/{pid}/stat"))?);
            // The process may end between these two.
            return Ok(stat.zip(procfs::process_cpu(pid).map(Spent::Clock)));
        };
        let files =
            format!("cat /proc/{pid}/stat 2>/dev/null; grep -H . /proc/{pid}/task/*/schedstat 2>/dev/null");
        let text = shell.read(&self.commands, &files)?;
        let (stat, threads) = text.split_once('\n').unwrap_or_default();
        let threads = threads.lines().filter_map(procfs::thread_cpu).collect();
        Ok(Stat::parse(stat).map(|stat| (stat, Spent::Threads(threads))))
    }

    /// Returns whether a process exists and is no zombie.
    ///
    /// # Errors
    /// [`Error::Shell`] if the shell fails.
    pub fn is_alive(&self, pid: i32) -> Result<bool, Error> {
        self.text(&format!("/proc/{pid}/stat")).map(|stat| procfs::is_alive(&stat))
    }
}
