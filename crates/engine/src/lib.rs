//! Works on one target: decides, explains, and combines the other crates.
//!
//! Each command takes a process id and options. It returns an answer as plain data, or an [`Error`] with
//! cause, exit code and next step.
#![forbid(unsafe_code)]

mod analyse;
mod base;
mod build;
mod count;
mod debuggers;
mod family;
mod operate;
mod plan;
mod rebuild;
mod records;
mod replay;
mod session;
mod shared_memory;
mod show;

pub use ::fetch_model::Events as FetchEvents;
pub use base::error::{Error, ExitCode, is_root, rights, with_causes};
pub use base::failure::Failure;
pub use base::interrupt::Interrupt;
pub use base::names::{demangled, short as short_name};
pub use base::options::{CodeCache, MEMORY_CAP, OptimizeOptions};
pub use base::passes::{Pass, Passes};
pub use base::phases::PhaseTime;
pub use base::progress::Progress;
pub use base::whole_file;
pub use build::code_files::CodeFiles;
pub use build::map_store::read as read_maps;
pub use count::counting::{CountedFunction, count_during};
pub use count::rounds::CountingReport;
pub use debuggers::gdb::{GdbReport, gdb, gdb_core};
pub use debuggers::jitdump::{PerfReport, perf};
pub use debuggers::perf_map::PerfMap;
pub use family::align::{LeftAlone, MembersReport};
pub use family::control::{FamilyRedone, FamilyUndone, align_family, mend_family, redo_family, undo_family};
pub use family::facts::kind;
pub use family::look::{
    FamilyStatus, FamilyVerified, MemberStatus, busiest_member, family_parent, family_status, journal_state,
    verify_family,
};
pub use family::members::Kind;
pub use operate::control::{Code, ToggleAnswer, mend, redo, undo};
pub use operate::status::{StatusReport, TargetStatus, is_still};
pub use operate::switch::Switch;
pub use operate::verify::{Unexpected, VerifyReport, verify};
pub use operate::watcher::{Watcher, status};
pub use plan::block_order::graph as block_order_graph;
pub use plan::estimate::StacksReport;
pub use profile::Profile;
pub use rebuild::family::{FamilyOptimized, optimize_family};
pub use rebuild::optimize::optimize;
pub use rebuild::report::{FunctionCounts, OptimizeReport};
pub use records::dyno::{DynoReport, DynoStats};
pub use records::originals::changed_originals;
pub use records::profile_store::{
    ProfileForm, ProfileText, ProfileUse, ShownFunction, ShownModule, ShownPlace, ShownProfile, ShownSite,
    build_id, export_profile, merge_profiles, read_profile, show_profile, write_profile,
};
pub use records::shares::UserTime;
pub use replay::{
    Again, CacheReport, CaptureOptions, CaptureReport, FunctionLayout, ReplayReport, capture, replay,
    replay_bytes,
};
pub use session::pristine::Pristine;
pub use session::state::{StopMs, TargetState};
pub use session::target::Target;
pub use shared_memory::huge_pages::huge_pages;
pub use shared_memory::report::{HugePagesReport, Moving, NotMoved, SharedMapping};
pub use show::anatomy::{Anatomy, Asm, BlockAnatomy, CodeRange, EdgeAnatomy, Pairing, Row, Standing, Warmth};
pub use show::debug_names::name_functions;
pub use show::debuginfod::Debuginfod;
pub use show::doctor::{Check, DoctorReport, doctor};
pub use show::explain::{ExplainReport, FunctionReport, explain};
pub use show::fetch::{FetchReport, fetch_report, follow_path};
pub use show::fit::{Fit, fit, fit_family};
pub use show::flame::{Flame, FlameFrame, FlameSide};
pub use show::heat::{Heat, HeatSide, Space};
pub use show::overview::{Overview, ProfileFacts, overview};
pub use show::reason::reason_in_words;
pub use tracee::{Pid, Tally, start_time_now, tally};
