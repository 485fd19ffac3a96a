//! `doctor`: what this host offers, and how to fix what is missing.

use crate::base::kernel;
use serde::Serialize;
use std::fs;

/// The answer of `doctor`.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    /// True if everything that whet needs is there.
    pub ok: bool,
    /// The single checks.
    pub checks: Vec<Check>,
}

/// One check.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// True if the state is as required.
    pub ok: bool,
    /// True if whet cannot work without it.
    pub needed: bool,
    /// What was found.
    pub found: String,
    /// How to fix it; empty if nothing must be fixed.
    pub mend: String,
}

/// Checks the host.
#[must_use]
pub fn doctor() -> DoctorReport {
    let mut checks = vec![kernel(), ptrace(), capabilities(), own_filter()];
    checks.extend(sampling());
    checks.push(huge_pages());
    let ok = checks.iter().all(|c| c.ok || !c.needed);
    DoctorReport { ok, checks }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|s| s.trim().to_owned())
}

fn kernel() -> Check {
    let release = kernel::release();
    let version = kernel::version(&release);
    Check {
        name: "kernel",
        ok: version >= (4, 17),
        needed: true,
        found: release,
        mend: if version >= (4, 17) { String::new() } else { "Linux 4.17 or later is needed".to_owned() },
    }
}

fn ptrace() -> Check {
    let scope = read("/proc/sys/kernel/yama/ptrace_scope");
    let (ok, mend) = match scope.as_deref() {
        None | Some("0" | "1" | "2") => (true, ""),
        Some(_) => {
            (false, "ptrace_scope 3 forbids tracing until the next boot; set kernel.yama.ptrace_scope=1")
        }
    };
    let found = scope.map_or("no restriction by Yama".to_owned(), |s| format!("yama ptrace_scope {s}"));
    Check { name: "ptrace", ok, needed: true, found, mend: mend.to_owned() }
}

/// Checks capabilities. `CAP_SYS_PTRACE` (19) and `CAP_DAC_OVERRIDE` (1) reach other users' processes.
/// `CAP_SYS_ADMIN` (21) reaches processes under seccomp filters. `CAP_SYS_NICE` (23) keeps stops short.
fn capabilities() -> Check {
    let effective = own_status("CapEff:").and_then(|v| u64::from_str_radix(&v, 16).ok()).unwrap_or(0);
    let wanted =
        [(1, "CAP_DAC_OVERRIDE"), (19, "CAP_SYS_PTRACE"), (21, "CAP_SYS_ADMIN"), (23, "CAP_SYS_NICE")];
    let missing: Vec<&str> =
        wanted.iter().filter(|(bit, _)| effective >> bit & 1 == 0).map(|(_, name)| *name).collect();
    Check {
        name: "capabilities",
        ok: missing.is_empty(),
        needed: false,
        found: if missing.is_empty() { "all".to_owned() } else { format!("without {}", missing.join(", ")) },
        mend: if missing.is_empty() {
            String::new()
        } else if tracee::is_root() {
            "run outside of the container or service that takes these away; without, some processes, and longer stops"
                .to_owned()
        } else {
            "run as root; without, only processes of the same user and without seccomp filters, and longer stops"
                .to_owned()
        },
    }
}

/// Returns a value of whet's own `/proc/self/status`.
fn own_status(word: &str) -> Option<String> {
    let status = read("/proc/self/status")?;
    status.lines().find_map(|l| l.strip_prefix(word)).map(|v| v.trim().to_owned())
}

/// Checks for a seccomp filter on whet: under a filter, whet cannot suspend a target's filter.
fn own_filter() -> Check {
    let filtered = own_status("Seccomp:").is_some_and(|mode| mode != "0");
    Check {
        name: "seccomp",
        ok: !filtered,
        needed: false,
        found: if filtered { "whet is under a filter itself" } else { "no filter on whet" }.to_owned(),
        mend: if filtered {
            "run whet outside this container or sandbox; here, processes under filters are refused".to_owned()
        } else {
            String::new()
        },
    }
}

fn sampling() -> Vec<Check> {
    let offered = perf::capability();
    vec![
        Check {
            name: "sampling",
            ok: offered.cpu_clock || offered.cycles,
            needed: true,
            found: format!(
                "perf_event_paranoid {}",
                offered.paranoid.map_or("?".to_owned(), |p| p.to_string())
            ),
            mend: if offered.cpu_clock || offered.cycles {
                String::new()
            } else {
                let by_root = "run outside of the container, or allow perf_event_open in its seccomp profile";
                let by_others = "run as root, or set kernel.perf_event_paranoid=2";
                if tracee::is_root() { by_root.to_owned() } else { by_others.to_owned() }
            },
        },
        Check {
            name: "pmu",
            ok: offered.cycles,
            needed: false,
            found: if offered.cycles { "cycle counter" } else { "none (usual in a VM): cpu-clock is used" }
                .to_owned(),
            mend: String::new(),
        },
        Check {
            name: "branch-stacks",
            ok: offered.branch_stacks.is_some(),
            needed: false,
            found: match offered.branch_stacks {
                Some(perf::Source::TakenBranches) => "with every so many taken branches",
                Some(_) => "yes",
                None => "none (usual in a VM): edges are counted by clones that count",
            }
            .to_owned(),
            mend: String::new(),
        },
    ]
}

fn huge_pages() -> Check {
    let setting = splice::huge_pages_setting();
    let ok = setting.as_ref().is_some_and(|(_, set)| splice::huge_pages_offered(set));
    let mend = setting.as_ref().filter(|_| !ok).map(|(file, _)| format!("echo madvise > {file}"));
    Check {
        name: "huge-pages",
        ok,
        needed: false,
        found: setting.map_or("not in this kernel".to_owned(), |(_, set)| set),
        mend: mend.unwrap_or_default(),
    }
}
