//! Ctrl-C and similar signals: the first requests an orderly end, the second ends whet at once (which harms
//! no target either).

use engine::Interrupt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Turns these signals into requests to end.
pub fn listen(interrupt: &Interrupt) {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let again = Arc::new(AtomicBool::new(false));
        let number = usize::try_from(signal).unwrap_or(usize::MAX);
        // In this order, the flag is not yet set at the first signal. If a handler cannot be registered, the
        // signal ends whet as usual.
        let _ = flag::register_conditional_default(signal, Arc::clone(&again));
        let _ = flag::register(signal, again);
        let _ = flag::register_usize(signal, interrupt.cell(), number);
    }
}

/// Ignores these signals, for a process that ends by itself when its work is done.
pub fn ignore() {
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let _ = flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
}
