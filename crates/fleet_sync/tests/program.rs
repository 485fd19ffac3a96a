//! The program `whet-fleet`, with a folder as the store: two hosts, a merger, an operator, and trouble.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const BUILD: &str = "0a0b0c";
const NEW_BUILD: &str = "0d0e0f";

struct Fleet {
    folder: tempfile::TempDir,
    public: String,
}

struct Host {
    config: PathBuf,
    spool: PathBuf,
}

fn whet_fleet() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_whet-fleet"));
    command.env_clear();
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[track_caller]
fn run(config: &Path, args: &[&str], exit: i32) -> String {
    let output = whet_fleet().args(args).arg("--config").arg(config).output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(exit), "{args:?}: {text}");
    text
}

fn profile(n: u64) -> String {
    profile_of(BUILD, "/usr/sbin/secret", n)
}

fn profile_of(build: &str, exe: &str, n: u64) -> String {
    format!(
        "whet-profile 2\nexe {exe}\nruns 1\nsamples 100\nmodule {build} secret\n\
         function 0x10 7 counted entered {n} samples 90 size 0x4 global secret\n+0 +0 {n}\nend\n"
    )
}

impl Fleet {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        let output = whet_fleet().arg("keygen").arg(&key).output().unwrap();
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        let public = said.split('"').nth(1).unwrap().to_owned();
        assert!(fs::read_to_string(folder.path().join("key.pub")).unwrap().contains(&public));
        let again = whet_fleet().arg("keygen").arg(&key).output().unwrap();
        assert_eq!(again.status.code(), Some(6), "a key is never overwritten");
        fs::create_dir(folder.path().join("store")).unwrap();
        Self { folder, public }
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn key(&self) -> String {
        self.folder.path().join("key").display().to_string()
    }

    /// A host whose daemon has a target of the build.
    fn host(&self, name: &str) -> Host {
        let home = self.folder.path().join(name);
        let spool = home.join("spool");
        for part in ["spool/in", "spool/out", "state"] {
            fs::create_dir_all(home.join(part)).unwrap();
        }
        let config = home.join("whet-fleet.toml");
        let state = home.join("state");
        let text = format!(
            "store = 'file://{}'\nkeys = ['{}']\nhost = '{name}'\nspool = '{}'\nstate = '{}'\n",
            self.store().display(),
            self.public,
            spool.display(),
            state.display()
        );
        fs::write(&config, text).unwrap();
        let host = Host { config, spool };
        host.runs(BUILD, "/usr/sbin/x");
        host
    }

    /// A fleet in which one host gave a profile and the aggregate is offered to all.
    fn with_aggregate() -> (Self, Host, Host) {
        let fleet = Self::new();
        let (one, two) = (fleet.host("one"), fleet.host("two"));
        let policy = fleet.folder.path().join("policy.json");
        fs::write(&policy, r#"{"version": 1, "serial": 1, "waves": [100], "step": 0}"#).unwrap();
        let set = ["policy", "--set", &policy.display().to_string(), "--key", &fleet.key()];
        run(&one.config, &set, 0);
        assert!(run(&one.config, &set, 2).contains("serial"), "the same policy again");
        fs::write(one.spool.join(format!("out/{BUILD}.profile")), profile(1000)).unwrap();
        assert!(run(&one.config, &["sync"], 0).contains("contributed: "));
        assert!(run(&one.config, &["merge", "--key", &fleet.key()], 0).contains("1 hosts is offered"));
        (fleet, one, two)
    }
}

impl Host {
    fn inbox(&self) -> PathBuf {
        self.spool.join(format!("in/{BUILD}.signed"))
    }

    /// Where an aggregate of another build lies for the new build.
    fn former(&self) -> PathBuf {
        self.spool.join(format!("in/{NEW_BUILD}.former"))
    }

    /// Lets its daemon have a target of one build, as this program.
    fn runs(&self, build: &str, exe: &str) {
        let report = format!(
            r#"{{"version": 1, "builds": [{{"build": "{build}", "exe": "{exe}", "inbox": null}}], "votes": []}}"#
        );
        fs::write(self.spool.join("out/host.json"), report).unwrap();
    }
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { out.extend(files(&path)) } else { out.push(path) }
    }
    out
}

#[test]
fn one_host_warms_the_other() {
    let (fleet, one, two) = Fleet::with_aggregate();
    let said = run(&two.config, &["sync"], 0);
    assert!(said.contains("accepted: "), "{said}");
    let signed = fs::read_to_string(two.inbox()).unwrap();
    assert!(
        signed.starts_with("untrusted comment: ") && signed.contains("whet-fleet 1 aggregate 0a0b0c default")
    );
    assert!(!signed.contains("secret"), "no names leave a host");
    // The next run and the next merge find nothing to do.
    assert_eq!(run(&two.config, &["sync"], 0), "");
    run(&one.config, &["merge", "--key", &fleet.key()], 0);
    assert!(run(&one.config, &["merge", "--key", &fleet.key()], 0).contains("unchanged"));
    let status = run(&two.config, &["status"], 0);
    assert!(status.contains("/usr/sbin/x") && status.contains("in the inbox"), "{status}");
    let json = run(&two.config, &["status", "--json"], 0);
    assert!(json.contains("\"inbox\"") && json.contains("\"last_run\""), "{json}");
    // The same aggregate, signed by hand.
    let by_hand = fleet.folder.path().join("by-hand");
    let own = one.spool.join(format!("out/{BUILD}.profile"));
    let (own, by_hand_text) = (own.display().to_string(), by_hand.display().to_string());
    run(&one.config, &["sign", "--key", &fleet.key(), "--build", BUILD, &own, "-o", &by_hand_text], 0);
    assert!(fs::read_to_string(by_hand).unwrap().contains("whet-fleet 1 aggregate 0a0b0c default"));
}

#[test]
fn harm_on_hosts_withdraws_an_aggregate() {
    let (fleet, one, two) = Fleet::with_aggregate();
    run(&two.config, &["sync"], 0);
    let digest = files(&fleet.store()).iter().find_map(|f| {
        let text = f.display().to_string();
        text.contains("/m/").then(|| text.rsplit('/').next().unwrap().to_owned())
    });
    let digest = digest.unwrap();
    for host in [&one, &two] {
        let report = format!(
            r#"{{"version": 1, "builds": [{{"build": "{BUILD}", "exe": "/x", "inbox": {{"taken": "{digest}"}}}}],
               "votes": [{{"build": "{BUILD}", "digest": "{digest}", "harm": true, "factor": [0.9, 0.85, 0.95]}}]}}"#
        );
        fs::write(host.spool.join("out/host.json"), report).unwrap();
        assert!(run(&host.config, &["sync"], 0).contains("a vote for harm"));
        assert!(!host.inbox().exists(), "a host that saw harm does not keep it");
    }
    assert!(run(&one.config, &["merge", "--key", &fleet.key()], 0).contains("withdrawn"));
    let third = fleet.host("three");
    assert!(!run(&third.config, &["sync"], 0).contains("accepted"));
}

#[test]
fn trouble_has_its_message_and_exit_code_and_changes_nothing() {
    let (fleet, one, two) = Fleet::with_aggregate();
    run(&two.config, &["sync"], 0);
    let before = fs::read(two.inbox()).unwrap();
    let same = |why: &str| assert_eq!(fs::read(two.inbox()).unwrap(), before, "{why}");
    // The store is gone.
    let away = fleet.folder.path().join("away");
    fs::rename(fleet.store(), &away).unwrap();
    assert!(run(&two.config, &["sync"], 3).contains("cannot be reached"));
    assert!(!fleet.store().exists(), "nothing is written in its place");
    same("gone");
    fs::rename(&away, fleet.store()).unwrap();
    // A head without a signature, an old head, a damaged aggregate.
    let head = files(&fleet.store()).into_iter().find(|f| f.ends_with("head")).unwrap();
    let good = fs::read(&head).unwrap();
    fs::write(&head, b"untrusted comment: x\nnonsense\n").unwrap();
    let said = run(&two.config, &["sync"], 5);
    assert!(said.contains("is refused"), "{said}");
    same("unsigned head");
    assert!(run(&two.config, &["status"], 0).contains("refused: "));
    // The merger puts it right.
    assert!(run(&one.config, &["merge", "--key", &fleet.key()], 0).contains("is refused"));
    assert_ne!(fs::read(&head).unwrap(), b"untrusted comment: x\nnonsense\n");
    run(&two.config, &["sync"], 0);
    fs::write(&head, &good).unwrap();
    let said = run(&two.config, &["sync"], 5);
    assert!(said.contains("older than one that was seen before"), "{said}");
    let third = fleet.host("three");
    let aggregate =
        files(&fleet.store()).into_iter().find(|f| f.display().to_string().contains("/m/")).unwrap();
    let packed = fs::read(&aggregate).unwrap();
    fs::write(&aggregate, &packed[..packed.len() / 2]).unwrap();
    assert!(run(&third.config, &["sync"], 5).contains("damaged"));
    assert!(!third.inbox().exists());
    // Another operator's key.
    let other = Fleet::new();
    let config = fs::read_to_string(&third.config).unwrap().replace(&fleet.public, &other.public);
    fs::write(&third.config, config).unwrap();
    fs::write(&aggregate, &packed).unwrap();
    assert!(run(&third.config, &["sync"], 5).contains("none of the configured keys"));
    // The configuration, and a file of this host.
    fs::write(&third.config, "stor = 'x'\n").unwrap();
    assert!(run(&third.config, &["sync"], 2).contains("whet-fleet.toml:1:1: "));
    fs::remove_file(&third.config).unwrap();
    run(&third.config, &["sync"], 6);
    fs::write(two.spool.join("out/host.json"), "nonsense").unwrap();
    run(&two.config, &["sync"], 5);
    same("a damaged report");
}

#[test]
fn a_policy_denies_and_pauses() {
    let (fleet, one, two) = Fleet::with_aggregate();
    let policy = fleet.folder.path().join("policy.json");
    let set = |serial: u32, rest: &str| {
        fs::write(
            &policy,
            format!(r#"{{"version": 1, "serial": {serial}, "waves": [100], "step": 0, {rest}}}"#),
        )
        .unwrap();
        run(&one.config, &["policy", "--set", &policy.display().to_string(), "--key", &fleet.key()], 0);
    };
    set(2, r#""pause": true"#);
    assert!(run(&two.config, &["sync"], 0).contains("the policy says pause"));
    assert!(!two.inbox().exists());
    assert!(run(&two.config, &["status"], 0).contains("pause"));
    set(3, r#""pause": false"#);
    assert!(run(&two.config, &["sync"], 0).contains("accepted"));
    set(4, &format!(r#""deny": ["{BUILD}"]"#));
    assert!(run(&two.config, &["sync"], 0).contains("was removed"));
    assert!(!two.inbox().exists());
    assert!(run(&one.config, &["policy"], 0).contains(BUILD));
}

/// A fleet in which an aggregate of a build is in force on all hosts, and a host that runs the next build.
fn with_new_build() -> (Fleet, Host, Host) {
    let (fleet, one, two) = Fleet::with_aggregate();
    let merge = ["merge", "--key", &fleet.key()];
    two.runs(NEW_BUILD, "/opt/new/secret");
    assert!(!run(&two.config, &["sync"], 0).contains("accepted"), "it is still offered in waves");
    assert!(run(&one.config, &merge, 0).contains("in force on all hosts"));
    (fleet, one, two)
}

#[test]
fn a_new_build_gets_the_aggregate_of_the_build_before() {
    let (fleet, one, two) = with_new_build();
    let said = run(&two.config, &["sync"], 0);
    assert!(said.contains(&format!("accepted: {NEW_BUILD}: aggregate ")) && said.contains(BUILD), "{said}");
    let signed = fs::read_to_string(two.former()).unwrap();
    assert!(signed.contains("whet-fleet 1 aggregate 0a0b0c default") && !signed.contains("secret"));
    assert_eq!(run(&two.config, &["sync"], 0), "");
    let status = run(&two.config, &["status"], 0);
    assert!(
        status.contains("in the inbox, of build 0a0b0c: ") && status.contains("has not seen it"),
        "{status}"
    );
    let json = run(&two.config, &["status", "--json"], 0);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["builds"][0]["former"]["build"], BUILD);
    // Another program of this host gets nothing, nor does the build itself.
    two.runs(NEW_BUILD, "/opt/new/other");
    assert!(run(&two.config, &["sync"], 0).contains("no other build has an aggregate now"));
    assert!(!two.former().exists());
    two.runs(NEW_BUILD, "/opt/new/secret");
    run(&two.config, &["sync"], 0);
    // An aggregate of the build itself replaces it.
    let merge = ["merge", "--key", &fleet.key()];
    one.runs(NEW_BUILD, "/usr/sbin/secret");
    let own = one.spool.join(format!("out/{NEW_BUILD}.profile"));
    fs::write(own, profile_of(NEW_BUILD, "/usr/sbin/secret", 7)).unwrap();
    assert!(run(&one.config, &["sync"], 0).contains("contributed: "));
    run(&one.config, &merge, 0);
    let said = run(&two.config, &["sync"], 0);
    assert!(said.contains("there is a profile of the build itself"), "{said}");
    assert!(!two.former().exists() && two.spool.join(format!("in/{NEW_BUILD}.signed")).exists());
    // From then on the new build serves others.
    run(&one.config, &merge, 0);
    let third = fleet.host("three");
    third.runs("aa", "/usr/sbin/secret");
    assert!(run(&third.config, &["sync"], 0).contains(NEW_BUILD));
}

#[test]
fn the_aggregate_of_another_build_is_withdrawn_denied_and_refused_as_any_other() {
    let (fleet, one, two) = with_new_build();
    run(&two.config, &["sync"], 0);
    let before = fs::read(two.former()).unwrap();
    // Nonsense in the place of the record, and then of the aggregate: nothing changes, and a merger puts it right.
    let record = files(&fleet.store().join("v1/names")).pop().unwrap();
    let good = fs::read(&record).unwrap();
    for nonsense in [&b"nonsense"[..], &vec![b'x'; 3 << 20], &good[..good.len() - 9]] {
        fs::write(&record, nonsense).unwrap();
        assert!(run(&two.config, &["sync"], 5).contains("is refused"));
        assert_eq!(fs::read(two.former()).unwrap(), before);
        run(&one.config, &["merge", "--key", &fleet.key()], 0);
        run(&two.config, &["sync"], 0);
    }
    let third = fleet.host("three");
    third.runs(NEW_BUILD, "/usr/sbin/secret");
    let is_aggregate = |f: &PathBuf| f.display().to_string().contains("/m/");
    let aggregate = files(&fleet.store()).into_iter().find(is_aggregate).unwrap();
    let packed = fs::read(&aggregate).unwrap();
    fs::write(&aggregate, &packed[..packed.len() / 2]).unwrap();
    assert!(run(&third.config, &["sync"], 5).contains("damaged"));
    assert!(!third.former().exists());
    fs::write(&aggregate, &packed).unwrap();
    // Another operator's record.
    let config = fs::read_to_string(&third.config).unwrap();
    fs::write(&third.config, config.replace(&fleet.public, &Fleet::new().public)).unwrap();
    assert!(run(&third.config, &["sync"], 5).contains("none of the configured keys"));
    assert!(!third.former().exists());
    // The host's comparison of the new build finds harm: it removes it, and the aggregate serves its own build on.
    let digest = aggregate.file_name().unwrap().to_str().unwrap();
    let report = format!(
        r#"{{"version": 1, "builds": [{{"build": "{NEW_BUILD}", "exe": "/x/secret", "inbox": null}}],
           "votes": [{{"build": "{NEW_BUILD}", "digest": "{digest}", "harm": true, "factor": [0.9, 0.85, 0.95]}}]}}"#
    );
    fs::write(two.spool.join("out/host.json"), report).unwrap();
    assert!(run(&two.config, &["sync"], 0).contains("was removed"));
    assert!(!two.former().exists());
    two.runs(BUILD, "/usr/sbin/secret");
    assert!(run(&two.config, &["sync"], 0).contains("accepted"));
    // The operator denies the old build.
    let fourth = fleet.host("four");
    fourth.runs(NEW_BUILD, "/usr/sbin/secret");
    run(&fourth.config, &["sync"], 0);
    assert!(fourth.former().exists());
    let policy = fleet.folder.path().join("policy.json");
    fs::write(&policy, format!(r#"{{"version": 1, "serial": 2, "waves": [100], "deny": ["{BUILD}"]}}"#))
        .unwrap();
    run(&one.config, &["policy", "--set", &policy.display().to_string(), "--key", &fleet.key()], 0);
    assert!(run(&fourth.config, &["sync"], 0).contains("was removed"));
    assert!(!fourth.former().exists());
}

/// Two hosts of a new build find harm by the aggregate of another build: no further host takes it, unless far more
/// of them find none.
#[test]
fn votes_of_a_new_build_keep_the_aggregate_of_another_from_further_hosts() {
    let (fleet, _, two) = with_new_build();
    let new_host = |name: &str| {
        let host = fleet.host(name);
        host.runs(NEW_BUILD, "/usr/sbin/secret");
        let said = run(&host.config, &["sync"], 0);
        (host, said)
    };
    run(&two.config, &["sync"], 0);
    let mut others: Vec<Host> = (0..5).map(|n| new_host(&format!("early {n}")).0).collect();
    let is_aggregate = |f: &PathBuf| f.display().to_string().contains("/m/");
    let aggregate = files(&fleet.store()).into_iter().find(is_aggregate).unwrap();
    let digest = aggregate.file_name().unwrap().to_str().unwrap();
    let vote = |host: &Host, harm: bool| {
        let report = format!(
            r#"{{"version": 1, "builds": [{{"build": "{NEW_BUILD}", "exe": "/usr/sbin/secret", "inbox": null}}],
               "votes": [{{"build": "{NEW_BUILD}", "digest": "{digest}", "harm": {harm}, "factor": [1, 1, 1]}}]}}"#
        );
        fs::write(host.spool.join("out/host.json"), report).unwrap();
        assert!(run(&host.config, &["sync"], 0).contains("contributed: a vote for"));
    };
    vote(&two, true);
    let (third, said) = new_host("third");
    assert!(third.former().exists(), "one vote may be chance: {said}");
    let last = others.pop().unwrap();
    vote(&third, true);
    let (late, said) = new_host("late");
    assert!(said.contains("hosts of this build found harm") && !late.former().exists(), "{said}");
    vote(&last, false);
    assert!(!run(&late.config, &["sync"], 0).contains("accepted"), "two of three votes");
    for host in (0..8).map(|n| others.pop().unwrap_or_else(|| fleet.host(&format!("vote {n}")))) {
        vote(&host, false);
    }
    assert!(run(&late.config, &["sync"], 0).contains("accepted"), "two of eleven votes may be chance");
}

/// A host finds no harm at first, and harm after a restart under another load: its later vote counts as well.
#[test]
fn harm_that_is_found_later_is_voted() {
    let (fleet, _, two) = Fleet::with_aggregate();
    run(&two.config, &["sync"], 0);
    let is_aggregate = |f: &PathBuf| f.display().to_string().contains("/m/");
    let aggregate = files(&fleet.store()).into_iter().find(is_aggregate).unwrap();
    let digest = aggregate.file_name().unwrap().to_str().unwrap();
    for (harm, word) in [(false, "no harm"), (true, "harm"), (true, "")] {
        let report = format!(
            r#"{{"version": 1, "builds": [{{"build": "{BUILD}", "exe": "/usr/sbin/x", "inbox": null}}],
               "votes": [{{"build": "{BUILD}", "digest": "{digest}", "harm": {harm}, "factor": [1, 1, 1]}}]}}"#
        );
        fs::write(two.spool.join("out/host.json"), report).unwrap();
        let said = run(&two.config, &["sync"], 0);
        let voted = said.contains(&format!("a vote for {word}: "));
        assert_eq!(voted, !word.is_empty(), "{said}");
    }
    let votes = files(&fleet.store().join("v1")).into_iter().map(|f| f.display().to_string());
    assert_eq!(votes.filter(|f| f.contains("/v/")).count(), 2);
}
