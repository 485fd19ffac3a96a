//! What whet shows of a target: one function side by side, the live view, the page for the browser.

use crate::support::{Guest, build, copy, have, run, scratch, skip, stress, wait_until, whet, whet_command};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Functions of the guest that are entered again and again.
const HOT: [&str; 2] = ["mix_some", "sum_up"];

/// Starts a guest that was counted and whose hot functions were rebuilt.
fn optimized(program: &Path) -> Guest {
    let guest = Guest::working(program, &["spin"], 1);
    let pid = guest.arg();
    whet(&[&["optimize", &pid, "--seconds", "1", "--count", "0.3", "--only"][..], &HOT].concat()).exits(0);
    guest
}

fn explain(guest: &Guest, function: &str) -> Value {
    whet(&["explain", &guest.arg(), function, "--format", "json"]).exits(0).json()["functions"][0].clone()
}

fn tool(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support").join(name)
}

#[test]
fn one_function_side_by_side() {
    let guest = optimized(&build("cases.c"));
    let f = explain(&guest, "mix_some");
    let a = &f["anatomy"];
    assert_eq!(
        (&a["standing"], &a["counted"], &f["reason"]),
        (&json!("cloned"), &json!(true), &json!(null)),
        "{f}"
    );
    assert!(a["entered"].as_u64().unwrap() > 1000, "{a}");
    assert_eq!(a["redirects"]["entry"], 1, "{a}");
    let blocks = a["blocks"].as_array().unwrap();
    let count = |b: &Value| b["count"].as_u64().unwrap();
    // Counts into a block equal counts out of it, and most blocks ran.
    for b in blocks {
        let edges = b["edges"].as_array().unwrap();
        let out: u64 = edges.iter().map(|e| e["count"].as_u64().unwrap()).sum();
        if b["ends"] != "return" && b["ends"] != "indirect" {
            // Some threads were inside when counting began or ended.
            assert!(out.abs_diff(count(b)) <= 8, "{b}");
        }
        let shares: f64 = edges.iter().filter_map(|e| e["probability"].as_f64()).sum();
        assert!(out == 0 || (shares - 1.0).abs() < 0.001, "{b}");
        let runs = b["runs"].as_str().unwrap();
        assert_eq!(b["clone"].is_null(), runs == "original", "{b}");
    }
    assert!(blocks.iter().filter(|b| count(b) > 0).count() > 2, "{a}");
    // Copies are shown beside the originals' instructions.
    let rows: Vec<&Value> = blocks.iter().flat_map(|b| b["code"].as_array().unwrap()).collect();
    let copies: Vec<&&Value> = rows.iter().filter(|r| r["pairing"] == "copy").collect();
    let word = |v: &Value| v["text"].as_str().unwrap().split(' ').next().unwrap().to_owned();
    let jumps = |w: &str| w.starts_with('j');
    for row in &copies {
        let (original, clone) = (word(&row["original"]), word(&row["clone"]));
        assert!(original == clone || jumps(&original) && jumps(&clone), "{row}");
        assert_ne!(row["original"]["at"], row["clone"]["at"], "{row}");
    }
    assert!(copies.len() > 5, "{a}");
    for row in &rows {
        let sides = (row["original"].is_null(), row["clone"].is_null());
        let wanted = match row["pairing"].as_str().unwrap() {
            "copy" | "again" => (false, false),
            "extra" | "inlined" => (true, false),
            _ => (false, true),
        };
        assert_eq!(sides, wanted, "{row}");
    }

    // Any address in the function gives the same answer.
    let inside = |v: &Value, n: u64| {
        let at = u64::from_str_radix(v.as_str().unwrap().trim_start_matches("0x"), 16).unwrap();
        format!("{:#x}", at + n)
    };
    for at in [inside(&f["at"], 0), inside(&f["at"], 3), inside(&f["clone"], 0), inside(&f["clone"], 5)] {
        assert_eq!(explain(&guest, &at)["name"], "mix_some", "{at}");
    }
    // A part of a name that no other function has is enough. Functions that were rebuilt or refused are
    // searched first.
    assert_eq!(explain(&guest, "ix_so")["name"], "mix_some");
    let several = whet(&["explain", &guest.arg(), "m", "--format", "json"]).exits(2).json();
    assert_eq!(several["error"]["code"], "several_functions");
    assert!(several["error"]["message"].as_str().unwrap().contains("mix_some"), "{several}");
    whet(&["explain", &guest.arg(), "no_such_function"]).exits(3);
    whet(&["explain", &guest.arg(), "0x1"]).exits(3);
    // A function that was not selected is shown too, with the reason.
    for (name, blocks, word) in [("round_once", 2, "or was not among"), ("main", 0, "returns twice")] {
        let cold = explain(&guest, name);
        let a = &cold["anatomy"];
        assert_eq!((&cold["reason"], &a["standing"]), (&json!("not_hot"), &json!("not_hot")), "{cold}");
        assert!(a["blocks"].as_array().unwrap().len() >= blocks, "{cold}");
        assert!(a["why"].as_str().unwrap().contains(word), "{cold}");
    }

    let text = whet(&["explain", &guest.arg(), "sum_up"]).exits(0).stdout;
    for word in [
        "standing   cloned",
        "entered ",
        "block 0 at 0x",
        "[hot], ran ",
        "taken  block ",
        "clone of mix_some>",
        "%",
    ] {
        assert!(text.contains(word), "{word:?} in {text}");
    }
    // After an undo, the journal still has this information.
    whet(&["undo", &guest.arg()]).exits(0);
    assert_eq!(explain(&guest, "sum_up")["anatomy"]["standing"], "cloned");
    guest.progresses(1);
}

#[test]
fn status_shows_the_whet_at_work() {
    let guest = Guest::working(&build("cases.c"), &["spin"], 1);
    let pid = guest.arg();
    let mut work = whet_command(&["optimize", &pid, "--seconds", "2", "--count", "1"]).spawn().unwrap();
    let by = crate::support::pid_of(&work);
    let mut seen = Vec::new();
    while work.try_wait().unwrap().is_none() {
        let answer = whet(&["status", &pid, "--format", "json"]).exits(0).json();
        if let Some(t) = answer["targets"].get(0).filter(|t| t["worked_on_by"] == by) {
            seen.push(t["state"].as_str().unwrap().to_owned());
        }
    }
    seen.dedup();
    let at = |state: &str| seen.iter().position(|s| s == state);
    assert!(at("profiling") == Some(0) && at("counting") > at("profiling"), "{seen:?}");
    let after = whet(&["status", &pid, "--format", "json"]).exits(0).json();
    let t = &after["targets"][0];
    assert_eq!((&t["state"], &t["worked_on_by"]), (&json!("optimized"), &json!(null)), "{after}");
    assert!(t["coverage"].as_f64().unwrap() > 0.5 && t["cloned"].as_u64().unwrap() > 0, "{after}");
    assert!(t["stop_ms"].as_f64().unwrap() > 0.0 && t["cpu_seconds"].as_f64().unwrap() > 0.0, "{after}");
    let text = whet(&["status", &pid]).exits(0).stdout;
    let lines: Vec<&str> = text.lines().collect();
    let name = build("cases.c").file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(lines[..2], ["whet: 1 optimized", &format!("{name}, pid: {pid}, optimized")], "{text}");
    assert!(lines.len() == 4 && lines[2].contains(" functions in "), "{text}");
    assert!(lines[3].starts_with("    user time: "), "{text}");
}

#[test]
fn the_live_view_gives_the_terminal_back() {
    let guest = optimized(&build("cases.c"));
    let mut command = Command::new("python3");
    command.arg(tool("terminal.py")).arg(env!("CARGO_BIN_EXE_whet")).args([
        "status",
        &guest.arg(),
        "--watch",
    ]);
    command.env_remove("NO_COLOR");
    let answer = run(command).exits(0).json();
    assert_eq!(answer["code"], 0, "{answer}");
    // The terminal shows the typed key, too.
    let drawn = answer["drawn"].as_str().unwrap().replace("^C", "");
    let (enter, leave) = ("\x1b[?1049h\x1b[?25l\x1b[H", "\x1b[?25h\x1b[?1049l");
    assert!(drawn.starts_with(enter) && drawn.ends_with(leave), "{answer}");
    let frames: Vec<&str> = drawn[enter.len()..drawn.len() - leave.len()].split("\x1b[H").collect();
    for word in ["\x1b[1mwhet: 1 optimized", "COVERAGE", &guest.arg(), "\x1b[32m"] {
        assert!(frames[0].contains(word), "{word:?} in {answer}");
    }
    // The last frame has the size that the terminal had by then.
    let plain = |line: &str| -> usize {
        let parts = line.split('\x1b');
        parts.map(|p| p.split_once(['m', 'K', 'H', 'J']).map_or(p, |(_, text)| text).chars().count()).sum()
    };
    // The terminal adds one more carriage return before each new line.
    let lines: Vec<&str> = frames[frames.len() - 1].split('\n').map(|l| l.trim_end_matches('\r')).collect();
    assert!(lines.len() <= 6 && lines.iter().all(|l| plain(l) <= 40), "{answer}");
}

#[test]
fn a_page_that_needs_nothing_else() {
    // Foreign text is shown as text, whatever it contains.
    let program = scratch("a<b>&'\"{{x}}-\x1b[2J-");
    copy(&build("cases.c"), &program);
    let guest = optimized(&program);
    // Without its suffix, the browser may show the page as plain text.
    let page = scratch("page").with_extension("html");
    let measured = scratch("measured.json");
    let gain = json!({
        "pid": 1, "steady": false, "work": {"kind": "mysql", "what": "queries <i>"},
        "qps": {"without": {"value": 1000.0, "low": 990.0, "high": 1010.0}, "with": {"value": 1250.0, "low": 1240.0, "high": 1260.0},
                "change": {"value": 1.25, "low": 1.23, "high": 1.27}},
        "cpu_usage": null,
        "combined_improvement_factor": {"value": 1.31, "low": 1.28, "high": 1.34},
    });
    std::fs::write(&measured, gain.to_string()).unwrap();
    let arguments =
        ["report", &guest.arg(), "-o", page.to_str().unwrap(), "--measure", measured.to_str().unwrap()];
    let written = whet(&[&arguments[..], &["--format", "json"]].concat()).exits(0).json();
    assert_eq!((&written["heat"], &written["pid"]), (&json!(true), &json!(guest.pid())), "{written}");
    // A flame graph of the profile, and one of new samples.
    assert_eq!(written["flame_graphs"], 2, "{written}");
    let mut check = Command::new("python3");
    check.arg(tool("page.py")).arg(&page);
    check.args([
        "a<b>&'\"{{x}}-\u{fffd}[2J-",
        "mix_some",
        "× 1.31",
        "queries <i>",
        "1.280 – 1.340",
        "not steady",
    ]);
    check.args([
        "Measured on another process: 1",
        "taken branches",
        "After: the clones",
        "Before: the originals",
        "Now, with the clones",
        "Its callers are estimated",
        "code cache 1 of 1",
    ]);
    let maps: u32 = run(check).exits(0).stdout.trim().parse().unwrap();
    assert!(maps >= 4, "{maps} maps");
    if stress() {
        in_a_browser(&page);
    }

    // The page is written whole or not at all, and links of others are not followed.
    let link = scratch("link");
    std::os::unix::fs::symlink(&measured, &link).unwrap();
    for (place, code) in
        [(link.as_path(), 2), (Path::new("/dev/null"), 2), (Path::new("/nowhere/at/all.html"), 3)]
    {
        whet(&["report", &guest.arg(), "-o", place.to_str().unwrap()]).exits(code);
    }
    assert_eq!(std::fs::read_to_string(&measured).unwrap(), gain.to_string());
    std::fs::write(&page, "old").unwrap();
    whet(&["report", &guest.arg(), "-o", page.to_str().unwrap(), "--measure", page.to_str().unwrap()])
        .exits(2);
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "old");
    let left = std::fs::read_dir(page.parent().unwrap()).unwrap().flatten();
    let own = format!(".{}", page.file_name().unwrap().to_str().unwrap());
    assert_eq!(left.filter(|e| e.file_name().to_string_lossy().starts_with(&own)).count(), 0);

    // Without counts there is a page without heat.
    whet(&["optimize", &guest.arg(), "--shuffle", "1", "--only", "mix_some"]).exits(0);
    let written = whet(&[&arguments[..4], &["--format", "json"]].concat()).exits(0).json();
    assert_eq!((&written["heat"], &written["flame_graphs"]), (&json!(false), &json!(0)), "{written}");
    for path in [&page, &measured, &link, &program] {
        std::fs::remove_file(path).unwrap();
    }
    guest.progresses(1);
}

/// Opens the page in a real browser, wide and narrow, light and dark: the browser reports no errors, and the
/// content fits.
fn in_a_browser(page: &Path) {
    if !have("chromium") {
        return skip("the page in a browser: no chromium");
    }
    let mut command = Command::new("python3");
    command.arg(tool("browser.py")).arg(page);
    let seen = run(command).exits(0).json();
    let views = seen["views"].as_array().unwrap();
    assert_eq!(views.len(), 4, "{seen}");
    for v in views {
        assert_eq!(v["console"], json!([]), "{v}");
        assert!(v["content_width"].as_u64().unwrap() <= v["width"].as_u64().unwrap(), "{v}");
        let light = v["background"].as_array().unwrap().iter().all(|c| c.as_u64().unwrap() > 200);
        assert_eq!(light, v["scheme"] == "light", "{v}");
    }
}

/// A target that was not touched has no page.
#[test]
fn an_untouched_target_has_no_page() {
    let guest = Guest::working(&build("cases.c"), &["spin"], 1);
    let page = scratch("none.html");
    let answer =
        whet(&["report", &guest.arg(), "-o", page.to_str().unwrap(), "--format", "json"]).exits(7).json();
    assert_eq!(answer["error"]["code"], "not_installed", "{answer}");
    assert!(!page.exists());
    wait_until("the guest's own work", || !guest.has_ended());
}

/// A server of debug files gives names to a stripped program, for what is shown alone, and only if the caller
/// names a server.
#[test]
fn a_stripped_program_gets_names_if_servers_are_named() {
    let folder = scratch("debuginfod");
    std::fs::create_dir(&folder).unwrap();
    let (program, symbols) = (folder.join("stripped"), folder.join("symbols"));
    let tool = |name: &str, args: &[&str]| {
        let mut command = Command::new(name);
        command.args(args).current_dir(&folder);
        run(command).exits(0).stdout
    };
    copy(&build("cases.c"), &program);
    tool("objcopy", &["--only-keep-debug", "stripped", "symbols"]);
    tool("strip", &["--strip-all", "stripped"]);
    let notes = tool("readelf", &["-n", "stripped"]);
    let id = notes.split("Build ID: ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    // The client, which knows this build alone.
    let client = folder.join("debuginfod-find");
    let script = format!("#!/bin/sh\n[ \"$1 $2\" = \"debuginfo {id}\" ] && echo {}\n", symbols.display());
    std::fs::write(&client, script).unwrap();
    std::fs::set_permissions(&client, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();

    let guest = Guest::working(&program, &["spin"], 1);
    let pid = guest.arg();
    whet(&["optimize", &pid, "--seconds", "1", "--count", "0.3"]).exits(0);
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let whet_with = |servers: &str, args: &[&str]| {
        let mut command = whet_command(args);
        command.env("PATH", &path).env("DEBUGINFOD_URLS", servers);
        run(command).exits(0).stdout
    };
    for args in
        [&["explain", &pid, "--format", "json"][..], &["profile", "export", &pid, "--as", "collapsed"]]
    {
        let (without, with) = (whet_with("", args), whet_with("https://example.org", args));
        assert!(!without.contains("mix_some") && without.contains("stripped+0x"), "{without}");
        assert!(with.contains("mix_some") && !with.contains("stripped+0x"), "{with}");
    }
    // What decides is not touched by the names.
    let profile = ["profile", "export", &pid];
    assert_eq!(whet_with("", &profile), whet_with("https://example.org", &profile));
    // A file of another build is not used.
    copy(&build("deep.c"), &symbols);
    assert!(!whet_with("https://example.org", &["explain", &pid]).contains("mix_some"));
    guest.progresses(1);
    drop(guest);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A client of debuginfod that never ends, or is missing, costs names and a warning, and is asked once.
#[test]
fn a_debuginfod_client_that_never_ends_is_ended() {
    let folder = scratch("debuginfod-waits");
    std::fs::create_dir(&folder).unwrap();
    let program = folder.join("stripped");
    copy(&build("cases.c"), &program);
    let mut strip = Command::new("strip");
    strip.arg("--strip-all").arg(&program);
    run(strip).exits(0);
    let (client, clients) = (folder.join("debuginfod-find"), folder.join("clients"));
    let guest = Guest::working(&program, &["spin"], 1);
    let pid = guest.arg();
    whet(&["optimize", &pid, "--seconds", "1", "--count", "0.3"]).exits(0);
    let whet_with = |args: &[&str]| {
        let mut command = whet_command(args);
        command.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
        command.env("DEBUGINFOD_URLS", "https://example.org").env("DEBUGINFOD_MAXTIME", "1");
        run(command).exits(0)
    };
    std::fs::write(&client, format!("#!/bin/sh\necho $$ >>{}\nexec sleep 1000\n", clients.display()))
        .unwrap();
    std::fs::set_permissions(&client, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let page = folder.join("page.html");
    let answer = whet_with(&["report", &pid, "--seconds", "0", "-o", page.to_str().unwrap()]);
    assert!(answer.stderr.contains("debuginfod-find took too long"), "{}", answer.stderr);
    assert!(std::fs::read_to_string(&page).unwrap().contains("stripped+0x"));
    let asked = std::fs::read_to_string(&clients).unwrap();
    assert_eq!(asked.lines().count(), 1, "{asked}");
    assert!(!Path::new("/proc").join(asked.trim()).exists(), "the client is still there");

    std::fs::write(&client, "").unwrap();
    let answer = whet_with(&["explain", &pid]);
    assert!(answer.stderr.contains("debuginfod-find cannot be run"), "{}", answer.stderr);
    guest.progresses(1);
    drop(guest);
    std::fs::remove_dir_all(&folder).unwrap();
}
