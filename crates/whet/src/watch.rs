//! `whet status`, once or repeatedly: on a terminal a view that is redrawn every second, elsewhere lines.

mod screen;
mod view;

use crate::daemon::{self, FullStatus};
use crate::interrupt;
use crate::output::Output;
use ::daemon::client::{AskError, PATIENCE};
use engine::{Error, ExitCode, Interrupt, Pid, Watcher};
use screen::{Screen, Waker};
use std::path::PathBuf;
use std::time::Duration;
use view::View;

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// How long the live view waits for a daemon that does not answer.
const BLINK: Duration = Duration::from_millis(500);

/// Looks at targets, and requests the status of a daemon.
struct Looks {
    pid: Option<i32>,
    watcher: Watcher,
    socket: PathBuf,
}

impl Looks {
    fn look(&mut self, patience: Duration) -> Result<(FullStatus, Option<AskError>), Error> {
        daemon::status(self.pid, self.watcher.look(), &self.socket, patience)
    }
}

pub fn run(pid: Option<i32>, watch: bool, out: &Output) -> Result<ExitCode, Error> {
    let socket = daemon::config(out).paths.socket;
    let mut looks = Looks { pid, watcher: Watcher::new(pid.map(Pid)), socket };
    if watch && out.is_screen() {
        return live(&mut looks);
    }
    loop {
        let (status, silent) = looks.look(PATIENCE)?;
        if let Some(e) = silent {
            out.warn(&e.to_string());
        }
        let is_read = out.answer(&status, daemon::human);
        if !watch || !is_read {
            return Ok(ExitCode::Ok);
        }
        std::thread::sleep(EVERY);
    }
}

/// Shows the live view until the user ends it or the terminal is gone.
fn live(looks: &mut Looks) -> Result<ExitCode, Error> {
    let interrupt = Interrupt::default();
    interrupt::listen(&interrupt);
    let waker = Waker::new();
    let mut view = View::default();
    // The first look comes before the screen is entered, so that its error is printed on the plain terminal.
    let mut seen = looks.look(BLINK)?;
    let mut screen = Screen::enter();
    while !interrupt.is_wanted()
        && screen.draw(&view.frame(&seen.0, seen.1.as_ref(), screen.size(), screen.is_coloured()))
    {
        waker.wait(EVERY);
        if waker.is_suspended() {
            screen.leave();
            waker.suspend();
            screen = Screen::enter();
        }
        seen = match looks.look(BLINK) {
            // Perhaps only the daemon lists this process, and its answer is late. This may happen once.
            Err(_) if seen.0.daemon.is_some() => (FullStatus { daemon: None, ..seen.0 }, None),
            look => look?,
        };
    }
    Ok(ExitCode::Ok)
}
