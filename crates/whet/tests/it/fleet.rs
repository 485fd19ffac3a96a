//! Two hosts of a fleet, end to end: each with a daemon and a spool folder, with one folder as their store.

use crate::daemon::Daemon;
use crate::profile::build_named;
use crate::support::{Guest, wait_until};
use clap::Parser;
use fleet_sync::Exit;
use fleet_sync::cli::{Cli, run};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The folder of a fleet: the store, the operator's key, and each host's files.
struct Fleet {
    folder: TempDir,
}

/// A host that runs one build of the program under its own daemon.
struct Host {
    config: PathBuf,
    spool: PathBuf,
    daemon: Daemon,
    program: PathBuf,
}

fn whet_fleet(args: &[&str], config: &Path) {
    let config = config.to_str().unwrap();
    let cli = Cli::parse_from([&["whet-fleet"], args, &["--config", config]].concat());
    assert_eq!(run(&cli), Exit::Ok, "{args:?}");
}

impl Fleet {
    fn new() -> Self {
        let fleet = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(fleet.path("store")).unwrap();
        let keygen = Cli::parse_from(["whet-fleet", "keygen", fleet.path("key").to_str().unwrap()]);
        assert_eq!(run(&keygen), Exit::Ok);
        fleet
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn host(&self, name: &str, program: PathBuf) -> Host {
        let spool = self.path(name).join("spool");
        for part in ["spool/in", "spool/out", "state"] {
            fs::create_dir_all(self.path(name).join(part)).unwrap();
        }
        let public = fs::read_to_string(self.path("key.pub")).unwrap();
        let public = public.lines().nth(1).unwrap();
        let config = self.path(name).join("whet-fleet.toml");
        let (store, folder) = (self.path("store"), self.path(name));
        let both = format!("keys = ['{public}']\nspool = '{}'\n", spool.display());
        let text = format!(
            "{both}store = 'file://{}'\nhost = '{name}'\nstate = '{}/state'\n",
            store.display(),
            folder.display()
        );
        fs::write(&config, text).unwrap();
        let daemon = Daemon::for_program(&program, &format!("[harm]\njudge = false\n[fleet]\n{both}"));
        Host { config, spool, daemon, program }
    }
}

impl Host {
    /// Returns what its daemon reports of its one build.
    fn reported(&self) -> Value {
        let report = fs::read_to_string(self.spool.join("out/host.json")).unwrap_or_default();
        serde_json::from_str::<Value>(&report).unwrap_or_default()["builds"][0].clone()
    }

    fn has_exported(&self) -> bool {
        let out = fs::read_dir(self.spool.join("out")).unwrap();
        out.flatten().any(|e| e.path().extension().is_some_and(|x| x == "profile"))
    }

    fn finish(self, guest: Guest) -> String {
        drop(self.daemon);
        let (code, signal, said) = guest.finish();
        assert_eq!((code, signal), (Some(0), None), "{said}");
        fs::remove_dir_all(self.program.parent().unwrap()).unwrap();
        said
    }
}

/// Host 1 counts in one build; host 2 starts another build from what host 1 gave. In it all functions lie elsewhere.
#[test]
fn another_hosts_profile_of_the_build_before_warms_a_new_build() {
    let fleet = Fleet::new();
    let mut one = fleet.host("one", build_named("cases.c", &["-DBUILD=1"]));
    let first = Guest::working(&one.program, &["spin"], 1);
    one.daemon.start();
    one.daemon.comes_to(first.pid(), "optimized");
    wait_until("an exported profile", || one.has_exported());
    let policy = fleet.path("policy.json");
    fs::write(&policy, r#"{"version": 1, "serial": 1, "waves": [100], "step": 0}"#).unwrap();
    let key = fleet.path("key");
    let key = key.to_str().unwrap();
    whet_fleet(&["policy", "--set", policy.to_str().unwrap(), "--key", key], &one.config);
    whet_fleet(&["sync"], &one.config);
    for _ in 0..2 {
        whet_fleet(&["merge", "--key", key], &one.config);
    }

    let program = build_named("cases.c", &["-DBUILD=2", "-falign-functions=256"]);
    let mut two = fleet.host("two", program);
    // Without the switch, its daemon would start the target cold before anything has come.
    two.daemon.switch(true);
    two.daemon.start();
    let second = Guest::working(&two.program, &["spin"], 1);
    wait_until("the new build in the report", || two.reported()["build"].is_string());
    assert_ne!(two.reported()["build"], one.reported()["build"]);
    whet_fleet(&["sync"], &two.config);
    wait_until("the fleet's profile", || !two.reported()["former"].is_null());
    assert!(two.reported()["former"]["taken"].is_string(), "{}", two.reported());
    two.daemon.switch(false);
    let reason = two.daemon.comes_to(second.pid(), "optimized");
    assert!(reason.starts_with("warm, by the profile of another build; "), "{reason}");
    let seen = two.daemon.target(second.pid());
    assert_eq!(seen["started_from"], "fleet_of_other_build", "{seen}");
    let log = two.daemon.log();
    assert!(log.contains("it is started from the fleet's profile of another build"), "{log}");
    second.progresses(1);
    assert!(!two.has_exported(), "nothing was counted");
    let outputs = [one.finish(first), two.finish(second)];
    assert_eq!(outputs[0], outputs[1]);
}
