//! The terminal's alternate screen. The terminal is left as it was.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::{flag, low_level};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Switches to the alternate screen of the terminal (xterm's 1049) and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The alternate screen, while this value lives. When it is dropped, the former content comes back.
#[derive(Debug)]
pub struct Screen {
    entered: bool,
    coloured: bool,
}

impl Screen {
    pub fn enter() -> Self {
        let choice = anstream::AutoStream::choice(&std::io::stdout());
        let coloured = choice != anstream::ColorChoice::Never;
        Self { entered: put(ENTER), coloured }
    }

    /// Leaves the alternate screen early.
    pub fn leave(&mut self) {
        if std::mem::take(&mut self.entered) {
            put(LEAVE);
        }
    }

    /// Returns the terminal's columns and lines, or 80 and 24 if they are not known.
    pub fn size(&self) -> (usize, usize) {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
        let known = size.filter(|s| s.ws_col > 0 && s.ws_row > 0);
        known.map_or((80, 24), |s| (usize::from(s.ws_col), usize::from(s.ws_row)))
    }

    /// Returns whether colours are wanted (`NO_COLOR`, `CLICOLOR`, `TERM`).
    pub fn is_coloured(&self) -> bool {
        self.coloured
    }

    /// Draws lines from the top over the old ones, so that nothing flickers. Returns whether the terminal is
    /// still there.
    pub fn draw(&self, lines: &[String]) -> bool {
        let mut text = String::from("\x1b[H");
        for (i, line) in lines.iter().enumerate() {
            if i > 0 {
                text.push_str("\r\n");
            }
            text.push_str(line);
            text.push_str("\x1b[K");
        }
        text.push_str("\x1b[J");
        put(&text)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

fn put(text: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

/// A sleep until a time has passed or a signal came that the view must handle.
#[derive(Debug)]
pub struct Waker {
    signals: Option<UnixStream>,
    suspended: Arc<AtomicBool>,
}

impl Waker {
    pub fn new() -> Self {
        let suspended = Arc::new(AtomicBool::new(false));
        let _ = flag::register(SIGTSTP, Arc::clone(&suspended));
        let signals = UnixStream::pair().ok().map(|(ours, theirs)| {
            for signal in [SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGTSTP] {
                // If this fails, the signal is noticed a second later.
                let _ = theirs.try_clone().and_then(|s| low_level::pipe::register(signal, s));
            }
            ours
        });
        Self { signals, suspended }
    }

    pub fn wait(&self, time: Duration) {
        match &self.signals {
            Some(signals) => {
                let _ = signals.set_read_timeout(Some(time));
                let mut stream = signals;
                let _ = stream.read(&mut [0; 64]);
            }
            None => std::thread::sleep(time),
        }
    }

    /// Returns whether Ctrl-Z was pressed.
    pub fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Relaxed)
    }

    /// Suspends whet as Ctrl-Z does. Returns when whet is continued.
    pub fn suspend(&self) {
        self.suspended.store(false, Ordering::Relaxed);
        let _ = low_level::emulate_default_handler(SIGTSTP);
    }
}
