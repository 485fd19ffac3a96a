//! A server that runs already, for the options that name one.

use super::prepared;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server on a copy of the prepared data.
pub struct Running {
    child: Child,
    base: PathBuf,
    _dir: tempfile::TempDir,
}

impl Running {
    /// Starts a server. `before` are words of a command that becomes the server.
    pub fn start(before: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        prepared::copy_data(&base.join("data"));
        let user = fs::metadata("/root").is_ok_and(|_| std::env::var("USER").as_deref() != Ok("nobody"));
        let words = [before, &["/usr/sbin/mariadbd"]].concat();
        let child = Command::new(words[0])
            .args(&words[1..])
            .arg("--no-defaults")
            .arg(format!("--datadir={}", base.join("data").display()))
            .arg(if user { "--user=root" } else { "--user=mysql" })
            .args(["--skip-networking", "--innodb-buffer-pool-size=64M", "--innodb-fast-shutdown=2"])
            .arg(format!("--socket={}", base.join("s").display()))
            .arg(format!("--pid-file={}", base.join("pid").display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, base, _dir: dir };
        let until = Instant::now() + Duration::from_secs(60);
        while !server.sql("SELECT 1").0 {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    /// Returns the folder of its data, in which a test may put more.
    pub fn folder(&self) -> &Path {
        &self.base
    }

    /// Returns its socket.
    pub fn socket(&self) -> PathBuf {
        self.base.join("s")
    }

    /// Returns its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs statements as root. Returns whether they succeeded, and what they returned.
    pub fn sql(&self, text: &str) -> (bool, String) {
        let mut client = Command::new("mariadb")
            .arg("--no-defaults")
            .arg(format!("--socket={}", self.socket().display()))
            .arg("-uroot")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        client.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let out = client.wait_with_output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
