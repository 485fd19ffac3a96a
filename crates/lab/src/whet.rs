//! Runs whet by its command line alone, and keeps track of the side that a server is on.

use crate::command::{Answer, Spec, find};
use crate::error::Error;
use crate::host::Host;
use crate::record::{FamilyChange, Side};
use crate::target::Target;
use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest time that one command of whet may take.
const LIMIT: Duration = Duration::from_secs(300);

/// whet's program.
#[derive(Clone, Debug)]
pub struct Whet {
    binary: PathBuf,
    host: Host,
}

impl Whet {
    /// Returns the path of whet: the named file, else the file beside the lab, else the first in PATH.
    ///
    /// # Errors
    /// [`Error::Missing`] if there is none.
    pub fn locate(named: Option<&Path>) -> Result<PathBuf, Error> {
        let beside = std::env::current_exe().ok().and_then(|p| Some(p.parent()?.join("whet")));
        let found = match named {
            Some(path) => Some(path.to_owned()).filter(|p| p.is_file()),
            None => beside.filter(|p| p.is_file()).or_else(|| find("whet")),
        };
        found.ok_or_else(|| Error::Missing {
            program: named.map_or_else(|| "whet".to_owned(), |p| p.display().to_string()),
            get: "build it (cargo build --release -p whet) and name it with --whet, or measure --null".into(),
        })
    }

    /// Describes whet on the server's host. Its commands go to the lab's log.
    pub fn new(binary: &Path, host: &Host) -> Self {
        Self { binary: binary.to_owned(), host: host.clone() }
    }

    /// Returns the output of `--version`.
    ///
    /// # Errors
    /// An error if whet cannot be run.
    pub fn version(&self) -> Result<String, Error> {
        let spec = Spec::new(&self.binary).arg("--version");
        Ok(self.answer(&spec)?.must(&spec)?.trim().to_owned())
    }

    fn answer(&self, spec: &Spec) -> Result<Answer, Error> {
        let answer = self.host.run(spec, LIMIT)?;
        if answer.status.code() == Some(127) && !self.host.is_here() {
            return Err(Error::Missing {
                program: format!("{} on the server's host", self.binary.display()),
                get: "install whet there, and name its path there with --whet".to_owned(),
            });
        }
        Ok(answer)
    }

    /// Runs a command of whet with `--format json` and returns its output.
    ///
    /// # Errors
    /// [`Error::Whet`] with whet's message and advice, if the command fails.
    pub fn run(&self, command: &str, arguments: &[String]) -> Result<Value, Error> {
        self.answer_of(Spec::new(&self.binary), command, arguments, &[])
    }

    /// Runs `whet measure` for its model of events. It computes for seconds, and would have to wait for minutes behind
    /// hundreds of connections; so it has a higher priority, if the lab may give one. Exit code 7 is no failure.
    fn model(&self, arguments: &[String]) -> Result<Value, Error> {
        let may = self.host.is_here() && rustix::process::geteuid().is_root();
        let program = if may {
            Spec::new("nice").args(["-n", "-10"]).arg(&self.binary)
        } else {
            Spec::new(&self.binary)
        };
        self.answer_of(program, "measure", arguments, &[7])
    }

    /// Runs a command of whet. An exit code in `also` is no failure.
    fn answer_of(
        &self,
        program: Spec,
        command: &str,
        arguments: &[String],
        also: &[i32],
    ) -> Result<Value, Error> {
        let spec = program.arg(command).args(arguments).args(["--format", "json"]);
        let answer = self.answer(&spec)?;
        let value: Value = serde_json::from_str(answer.out.trim()).unwrap_or_default();
        if answer.status.success() || answer.status.code().is_some_and(|code| also.contains(&code)) {
            return Ok(value);
        }
        let word = |name: &str| value["error"][name].as_str().map(ToOwned::to_owned);
        Err(Error::Whet {
            command: command.to_owned(),
            message: word("message").unwrap_or_else(|| format!("failed ({})", answer.status)),
            next: word("next").unwrap_or_else(|| "commands.log has what it printed".to_owned()),
        })
    }
}

/// The part of whet's answers that is about the members of a family.
#[derive(Deserialize)]
struct Members {
    found: usize,
    ended: usize,
    left_alone: Vec<LeftAlone>,
}

#[derive(Deserialize)]
struct LeftAlone {
    why: String,
}

/// Brings a server to the requested side, and at the end back to the state in which it was found.
#[derive(Debug)]
pub struct Sides {
    whet: Option<Whet>,
    pid: i32,
    is_family: bool,
    found: Option<Side>,
    now: Option<Side>,
}

impl Sides {
    /// Finds the state of a server. Without whet no command is ever run, and both sides are the server as it
    /// is.
    ///
    /// # Errors
    /// The errors of `whet status`; [`Error::Usage`] if the server is on another host.
    pub fn of(whet: Option<&Whet>, server: &dyn Target) -> Result<Self, Error> {
        let is_family = server.is_family();
        let Some(whet) = whet else {
            return Ok(Self { whet: None, pid: 0, is_family, found: None, now: None });
        };
        let pid = server.pid().ok_or_else(|| {
            Error::Usage(
                "the server is on another host: name a shell on that host with --shell, or measure --null"
                    .into(),
            )
        })?;
        let mut sides = Self { whet: Some(whet.clone()), pid, is_family, found: None, now: None };
        let status = whet.run("status", &sides.words())?;
        let state = if is_family { &status["parent"]["state"] } else { &status["targets"][0]["state"] };
        sides.found = match state.as_str() {
            Some("optimized") => Some(Side::With),
            Some("undone") => Some(Side::Without),
            _ => None,
        };
        sides.now = sides.found;
        Ok(sides)
    }

    /// Returns the words that name the server to whet.
    fn words(&self) -> Vec<String> {
        self.is_family.then(|| "--family".to_owned()).into_iter().chain([self.pid.to_string()]).collect()
    }

    /// Rebuilds the server under the present load. Returns `None` without doing so if there is no whet, or if
    /// the server was found with clones: these are measured as they are. The answer for a family is that of
    /// the parent, with `members` in it, and comes with the change of all processes.
    ///
    /// # Errors
    /// whet's error.
    pub fn optimize(&mut self, seconds: Option<f64>) -> Result<Option<(Value, Option<FamilyChange>)>, Error> {
        let Some(whet) = self.whet.as_ref().filter(|_| self.found.is_none()) else { return Ok(None) };
        let mut words = self.words();
        if let Some(seconds) = seconds {
            words.extend(["--seconds".to_owned(), seconds.to_string()]);
        }
        // This is set before the command, so that an interrupted `whet optimize` is undone at the end.
        self.now = Some(Side::With);
        let mut answer = whet.run("optimize", &words)?;
        let change = self.change("optimize", &answer)?;
        if self.is_family {
            let members = answer["members"].take();
            answer = answer["parent"].take();
            answer["members"] = members;
        }
        Ok(Some((answer, change)))
    }

    /// Returns in how many processes of a family a command put clones in force. `None` if the server is no
    /// family. whet's exit code is 0 also if it left members alone.
    ///
    /// # Errors
    /// [`Error::Whet`] if the answer does not say so.
    fn change(&self, command: &str, answer: &Value) -> Result<Option<FamilyChange>, Error> {
        if !self.is_family {
            return Ok(None);
        }
        let members = Members::deserialize(&answer["members"]).map_err(|e| Error::Whet {
            command: command.to_owned(),
            message: format!("what it printed of the family's members cannot be read: {e}"),
            next: "commands.log has what it printed; use the whet of this lab's version".to_owned(),
        })?;
        Ok(Some(FamilyChange {
            command: command.to_owned(),
            processes: (1 + members.found).saturating_sub(members.ended),
            left_alone: members.left_alone.len(),
            why: members.left_alone.into_iter().next().map(|left| left.why),
        }))
    }

    /// Returns the events that whet models for the clones in the server. `None` without whet, or if whet has
    /// no model of them. The server must have clones and be under load.
    ///
    /// # Errors
    /// whet's error.
    pub fn modelled(&self) -> Result<Option<Value>, Error> {
        let Some(whet) = self.whet.as_ref().filter(|_| self.now.is_some()) else { return Ok(None) };
        // The model comes with a comparison, here a short one. The comparison's own figures allow no conclusion,
        // which is exit code 7. They are not used. If its windows saw no work, it has no figures and no model.
        for window in ["0.05", "0.25", "1"] {
            let words = [self.words(), ["--rounds", "5", "--window", window].map(str::to_owned).to_vec()];
            let mut answer = whet.model(&words.concat())?;
            if let Some(found) = answer.get_mut("modelled").map(Value::take).filter(|m| !m.is_null()) {
                return Ok(Some(found));
            }
            if !answer["qps"].is_null() {
                break;
            }
        }
        Ok(None)
    }

    /// Runs `whet undo` or `whet redo`, unless the server is on the side already. In random order both sides
    /// need this equally often. Returns what `whet redo` did with a family.
    ///
    /// # Errors
    /// whet's error. `whet undo` fails if it leaves redirects in a process.
    pub fn go(&mut self, side: Side) -> Result<Option<FamilyChange>, Error> {
        let Some(whet) = self.whet.as_ref().filter(|_| self.now != Some(side)) else { return Ok(None) };
        let word = if side == Side::With { "redo" } else { "undo" };
        let answer = whet.run(word, &self.words())?;
        self.now = Some(side);
        if side == Side::With { self.change(word, &answer) } else { Ok(None) }
    }

    /// Restores the state in which the server was found. A server that had no clones keeps them undone.
    ///
    /// # Errors
    /// whet's error.
    pub fn restore(&mut self) -> Result<(), Error> {
        if self.now.is_some() {
            self.go(self.found.unwrap_or(Side::Without))?;
        }
        Ok(())
    }
}

impl Drop for Sides {
    fn drop(&mut self) {
        // After an error. Even if the user's interrupt ended a command, the state is restored, so the
        // interrupt is left out here.
        let Some(whet) = self.whet.as_ref().filter(|_| self.now.is_some()) else { return };
        let wanted = self.found.unwrap_or(Side::Without);
        let calm = Whet { host: whet.host.calm(), ..whet.clone() };
        if self.now != Some(wanted) && calm.host.is_alive(self.pid).unwrap_or(false) {
            let word = if wanted == Side::With { "redo" } else { "undo" };
            let _ = calm.run(word, &self.words());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sides(is_family: bool) -> Sides {
        Sides { whet: None, pid: 0, is_family, found: None, now: None }
    }

    #[test]
    fn members_that_whet_left_alone_are_counted_and_those_that_ended_are_not() {
        let left = |pid: i32| json!({ "pid": pid, "code": "busy", "why": format!("{pid} was busy") });
        let answer = |left: &[Value]| json!({ "members": { "found": 5, "ended": 2, "left_alone": left } });
        let change = |left: &[Value]| sides(true).change("redo", &answer(left)).unwrap().unwrap();
        let found = change(&[left(7), left(8)]);
        assert_eq!((found.processes, found.left_alone, found.why.as_deref()), (4, 2, Some("7 was busy")));
        let found = change(&[]);
        assert_eq!((found.processes, found.left_alone, found.why), (4, 0, None));
        assert_eq!(sides(false).change("redo", &answer(&[left(7)])).unwrap(), None);
    }

    #[test]
    fn an_answer_without_members_is_an_error_for_a_family() {
        let e = sides(true).change("redo", &json!({ "state": "optimized" })).unwrap_err();
        assert!(e.to_string().contains("whet redo: what it printed of the family's members"), "{e}");
    }
}
