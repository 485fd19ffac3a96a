//! Ctrl-C and its kin: the first asks for an orderly end, the second ends at once (which harms no target either).

use engine::Interrupt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// From now on these signals are wishes.
pub fn listen(interrupt: &Interrupt) {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let again = Arc::new(AtomicBool::new(false));
        let number = usize::try_from(signal).unwrap_or(usize::MAX);
        // In this order: the first time the flag is not set yet. Where they cannot be had, they end whet as always.
        let _ = flag::register_conditional_default(signal, Arc::clone(&again));
        let _ = flag::register(signal, again);
        let _ = flag::register_usize(signal, interrupt.cell(), number);
    }
}

/// From now on these signals mean nothing: for a process that ends by itself when its work is done.
pub fn ignore() {
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let _ = flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
}
