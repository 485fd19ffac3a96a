//! A private database server under load.

use engine::Pid;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A command of `tools/server.py`. When it gets SIGTERM, it ends what it started.
struct Tool(Child);

impl Tool {
    fn start(args: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/server.py");
        Self(Command::new("python3").arg(script).args(args).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }

    /// Ends it. Returns whether it succeeded, and its output.
    fn end(mut self) -> (bool, String) {
        self.tell();
        let mut said = String::new();
        self.0.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().success(), said)
    }

    fn tell(&self) {
        // SIGTERM.
        Command::new("kill").arg(self.0.id().to_string()).status().unwrap();
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            self.tell();
            let _ = self.0.wait();
        }
    }
}

/// Returns the value of a key in one flat JSON object.
fn field<'a>(json: &'a str, key: &str) -> &'a str {
    let (_, rest) = json.split_once(&format!("\"{key}\": ")).unwrap_or_else(|| panic!("no {key} in {json}"));
    rest.split([',', '}']).next().unwrap().trim_matches('"')
}

/// Returns the user CPU time of a process, in the kernel's ticks.
fn user_ticks(pid: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.0)).unwrap();
    let behind_name = stat.rsplit(')').next().unwrap();
    behind_name.split_whitespace().nth(11).unwrap().parse().unwrap()
}

/// A server with four connections that read. Fields are dropped in their order: the load ends first.
pub struct Loaded {
    load: Tool,
    _server: Tool,
    pub pid: Pid,
}

impl Loaded {
    pub fn start() -> Self {
        let mut server = Tool::start(&["run"]);
        let running = server.line();
        let pid = Pid(field(&running, "pid").parse().unwrap());
        let socket = ["--socket", field(&running, "socket"), "--tables", "2", "--rows", "5000"];
        let prepared = Tool::start(&[&["prepare"], &socket[..]].concat()).0.wait().unwrap();
        assert!(prepared.success());
        let kind = ["--test", "oltp_read_only", "--threads", "4"];
        let idle = user_ticks(pid);
        let load = Tool::start(&[&["load"], &socket[..], &kind].concat());
        let begun = Instant::now();
        // On a busy machine the load takes seconds to begin.
        while user_ticks(pid) < idle + 20 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the load does not begin");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { load, _server: server, pid }
    }

    /// Ends both. Returns how many queries were answered, if none has failed.
    pub fn end(self) -> String {
        let (clean, said) = self.load.end();
        assert!(clean, "queries failed: {said}");
        field(&said, "queries").to_owned()
    }
}
