//! All scenarios, scaled down, on a real private server; and failures.

use crate::support::long::Long;
use crate::support::running::Running;
use crate::support::tables::small_tables;
use crate::support::{count, lab, left_behind, made_up, prepared, records, run, whet};
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Small and short options. The machine may be busy, so no test here depends on figures.
const SMALL: [&str; 4] = ["--seed=7", "--warm-up=0.5", "--buffer-pool=64", "--settle=0.1"];

fn server_is_here() -> bool {
    let is_here = Path::new("/usr/sbin/mariadbd").exists() && Path::new("/usr/bin/sysbench").exists();
    if !is_here {
        println!("skipped: no mariadbd or no sysbench here");
    }
    is_here
}

/// Makes a run that must succeed, and returns its records. It uses the prepared server, unless `more` names
/// another server or whet.
fn works(scenario: &str, more: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut command = lab();
    command.arg(scenario).args(SMALL).args(more).arg("--out").arg(&out);
    let has = |option: &str| more.iter().any(|m| m.starts_with(option));
    if !has("--whet") {
        command.arg("--null");
        if !has("--server") {
            command.args(prepared::options());
        }
    }
    let (code, said, err) = run(&mut command);
    assert_eq!(code, Some(0), "{err}");
    // The runs of these tests are short.
    assert!(err.contains("warning: this run has ") && err.contains("will not be fit to publish"), "{err}");
    assert_eq!(said.trim(), out.canonicalize().unwrap().join("report.html").display().to_string());
    let html = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(!html.contains("Not whole"));
    assert!(!out.join("work").exists(), "the server's data is still there");
    assert_eq!(left_behind(&out), Vec::<String>::new());
    let log = fs::read_to_string(out.join("commands.log")).unwrap();
    assert!(log.contains("$ ") && log.contains("--datadir=") && log.contains("> exit status: 0"));
    for option in more.iter().filter_map(|m| m.strip_prefix("--flush-log=")) {
        for value in option.split(',') {
            assert!(log.contains(&format!("--innodb-flush-log-at-trx-commit={value}")), "{value}");
        }
    }
    records(&out)
}

#[test]
fn stalls_with_whet() {
    if !server_is_here() {
        return;
    }
    let Some(whet) = whet() else { return };
    let whet = format!("--whet={}", whet.display());
    let records = works(
        "stalls",
        &[
            &whet,
            "--tests=oltp_point_select",
            "--threads=1,2",
            "--tables=1",
            "--rows=1000",
            "--sampling=1",
            "--pairs=1",
            "--control=1",
            "--window=0.3",
        ],
    );
    // Each step has one pair, one A/A pair, and a rebuild of its own.
    assert_eq!((count(&records, "done"), count(&records, "window"), count(&records, "optimize")), (2, 8, 2));
    assert_eq!(records.iter().filter(|r| r["control"] == true).count(), 4);
    // Each step has events of its own: counted in each window, or modelled.
    let counted = records.iter().filter(|r| r["events"].as_object().is_some_and(|e| !e.is_empty())).count();
    assert!(counted == 8 || count(&records, "modelled") == 2, "{counted} windows have events: {records:?}");
    let answer = records.iter().find(|r| r["kind"] == "optimize").unwrap();
    assert_eq!(answer["answer"]["state"], "optimized");
    for window in records.iter().filter(|r| r["kind"] == "window") {
        assert!(window["queries"].as_u64() > Some(0) && window["cpu"].as_f64() > Some(0.0), "{window}");
    }
}

#[test]
fn oltp_rw() {
    if server_is_here() {
        let records =
            works("oltp-rw", &["--threads=4", "--tables=1", "--rows=1000", "--window=1.6", "--pairs=1"]);
        assert_eq!((count(&records, "done"), count(&records, "window")), (2, 4));
        let loads = records.iter().filter(|r| r["kind"] == "begin").map(|r| r["step"]["load"].as_str());
        assert_eq!(loads.collect::<Vec<_>>(), [Some("oltp_read_only"), Some("oltp_read_write")]);
        for window in records.iter().filter(|r| r["kind"] == "window") {
            let times = &window["transactions"];
            let buckets = times["buckets"].as_array().unwrap();
            let count: u64 = buckets.iter().map(|b| b[1].as_u64().unwrap()).sum();
            // A transaction has 16 statements or more. Both are counted at nearly the same moments.
            assert!(count > 0 && 8 * count < window["queries"].as_u64().unwrap(), "{window}");
            assert!(times["sum_us"].as_u64().unwrap() > count, "{window}");
        }
        let seconds: Vec<&Value> = records.iter().filter(|r| r["kind"] == "second").collect();
        assert!(seconds.len() >= 2 && seconds.iter().all(|s| s["tps"].as_f64() > Some(0.0)), "{seconds:?}");
        assert!(seconds.iter().all(|s| s["iowait"].as_f64() <= s["idle"].as_f64()), "{seconds:?}");
    }
}

/// Two servers in one run: a server by name, and another build of the same version.
#[test]
fn fixed_rate() {
    if server_is_here() {
        let prepared = prepared::options();
        let records = works(
            "fixed-rate",
            &[
                "--threads=2",
                "--tables=1",
                "--rows=1000",
                "--rate=200",
                "--window=0.5",
                "--pairs=1",
                "--server=mariadb",
                &prepared[0],
                "--server-option=2:--innodb-io-capacity=300",
            ],
        );
        assert_eq!((count(&records, "done"), count(&records, "rate"), count(&records, "latency")), (2, 2, 4));
        let mut servers: Vec<&str> = records.iter().filter_map(|r| r["step"]["server"].as_str()).collect();
        servers.dedup();
        assert!(servers.len() == 2 && servers[1] == format!("{}-2", servers[0]), "{servers:?}");
        let options: Vec<&Value> =
            records.iter().filter(|r| r["kind"] == "begin").map(|r| &r["options"]).collect();
        assert_eq!(options, [&Value::Null, &serde_json::json!(["--innodb-io-capacity=300"])]);
        // A busy machine may fall behind the rate, but never runs ahead of it by much.
        for window in records.iter().filter(|r| r["kind"] == "window") {
            assert!((1..600).contains(&window["queries"].as_u64().unwrap()), "{window}");
        }
    }
}

/// All servers by name but Debian's. They are fetched if they are not there.
#[test]
fn servers_by_name() {
    if std::env::var_os("WHET_STRESS").is_none() || !server_is_here() {
        println!("skipped: a part of the long form, WHET_STRESS=1");
        return;
    }
    let names = ["mysql-9.7", "mariadb-10.1", "mariadb-10.2", "mariadb-11.4", "mariadb-11.8", "mysql-5.6"];
    let mut options: Vec<String> = names.iter().map(|n| format!("--server={n}")).collect();
    options.extend(
        ["--warehouses=1", "--shrink=100", "--threads=2", "--window=1", "--pairs=1"].map(str::to_owned),
    );
    let records = works("tpcc", &options.iter().map(String::as_str).collect::<Vec<_>>());
    let begun: Vec<&Value> = records.iter().filter(|r| r["kind"] == "begin").collect();
    assert_eq!((begun.len(), count(&records, "done")), (names.len(), names.len()));
    for (name, begin) in names.iter().zip(begun) {
        assert!(begin["step"]["server"].as_str().unwrap().starts_with(name), "{name}: {begin}");
        let is_xtradb = begin["server_version"].as_str().unwrap().contains("XtraDB");
        assert_eq!(is_xtradb, *name == "mariadb-10.1", "{begin}");
    }
}

#[test]
fn tpcc() {
    if server_is_here() {
        let records = works(
            "tpcc",
            &[
                "--warehouses=2",
                "--shrink=100",
                "--threads=4",
                "--window=1.5",
                "--pairs=1",
                "--flush-log=1,2",
            ],
        );
        assert_eq!((count(&records, "done"), count(&records, "check")), (2, 44));
        let flushed: Vec<u64> = records
            .iter()
            .filter(|r| r["kind"] == "begin")
            .filter_map(|r| r["step"]["flush_log"].as_u64())
            .collect();
        assert_eq!(flushed, [1, 2]);
        assert!(records.iter().filter(|r| r["kind"] == "check").all(|c| c["ok"] == true));
        let kinds: std::collections::BTreeSet<&str> =
            records.iter().filter(|r| r["kind"] == "latency").filter_map(|r| r["of"].as_str()).collect();
        assert!(kinds.contains("new order") && kinds.contains("payment"), "{kinds:?}");
    }
}

/// Many terminals of one warehouse, with few orders: deliveries take orders that were placed after they began.
#[test]
fn tpcc_delivers_orders_that_are_placed_meanwhile() {
    if server_is_here() {
        let records =
            works("tpcc", &["--warehouses=1", "--shrink=100", "--threads=8", "--window=1", "--pairs=2"]);
        assert_eq!(count(&records, "done"), 1);
        assert!(records.iter().filter(|r| r["kind"] == "check").all(|c| c["ok"] == true));
    }
}

#[test]
fn scaling() {
    if server_is_here() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("tables");
        small_tables(&data);
        let data = format!("--data={}", data.display());
        let out = dir.path().join("run");
        let mut command = lab();
        command.args([
            "scaling",
            "--null",
            "--cpus=1",
            "--threads=1,2",
            "--pairs=1",
            "--buffer-pool=64",
            &data,
        ]);
        command.args(prepared::options());
        let (code, _, err) = run(command.arg("--out").arg(&out));
        assert_eq!(code, Some(0), "{err}");
        let records = records(&out);
        assert_eq!((count(&records, "done"), count(&records, "window")), (2, 4));
        let queries: Vec<u64> =
            records.iter().filter(|r| r["kind"] == "window").filter_map(|w| w["queries"].as_u64()).collect();
        assert_eq!(queries, [22, 22, 44, 44]);
        // The report's content depends on the machine: with much steal, all windows are void.
        assert!(out.join("report.html").exists());
    }
}

/// The real generator of TPC-H's data, if its two Python packages are installed.
#[test]
fn scaling_on_generated_data() {
    if !server_is_here() {
        return;
    }
    let has_generator = Command::new("python3")
        .args(["-c", "import duckdb, duckdb_extension_tpch"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    if !has_generator {
        println!(
            "skipped: python3 has no duckdb and duckdb-extension-tpch here (a venv's bin in front of PATH would do)"
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut command = lab();
    command.args(["scaling", "--null", "--factor=0.01", "--cpus=1", "--threads=1", "--queries=1,3,6,22"]);
    command.args(["--pairs=1", "--buffer-pool=64"]).args(prepared::options());
    let (code, _, err) = run(command.arg("--out").arg(&out));
    assert_eq!(code, Some(0), "{err}");
    let records = records(&out);
    let queries: Vec<u64> =
        records.iter().filter(|r| r["kind"] == "window").filter_map(|w| w["queries"].as_u64()).collect();
    assert_eq!((count(&records, "done"), queries.as_slice()), (1, [4, 4].as_slice()));
    assert!(!out.join("tpch").exists(), "the generated files are still there");
}

#[test]
fn a_crashed_server_is_named_and_the_run_can_be_resumed() {
    if !server_is_here() {
        return;
    }
    let mut long = Long::begin();
    long.wait_for_data();
    Long::signal(long.server(), "KILL");
    let code = long.child.wait().unwrap().code();
    let err = long.err();
    assert_eq!(code, Some(10), "{err}");
    assert!(
        err.contains("ended in the middle of the run") && err.contains("what was measured is kept"),
        "{err}"
    );
    let before = records(&long.out);
    assert!(count(&before, "window") > 0 && count(&before, "broken") == 1);
    assert!(fs::read_to_string(long.out.join("report.html")).unwrap().contains("Not whole"));
    long.nothing_is_left();

    let (folder, name) = (long.out.parent().unwrap(), long.out.file_name().unwrap());
    let (code, _, err) = run(lab().current_dir(folder).arg("resume").arg(name));
    assert_eq!(code, Some(0), "{err}");
    let after = records(&long.out);
    assert_eq!(after[..before.len()], before[..], "what was there is still there");
    assert_eq!(count(&after, "done"), 2);
    assert!(!fs::read_to_string(long.out.join("report.html")).unwrap().contains("Not whole"));
}

/// Queries that wait for a lock end with the interrupt.
#[test]
fn ctrl_c_ends_the_running_queries_of_scaling() {
    if !server_is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("tables");
    small_tables(&data);
    let data = format!("--data={}", data.display());
    let options = ["--cpus=1", "--threads=2", "--pairs=10000", "--buffer-pool=64", &data];
    let options = options.into_iter().map(OsString::from).chain(prepared::options().map(Into::into));
    let mut long = Long::of("scaling", options);
    long.wait_for_data();
    let client = || {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "-uroot", "-nN"]).arg("-S").arg(long.data().join("s")).arg("whet_lab");
        client.stdin(Stdio::piped()).stdout(Stdio::piped());
        client
    };
    let mut locks = client().spawn().unwrap();
    let mut lock = || {
        locks.stdin.as_mut().unwrap().write_all(b"LOCK TABLES lineitem WRITE; SELECT 1;\n").unwrap();
        locks.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
    };
    let waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table%'";
    let both_wait = || run(client().args(["-e", waiting])).1.trim() == "2";
    let until = Instant::now() + Duration::from_secs(60);
    lock();
    while !both_wait() {
        assert!(Instant::now() < until, "no query waits");
        std::thread::sleep(Duration::from_millis(50));
        // A thread that had finished the work of its window waits in the lab for the other one, which the lock
        // holds up. To lock again frees the tables for an instant.
        lock();
    }
    Long::signal(long.child.id().try_into().unwrap(), "INT");
    let until = Instant::now() + Duration::from_secs(30);
    let code = loop {
        match long.child.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if Instant::now() > until => break None,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    locks.kill().unwrap();
    locks.wait().unwrap();
    assert_eq!(code, Some(11), "the lab waits for its queries");
    long.nothing_is_left();
}

#[test]
fn the_server_ends_with_a_killed_lab() {
    if !server_is_here() {
        return;
    }
    let mut long = Long::begin();
    long.wait_for_data();
    let server = long.server();
    long.child.kill().unwrap();
    long.child.wait().unwrap();
    long.nothing_is_left();
    assert!(!Path::new(&format!("/proc/{server}/exe")).exists());
}

/// Makes a run that must be refused before a server is started.
fn refused(arguments: &[&str]) -> (Option<i32>, String, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let (code, _, err) = run(lab().args(arguments).arg("--out").arg(dir.path().join("run")));
    (code, err, dir)
}

#[test]
fn missing_programs_are_named_before_a_window_is_measured() {
    let wanted: [(&[&str], &str, &str); 3] = [
        (
            &["stalls", "--null", "--sysbench=/no/sysbench"],
            "cannot find /no/sysbench",
            "apt-get install sysbench",
        ),
        (&["tpcc", "--whet=/no/whet"], "cannot find /no/whet", "name it with --whet"),
        (&["tpcc", "--null", "--server-binary=/no/mysqld"], "cannot find /no/mysqld", "--server-binary"),
    ];
    let (code, err, _) = refused(&["tpcc", "--null", "--server=oracle"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("no server is called oracle; there are mariadb, mysql-9.7"), "{err}");
    for (arguments, what, next) in wanted {
        let (code, err, dir) = refused(arguments);
        assert_eq!(code, Some(3), "{err}");
        assert!(err.contains(what) && err.contains(next), "{err}");
        assert_eq!(count(&records(&dir.path().join("run")), "window"), 0);
    }
}

#[test]
fn invalid_options_are_refused() {
    for bad in ["--pairs=0", "--window=-1", "--threads=x", "--warm-up=nan"] {
        let (code, err, _) = refused(&["stalls", "--null", bad]);
        assert_eq!(code, Some(2), "{bad}: {err}");
    }
    // Before any data is made.
    let (code, err, dir) = refused(&["scaling", "--null", "--cpus=1,5000"]);
    assert!(code == Some(2) && err.contains("CPUs, not 5000"), "{err}");
    assert!(!dir.path().join("run").exists());
    let (code, err, _) = refused(&["scaling", "--null", "--factor=0.001"]);
    assert!(code == Some(2) && err.contains("no factor from 0.01"), "{err}");
    let running = "--dsn=mysql://root@127.0.0.1:1/x";
    let (code, err, dir) = refused(&["scaling", "--null", running]);
    assert!(code == Some(2) && err.contains("not for running servers (--dsn); name a program"), "{err}");
    assert!(!dir.path().join("run").exists());
    let (code, err, _) = refused(&["tpcc", "--null", "--dsn=postgres://x"]);
    assert!(code == Some(2) && err.contains("is no address of a server"), "{err}");
    let (code, err, _) = refused(&["tpcc", "--null", running]);
    assert!(code == Some(13) && err.contains("127.0.0.1:1"), "{err}");
}

/// A run that an older lab began on a running server is not continued.
#[test]
fn scaling_of_a_running_server_is_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    made_up(dir.path(), &[(1, 1200, 1000)], false);
    let path = dir.path().join("run.json");
    let mut head: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let mut common = head["scenario"]["stalls"]["common"].take();
    common["dsn"] = serde_json::json!(["mysql://root@127.0.0.1:1/x"]);
    common["null"] = true.into();
    head["scenario"] = serde_json::json!({ "scaling": { "common": common, "factor": 0.01, "data": dir.path(),
        "cpus": [1], "threads": [1], "queries": [], "pairs": 1 } });
    fs::write(&path, head.to_string()).unwrap();
    let (code, _, err) = run(lab().arg("resume").arg(dir.path()));
    assert!(code == Some(2) && err.contains("not for running servers (--dsn); name a program"), "{err}");
}

#[test]
fn a_port_in_use_is_named() {
    if !server_is_here() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let [server, log] = prepared::options();
    let (code, err, _) =
        refused(&["tpcc", "--null", &format!("--port={port}"), "--buffer-pool=64", &server, &log]);
    assert_eq!(code, Some(6), "{err}");
    assert!(
        err.contains(&format!("port {port} is in use")) && err.contains("choose another with --port"),
        "{err}"
    );
}

/// A full disk, as a small file system of its own. Mounting it needs root.
#[test]
fn a_full_disk_is_named_and_raw_data_is_kept() {
    if !server_is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let script = r#"mount -t tmpfs -o size=3m none "$1" || exit 99; shift; exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&small).arg(env!("CARGO_BIN_EXE_whet-lab"));
    command.args(["tpcc", "--null", "--out"]).arg(dir.path().join("run")).arg("--datadir").arg(&small);
    let (code, _, err) = run(&mut command);
    if code == Some(99) || err.contains("unshare") {
        println!("skipped: no file system can be mounted here: {err}");
        return;
    }
    assert_eq!(code, Some(13), "{err}");
    assert!(err.contains("the disk is full: make room"), "{err}");
    assert!(dir.path().join("run/run.json").exists() && dir.path().join("run/report.html").exists());
}

/// A server that runs already: with a wrong password, with databases that are not empty, and with valid
/// options. An empty database stays as it was.
#[test]
fn a_running_server_by_its_address() {
    if !server_is_here() {
        return;
    }
    let server = Running::start(&[]);
    let sql = |text: &str| server.sql(text);
    let (base, socket) = (server.folder(), server.socket());
    // `blind` may not see the event in its database.
    let users = "CREATE USER lab@localhost IDENTIFIED BY 's3cret!'; GRANT ALL ON *.* TO lab@localhost;
        CREATE USER blind@localhost IDENTIFIED BY 's3cret!'; GRANT ALL ON empty.* TO blind@localhost;
        REVOKE EVENT ON empty.* FROM blind@localhost;";
    let databases = "CREATE DATABASE shop; CREATE TABLE shop.t (a INT);
        CREATE DATABASE stored; CREATE PROCEDURE stored.p() SELECT 1;
        CREATE DATABASE timed; CREATE EVENT timed.e ON SCHEDULE EVERY 1 YEAR DO SELECT 1;
        CREATE DATABASE empty CHARACTER SET latin1 COLLATE latin1_german1_ci COMMENT 'mine';
        CREATE EVENT empty.e ON SCHEDULE EVERY 1 YEAR DO SELECT 1;";
    assert!(sql(users).0 && sql(databases).0);
    let contents = || {
        sql("SHOW DATABASES; SHOW CREATE DATABASE empty; SHOW TABLES FROM empty; SHOW EVENTS FROM empty;
            SHOW TABLES FROM shop; SHOW EVENTS FROM timed; SHOW PROCEDURE STATUS WHERE db = 'stored'")
    };
    let before = contents();

    let out = base.join("run");
    let address = |account: &str, database: &str| {
        format!("--dsn=mysql://{account}@localhost/{database}?socket={}", socket.display())
    };
    let refused = |account: &str, database: &str| {
        let out = base.join(format!("refused-{database}"));
        let small = ["--warehouses=1", "--shrink=100", "--threads=1", "--pairs=1", "--window=0.5"];
        run(lab().args(["tpcc", "--null", &address(account, database), "--out"]).arg(out).args(small))
    };
    let (wrong, somebodys) = std::thread::scope(|scope| {
        let wrong = scope.spawn(|| refused("lab:wrong", "bench"));
        let somebodys = ["shop", "stored", "timed"].map(|database| refused("lab:s3cret!", database));
        (wrong.join().unwrap(), somebodys)
    });
    let right = run(lab()
        .args([
            "fixed-rate",
            "--null",
            "--threads=2",
            "--tables=1",
            "--rows=500",
            "--rate=100",
            "--pairs=1",
            "--window=0.5",
        ])
        .args(SMALL)
        .args([address("lab:s3cret!", "bench"), address("blind:s3cret!", "empty")])
        .arg("--out")
        .arg(&out));
    let after = contents();

    assert_eq!(wrong.0, Some(4), "{}", wrong.2);
    assert!(wrong.2.contains("does not let lab in") && wrong.2.contains("WHET_LAB_PASSWORD"), "{}", wrong.2);
    for ((code, _, err), what) in somebodys.iter().zip(["tables", "routines", "events"]) {
        assert_eq!(*code, Some(2), "{err}");
        assert!(
            err.contains(&format!(" has {what}")) && err.contains("hint: name a database in --dsn"),
            "{err}"
        );
    }
    assert_eq!(right.0, Some(0), "{}", right.2);
    assert_eq!(count(&records(&out), "done"), 2);
    // The lab's own database and tables are gone, all others are there.
    assert!(
        before.0 && before.1.contains("latin1_german1_ci") && !before.1.contains("bench"),
        "{}",
        before.1
    );
    assert_eq!(before, after);
    // No file in the run's folder holds the password.
    for entry in fs::read_dir(&out).unwrap().flatten().filter(|e| e.path().is_file()) {
        let text = fs::read(entry.path()).unwrap();
        let text = String::from_utf8_lossy(&text);
        assert!(!text.contains("s3cret!"), "{}", entry.path().display());
    }
}
