//! A shell on the server's host, such as `ssh root@db1 sh`. One session runs all commands there.

use crate::command::{Answer, Commands, Running, Spec, tail};
use crate::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest time for a connection, and for a command that only reads files.
const SOON: Duration = Duration::from_secs(30);
/// What the shell's line begins with after each command. The number of the command and its exit code follow.
const MARK: &str = "whet-lab: end of command";

/// A shell on another host. Clones share one session, which begins with the first command. If it ends, the next
/// command begins another one.
#[derive(Clone, Debug)]
pub struct Shell {
    command: String,
    session: Arc<Mutex<Option<Session>>>,
}

#[derive(Debug)]
struct Session {
    running: Running,
    input: ChildStdin,
    /// Lines of the output.
    lines: Receiver<String>,
    /// Lines of standard error.
    complaints: Receiver<String>,
    /// How many commands were sent.
    sent: u64,
    /// The longest time for which a command goes on after the wait for its answer was interrupted.
    owed: Duration,
}

impl Shell {
    /// Describes a shell by the command that starts it.
    pub fn new(command: &str) -> Self {
        Self { command: command.to_owned(), session: Arc::default() }
    }

    /// Runs a program on the other host to its end. The log records it.
    ///
    /// # Errors
    /// [`Error::Shell`] if the shell ends, or if the program takes longer than `limit`; [`Error::Interrupted`] on
    /// an interrupt. The program then runs to its end all the same, and the next command waits for it.
    pub fn run(&self, commands: &Commands, spec: &Spec, limit: Duration) -> Result<Answer, Error> {
        commands.note(&format!("$ {} # by {}", spec.line(), self.command))?;
        let answer = self.exchange(commands, &spec.line(), limit)?;
        commands.note(&format!("> {}\n{}{}", answer.status, answer.out, answer.err))?;
        Ok(answer)
    }

    /// Returns what a script of the shell prints. Its exit code does not matter.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn read(&self, commands: &Commands, script: &str) -> Result<String, Error> {
        self.exchange(commands, script, SOON).map(|answer| answer.out)
    }

    fn exchange(&self, commands: &Commands, script: &str, limit: Duration) -> Result<Answer, Error> {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        if session.is_none() {
            let begun = session.insert(self.begin(commands)?);
            // What a login prints is not the output of a command.
            let greeted = begun.exchange(commands, ":", SOON);
            greeted.map_err(|e| self.explain(&mut session, e))?;
        }
        let Some(open) = session.as_mut() else { return Err(Error::Bug("no session".to_owned())) };
        let answer = open.exchange(commands, script, limit);
        answer.map_err(|e| self.explain(&mut session, e))
    }

    fn begin(&self, commands: &Commands) -> Result<Session, Error> {
        let spec = Spec::new("sh").args(["-c", &self.command]).reads();
        let mut running = commands.spawn(&spec, Stdio::piped(), Stdio::piped())?;
        let (Some(input), Some(out), Some(err)) = (running.stdin(), running.stdout(), running.stderr())
        else {
            return Err(Error::Bug("the shell has no pipes".to_owned()));
        };
        Ok(Session {
            running,
            input,
            lines: lines(out),
            complaints: lines(err),
            sent: 0,
            owed: Duration::ZERO,
        })
    }

    /// Ends a session that failed, and returns the error with what the shell said.
    fn explain(&self, session: &mut MutexGuard<'_, Option<Session>>, e: Failure) -> Error {
        let why = match e {
            // The session is sound.
            Failure::Other(e) => return e,
            Failure::Late(limit) => format!("did not end a command within {} s", limit.as_secs()),
            Failure::Ended => "ended".to_owned(),
        };
        let words = session.take().map(Session::end).unwrap_or_default();
        Error::Shell { command: self.command.clone(), why, words }
    }
}

/// Why a command of a session has no answer.
enum Failure {
    Ended,
    Late(Duration),
    Other(Error),
}

impl Session {
    fn exchange(&mut self, commands: &Commands, script: &str, limit: Duration) -> Result<Answer, Failure> {
        self.sent += 1;
        // The output may lack its last line break. The first line break here belongs to the mark.
        let text = format!("{{ {script}\n}} </dev/null; printf '\\n%s %s %s\\n' '{MARK}' {} $?\n", self.sent);
        self.input.write_all(text.as_bytes()).map_err(|_| Failure::Ended)?;
        let until = Instant::now() + self.owed + limit;
        let mut out: Vec<String> = Vec::new();
        loop {
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => match mark(&line) {
                    Some((number, code)) if number == self.sent => {
                        self.owed = Duration::ZERO;
                        return Ok(Answer {
                            status: ExitStatus::from_raw(code << 8),
                            out: out.join("\n").trim_end_matches('\n').to_owned() + "\n",
                            err: self.complaints.try_iter().map(|line| line + "\n").collect(),
                        });
                    }
                    // The end of a command for which the wait was interrupted.
                    Some(_) => out.clear(),
                    None => out.push(line),
                },
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(e) = commands.interrupt.check() {
                        self.owed += limit;
                        return Err(Failure::Other(e));
                    }
                    if Instant::now() > until {
                        return Err(Failure::Late(limit));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::Ended),
            }
        }
    }

    /// Ends the session, and returns the last lines of its standard error, with its exit status.
    fn end(mut self) -> String {
        drop(self.input);
        // The status of a shell that has ended by itself. The pipe may close a moment earlier.
        let until = Instant::now() + Duration::from_millis(500);
        let mut status = None;
        while status.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
            status = self.running.ended().ok().flatten();
        }
        drop(self.running);
        let mut words = Vec::new();
        // A process that outlives the shell may hold the pipe open.
        while let Ok(line) = self.complaints.recv_timeout(Duration::from_millis(200)) {
            words.push(line);
        }
        words.extend(status.map(|status| status.to_string()));
        tail(&words.join("\n"))
    }
}

/// Returns the number and the exit code of the command that a mark ends.
fn mark(line: &str) -> Option<(u64, i32)> {
    let (number, code) = line.strip_prefix(MARK)?.trim().split_once(' ')?;
    Some((number.parse().ok()?, code.parse().ok()?))
}

/// Returns the lines of a stream, which a thread reads.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver): (Sender<String>, _) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    receiver
}
