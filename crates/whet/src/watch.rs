//! `whet status`, once or again and again: a view that is drawn anew every second on a terminal, lines elsewhere.

mod screen;
mod view;

use crate::daemon;
use crate::interrupt;
use crate::output::Output;
use engine::{Error, ExitCode, Interrupt, Pid, Watcher};
use screen::{Screen, Waker};
use std::time::Duration;
use view::View;

/// How often.
const EVERY: Duration = Duration::from_secs(1);

pub fn run(pid: Option<i32>, watch: bool, out: &Output) -> Result<ExitCode, Error> {
    let mut watcher = Watcher::new(pid.map(Pid));
    if watch && out.is_screen() {
        return live(&mut watcher);
    }
    loop {
        let is_read = out.answer(&daemon::status(pid, watcher.look(), out)?, daemon::human);
        if !watch || !is_read {
            return Ok(ExitCode::Ok);
        }
        std::thread::sleep(EVERY);
    }
}

/// Until somebody ends it, or nobody sees it any more.
fn live(watcher: &mut Watcher) -> Result<ExitCode, Error> {
    let interrupt = Interrupt::default();
    interrupt::listen(&interrupt);
    let waker = Waker::new();
    let mut view = View::default();
    // The first look comes before: its error belongs on the terminal as it was.
    let mut report = watcher.look()?;
    let mut screen = Screen::enter();
    while !interrupt.is_wanted() && screen.draw(&view.frame(&report, screen.size(), screen.is_coloured())) {
        waker.wait(EVERY);
        if waker.is_suspended() {
            screen.leave();
            waker.suspend();
            screen = Screen::enter();
        }
        report = watcher.look()?;
    }
    Ok(ExitCode::Ok)
}
