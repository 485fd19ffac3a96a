//! One target's life: decides, explains, brings the other crates together.
//!
//! You give a process id and what to do; it gives an answer as plain data, or an [`Error`] with cause, exit code and
//! next step.
#![forbid(unsafe_code)]

mod anatomy;
mod build;
mod callees;
mod caller_address;
mod calls;
mod candidates;
mod claim;
mod clone_symbols;
mod control;
mod core_file;
mod counting;
mod covering;
mod direct;
mod doctor;
mod dyno;
mod error;
mod explain;
mod file_text;
mod fit;
mod forked;
mod front_end;
mod function_order;
mod gdb;
mod ground;
mod gs;
mod heat;
mod interrupt;
mod jitdump;
mod late_bound;
mod lock;
mod lookup;
mod loops;
mod map_store;
mod memory_limit;
mod names;
mod neighbourhood;
mod notes;
mod optimize;
mod originals;
mod overview;
mod parallel;
mod passes;
mod perf_map;
mod perf_place;
mod pristine;
mod private;
mod profile_store;
mod program;
mod redirects;
mod report;
mod restore;
mod reuse;
mod samples;
mod seldom;
mod shares;
mod shortcuts;
mod shuffle;
mod sign;
mod source;
mod split;
mod stacks;
mod status;
mod switch;
mod target;
mod targets;
#[cfg(test)]
mod test_candidate;
mod turns;
mod unloadable;
mod unwinder;
mod verify;
mod walk;
mod watcher;
pub mod whole_file;

pub use ::frontend::Events as FrontEndEvents;
pub use anatomy::{Anatomy, Asm, BlockAnatomy, EdgeAnatomy, Pairing, Row, Standing, Stretch, Warmth};
pub use candidates::StacksReport;
pub use control::{mend, redo, undo};
pub use counting::{CountedFunction, CountingReport, count_during};
pub use doctor::{Check, DoctorReport, doctor};
pub use dyno::{DynoReport, DynoStats};
pub use error::{Error, ExitCode, is_root, rights, with_causes};
pub use explain::{ExplainReport, FunctionReport, explain, reason_in_words};
pub use fit::{Fit, fit};
pub use front_end::{FrontEndReport, follow_path, front_end};
pub use gdb::{GdbReport, gdb, gdb_core};
pub use heat::{Heat, HeatSide, Space};
pub use interrupt::Interrupt;
pub use jitdump::{PerfReport, perf};
pub use map_store::read as read_maps;
pub use names::{demangled, short as short_name};
pub use optimize::{MEMORY_CAP, OptimizeOptions, Progress, optimize};
pub use originals::changed_originals;
pub use overview::{Overview, ProfileFacts, overview};
pub use passes::{Pass, Passes};
pub use perf_map::PerfMap;
pub use pristine::Pristine;
pub use profile::Profile;
pub use profile_store::{
    ProfileForm, ProfileText, ProfileUse, ShownFunction, ShownModule, ShownPlace, ShownProfile, ShownSite,
    build_id, export_profile, merge_profiles, read_profile, show_profile, write_profile,
};
pub use report::{
    FunctionCounts, OptimizeReport, StatusReport, StopMs, TargetState, TargetStatus, ToggleAnswer,
    Unexpected, VerifyReport,
};
pub use shares::UserTime;
pub use status::{is_still, status};
pub use switch::Switch;
pub use target::Target;
pub use tracee::Pid;
pub use verify::verify;
pub use watcher::Watcher;
