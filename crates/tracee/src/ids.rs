//! Numbers of processes, threads and signals in the kernel.

use std::fmt;

/// A process, by the id of its thread group in this pid namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid(pub i32);

impl Pid {
    /// Converts the id to the type of `rustix`; `None` if no process can have this id.
    pub(crate) fn raw(self) -> Option<rustix::process::Pid> {
        rustix::process::Pid::from_raw(self.0)
    }
}

/// A thread, by its id in this pid namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tid(pub i32);

impl Tid {
    /// Converts the id to the type of `rustix`; `None` if no thread can have this id.
    pub(crate) fn raw(self) -> Option<rustix::process::Pid> {
        Pid(self.0).raw()
    }
}

/// A signal by number, real-time signals (32..=64) included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sig(pub i32);

macro_rules! show {
    ($t:ident) => {
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($t), "({})"), self.0)
            }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}
show!(Pid);
show!(Tid);
show!(Sig);
