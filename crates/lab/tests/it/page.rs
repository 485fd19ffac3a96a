//! The report, from made-up raw data. It is shown in a real browser, if there is one.

use crate::support::{lab, made_up, run};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

const RATES: [(usize, u64, u64); 3] = [(1, 1200, 1000), (2, 2300, 2000), (4, 4100, 4000)];

fn browser() -> Option<&'static str> {
    let found = ["/usr/bin/chromium", "/usr/bin/google-chrome"].into_iter().find(|p| Path::new(p).exists());
    if found.is_none() {
        println!("skipped: no chromium here");
    }
    found
}

/// Returns the page's elements after its script has run, and the browser's log.
fn dom(browser: &str, page: &Path, width: u32, dark: bool) -> (String, String) {
    let profile = tempfile::tempdir().unwrap();
    let mut command = Command::new(browser);
    command
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--virtual-time-budget=3000",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={width},900"))
        .args(dark.then_some("--blink-settings=preferredColorScheme=0"))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()));
    let (_, out, err) = run(&mut command);
    (out, err)
}

fn unescape(text: &str) -> String {
    text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

/// Returns the values of an attribute, in the order of the page.
fn attributes(html: &str, name: &str) -> Vec<String> {
    html.split(&format!("{name}=\"")).skip(1).filter_map(|r| r.split('"').next()).map(unescape).collect()
}

#[test]
fn every_series_is_drawn_with_the_numbers_of_the_raw_data() {
    let Some(browser) = browser() else { return };
    let dir = tempfile::tempdir().unwrap();
    made_up(dir.path(), &RATES, true);
    let (code, out, err) = run(lab().arg("report").arg(dir.path()));
    assert_eq!(code, Some(0), "{err}");
    let page = dir.path().join("report.html");
    assert_eq!(out.trim(), page.display().to_string());
    for (width, dark) in [(1280, false), (500, true)] {
        let (html, said) = dom(browser, &page, width, dark);
        let complaints: Vec<&str> = said.lines().filter(|l| l.contains("CONSOLE")).collect();
        assert!(complaints.is_empty(), "{complaints:?}");
        assert_eq!(attributes(&html, "data-errors"), [""], "the script failed");
        let charts = attributes(&html, "data-series");
        assert_eq!(charts.len(), 3, "throughput, gain, CPU use");
        assert_eq!(attributes(&html, "data-drawn"), ["3"]);
        let throughput: Value = serde_json::from_str(&charts[0]).unwrap();
        let series = throughput.as_array().unwrap();
        let of = |name: &str, kind: &str| {
            let found = series.iter().find(|s| s["name"] == name && s["type"] == kind);
            found.unwrap_or_else(|| panic!("no {kind} {name}"))["data"].clone()
        };
        // The median of nine windows is four above the first.
        assert_eq!(of("with whet", "line"), serde_json::json!([1204, 2304, 4104]));
        assert_eq!(of("without", "line"), serde_json::json!([1004, 2004, 4004]));
        for name in ["with whet", "without"] {
            let ends = of(name, "custom");
            for (end, middle) in ends.as_array().unwrap().iter().zip(of(name, "line").as_array().unwrap()) {
                let value = |v: &Value| v.as_f64().unwrap();
                assert!(value(&end[1]) <= value(middle) && value(middle) <= value(&end[2]), "{name}: {end}");
            }
        }
        assert!(html.contains("1,204") && html.contains("×1.199"), "the table has the same figures");
    }
}

/// Two servers run the same loads. Their lines have different colours, given by CSS variables, so that the
/// dark page and paper need no other drawing.
#[test]
fn servers_are_drawn_side_by_side() {
    let Some(browser) = browser() else { return };
    let dir = tempfile::tempdir().unwrap();
    made_up(dir.path(), &RATES, true);
    let data = dir.path().join("data.jsonl");
    let text = fs::read_to_string(&data).unwrap();
    fs::write(&data, format!("{text}{}", text.replace("mariadb-1.2.3", "mysql-4.5.6"))).unwrap();
    assert_eq!(run(lab().arg("report").arg(dir.path())).0, Some(0));
    let (html, _) = dom(browser, &dir.path().join("report.html"), 1280, false);
    assert!(html.contains("Servers side by side, oltp_read_only: queries per second"));
    let charts = attributes(&html, "data-series");
    let first: Value = serde_json::from_str(&charts[0]).unwrap();
    let lines: Vec<(&str, &Value)> = first
        .as_array()
        .unwrap()
        .iter()
        .filter(|s| s["type"] == "line")
        .map(|s| (s["name"].as_str().unwrap(), &s["data"]))
        .collect();
    for server in ["mariadb-1.2.3", "mysql-4.5.6"] {
        for (side, data) in [("with whet", [1204, 2304, 4104]), ("without", [1004, 2004, 4004])] {
            let name = format!("{server}, {side}");
            assert!(lines.contains(&(&name, &serde_json::json!(data))), "{name}: {lines:?}");
        }
    }
    // Bars carry the ends of their intervals.
    let bars: Value = serde_json::from_str(charts.last().unwrap()).unwrap();
    let kinds: Vec<&str> = bars.as_array().unwrap().iter().filter_map(|s| s["type"].as_str()).collect();
    assert_eq!(kinds, ["bar", "custom", "bar", "custom"]);
    assert!([1, 3].iter().all(|i| bars[i]["data"].as_array().unwrap().len() == 6), "{bars}");
    let drawn = html.split("<svg").skip(1).filter_map(|s| s.split("</svg>").next()).collect::<String>();
    assert!(drawn.contains("var(--with)") && drawn.contains("var(--second)") && !drawn.contains("#1257a8"));
}

/// Two storages of one server are in one chart, as `--datadir` twice records them.
#[test]
fn storages_are_drawn_side_by_side() {
    let on =
        |text: &str, storage: &str| each_record(text, |record| record["step"]["storage"] = storage.into());
    let both = |text: &str| on(text, "/fast") + &on(text, "/slow").replace("\"queries\":", "\"queries\":1");
    let (html, _) = reported(str::to_owned, both);
    assert!(html.contains("Storages side by side, oltp_read_only, mariadb-1.2.3: queries per second"));
    assert!(!html.contains("Servers side by side"));
    // The second storage has 11,004 queries in a second for the first one's 1,004.
    for (name, middles) in
        [("/fast, without", "[1004.0,2004.0,4004.0]"), ("/slow, without", "[11004.0,12004.0,14004.0]")]
    {
        let line = html
            .split("{\"color\"")
            .find(|s| s.contains(&format!("\"name\":\"{name}\"")) && s.contains("\"line\""));
        assert!(line.is_some_and(|l| l.contains(middles)), "{name}: {line:?}");
    }
}

/// Modelled events have charts of their own over all numbers of threads, which say that they are modelled.
/// Counted events have charts with intervals.
#[test]
fn events_are_drawn_at_every_number_of_threads() {
    let Some(browser) = browser() else { return };
    let dir = tempfile::tempdir().unwrap();
    made_up(dir.path(), &RATES, true);
    let data = dir.path().join("data.jsonl");
    let text = fs::read_to_string(&data).unwrap();
    let mut lines = String::new();
    for line in text.lines() {
        let mut record: Value = serde_json::from_str(line).unwrap();
        let threads = record["step"]["threads"].as_u64().unwrap();
        if record["kind"] == "done" {
            let side = |misses: u64| {
                serde_json::json!({ "instructions": 1000, "taken_branches": 100, "icache_misses": misses * threads, "itlb_misses": 3,
                    "itlb_walks": 1, "btb_misses": 2, "direction_misses": 4, "target_misses": 1, "return_misses": 0 })
            };
            let answer = serde_json::json!({ "cpu": "some CPU", "coverage": 0.9, "with": side(10), "without": side(20) });
            let step = record["step"].clone();
            lines +=
                &format!("{}\n", serde_json::json!({ "step": step, "kind": "modelled", "answer": answer }));
        }
        if record["kind"] == "window" {
            let misses = if record["side"] == "with" { 1 } else { 3 };
            record["events"] = serde_json::json!({ "instructions": 1000, "cycles": 500 * misses, "branch-misses": misses * threads });
            record["counted"] = 0.5.into();
        }
        lines += &format!("{record}\n");
    }
    fs::write(&data, lines).unwrap();
    assert_eq!(run(lab().arg("report").arg(dir.path())).0, Some(0));
    let (html, _) = dom(browser, &dir.path().join("report.html"), 1280, false);
    assert_eq!(attributes(&html, "data-errors"), [""], "the script failed");
    let titles: Vec<String> = html
        .split("<figcaption><h2>")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once("</h2>")?.0.to_owned()))
        .collect();
    let charts = attributes(&html, "data-series");
    let drawn = |title: &str| -> Vec<Value> {
        let at = titles.iter().position(|t| t == title).unwrap_or_else(|| panic!("{titles:?}"));
        let series: Vec<Value> = serde_json::from_str(&charts[at]).unwrap();
        series.into_iter().filter(|s| s["type"] == "line").map(|s| s["data"].clone()).collect()
    };
    let of = "oltp_read_only, mariadb-1.2.3";
    let modelled = drawn(&format!("{of}: instruction cache misses (modelled)"));
    assert_eq!(modelled, [serde_json::json!([10, 20, 40]), serde_json::json!([20, 40, 80])]);
    let counted = drawn(&format!("{of}: branch mispredictions"));
    assert_eq!(counted, [serde_json::json!([1, 2, 4]), serde_json::json!([3, 6, 12])]);
    let rates = drawn(&format!("{of}: instructions per cycle"));
    assert_eq!(rates, [serde_json::json!([2, 2, 2]), serde_json::json!([0.666_667, 0.666_667, 0.666_667])]);
    assert_eq!(drawn(&format!("{of}: cycles per instruction (modelled)")).len(), 2);
    for title in [
        // No counter counted these.
        "instruction cache misses",
        // The model has no IPC, and the counters' CPI is drawn as IPC.
        "instructions per cycle (modelled)",
        "cycles per instruction",
    ] {
        assert!(!titles.contains(&format!("{of}: {title}")), "{titles:?}");
    }
    assert!(html.contains("MODELLED, not measured") && html.contains("Events, by hardware counters"));
    assert!(html.contains(">50%<"), "multiplexing is shown");
}

#[test]
fn the_page_is_self_contained_and_escapes_text() {
    let dir = tempfile::tempdir().unwrap();
    made_up(dir.path(), &RATES, true);
    assert_eq!(run(lab().arg("report").arg(dir.path())).0, Some(0));
    let html = fs::read_to_string(dir.path().join("report.html")).unwrap();
    for outside in ["src=\"http", "href=\"http", "@import", "url(http"] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.contains("Some &lt;CPU&gt; &amp; more"));
    assert!(html.contains("Too few &lt;&#x2f;script&gt; CPUs."));
}

/// Changes each record of raw data.
fn each_record(text: &str, change: impl Fn(&mut Value)) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let mut record: Value = serde_json::from_str(line).unwrap();
        change(&mut record);
        lines += &format!("{record}\n");
    }
    lines
}

/// Changes the made-up run by one function for each of its files' texts, and returns its page and its JSON.
fn reported(head: impl Fn(&str) -> String, data: impl Fn(&str) -> String) -> (String, Value) {
    let dir = tempfile::tempdir().unwrap();
    made_up(dir.path(), &RATES, true);
    for (name, change) in [("run.json", &head as &dyn Fn(&str) -> String), ("data.jsonl", &data)] {
        let path = dir.path().join(name);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, change(&text)).unwrap();
    }
    assert_eq!(run(lab().arg("report").arg(dir.path())).0, Some(0));
    let (_, out, _) = run(lab().arg("report").arg(dir.path()).args(["--format", "json"]));
    let html = fs::read_to_string(dir.path().join("report.html")).unwrap().replace("&#x2f;", "/");
    (html, serde_json::from_str(&out).unwrap())
}

/// Adds the windows without clones once more as A/A pairs, whose halves are the same.
fn with_controls(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        lines += &format!("{line}\n");
        let mut record: Value = serde_json::from_str(line).unwrap();
        if record["side"] == "without" {
            record["control"] = true.into();
            for side in ["with", "without"] {
                record["side"] = side.into();
                lines += &format!("{record}\n");
            }
        }
    }
    lines
}

#[test]
fn a_run_whose_control_fails_or_is_missing_says_so_at_its_head() {
    let same = |text: &str| text.to_owned();
    let (html, json) = reported(same, same);
    assert!(html.contains("Not to be published") && html.contains("There is no A/A control"));
    assert_eq!((&json["may_publish"], &json["control"]["verdict"]), (&false.into(), &"missing".into()));
    // As an A/A control, the same windows differ by 10% and more.
    let (html, json) = reported(|text| text.replace("\"null\":false", "\"null\":true"), same);
    let (head, body) = html.split_once("data-chart").unwrap();
    assert!(head.contains("Not to be published") && head.contains("A/A control FAILED"), "{head}");
    assert!(!body.contains("Not to be published"));
    assert_eq!((&json["may_publish"], &json["control"]["pairs"]), (&false.into(), &27.into()));
    let (html, json) = reported(same, with_controls);
    assert!(!html.contains("Not to be published") && html.contains("The A/A control passed"));
    assert_eq!((&json["may_publish"], &json["control"]["pairs"]), (&true.into(), &27.into()));
    assert_eq!(json["points"][0]["pairs"], 9, "A/A pairs are in no figure");
}

/// Adds response times to each window: 100 transactions of about 1 ms with clones, of 2 ms without. One window
/// without clones has one of 8 ms.
fn with_times(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let mut record: Value = serde_json::from_str(line).unwrap();
        if record["kind"] == "window" {
            // A bucket is 2^(1/64) wide.
            let mut times = match record["side"] == "with" {
                true => serde_json::json!({ "sum_us": 103_000, "buckets": [[640, 100]] }),
                false => serde_json::json!({ "sum_us": 206_000, "buckets": [[704, 100]] }),
            };
            if record["pair"] == 3 && record["side"] == "without" {
                times = serde_json::json!({ "sum_us": 214_000, "buckets": [[704, 99], [832, 1]] });
            }
            record["transactions"] = times;
        }
        lines += &format!("{record}\n");
    }
    lines
}

#[test]
fn response_times_of_each_window_come_from_the_counts_in_the_raw_data() {
    let (html, json) = reported(str::to_owned, with_times);
    let near = |found: &Value, wanted: f64| (found.as_f64().unwrap() / wanted - 1.0).abs() < 1e-3;
    let response = &json["points"][0]["response"];
    for (at, of, with, without) in
        [(0, "mean", 1.03, 2.06), (1, "95th percentile", 1.0296, 2.0591), (2, "maximum", 1.0352, 2.0703)]
    {
        let figure = &response[at];
        assert_eq!(figure["of"], of);
        let [a, b] = ["with", "without"].map(|side| &figure["sides"][side]["value"]);
        assert!(near(a, with) && near(b, without) && near(&figure["gain"]["value"], 2.0), "{figure}");
        assert_eq!(figure["windows"].as_array().unwrap().len(), 9);
    }
    let long = &response[2]["windows"][3];
    assert!(long[0] == 3 && near(&long[1], 1.0352) && near(&long[2], 8.2810), "{long}");
    let all = &json["points"][0]["latencies"][1];
    assert_eq!((&all["side"], &all["count"]), (&"without".into(), &900.into()));
    assert!(near(&all["max_ms"], 8.2810) && near(&all["mean_ms"], (8.0 * 206.0 + 214.0) / 900.0), "{all}");
    assert!(html.contains("Response times of each window") && html.contains("×2.000 (2.000–2.000)"));
    for title in ["response time, 95th percentile", "gain in response time", "response times of each window"]
    {
        assert!(html.contains(title), "{title}");
    }
}

#[test]
fn power_tells_how_many_pairs_are_needed() {
    let dir = tempfile::tempdir().unwrap();
    made_up(dir.path(), &RATES, true);
    let (code, out, err) = run(lab().arg("power").arg(dir.path()));
    assert_eq!(code, Some(0), "{err}");
    let row = out.lines().find(|l| l.contains("1 thread | CPU time")).unwrap();
    // These pairs differ by less than 0.2%, so the fewest pairs find each gain.
    assert!(row.contains("| 9 | 0.1% | 5 | 5 | 5 |"), "{out}");
}

#[test]
fn the_report_marks_an_unfinished_run() {
    let dir = tempfile::tempdir().unwrap();
    made_up(dir.path(), &RATES, false);
    // As if the lab had been killed in the middle of a line.
    let data = dir.path().join("data.jsonl");
    let text = fs::read_to_string(&data).unwrap();
    fs::write(&data, &text[..text.len() - 40]).unwrap();
    let (code, _, err) = run(lab().arg("report").arg(dir.path()));
    assert_eq!(code, Some(0), "{err}");
    let html = fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert!(html.contains("Not whole") && html.contains("(broken off)"));
}

#[test]
fn a_folder_without_a_readable_run_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (code, _, err) = run(lab().arg("report").arg(dir.path()));
    assert_eq!(code, Some(3));
    assert!(err.contains("is no run") && err.contains("hint: name the folder of a run"), "{err}");
    made_up(dir.path(), &RATES, true);
    let head = dir.path().join("run.json");
    let text = fs::read_to_string(&head).unwrap();
    fs::write(&head, text.replace("\"version\":1", "\"version\":99")).unwrap();
    let (code, _, err) = run(lab().arg("report").arg(dir.path()));
    assert_eq!(code, Some(3));
    assert!(err.contains("its version is 99, this lab reads 1"), "{err}");
    // A line in the middle that is no record is an error.
    fs::write(&head, text).unwrap();
    fs::write(dir.path().join("data.jsonl"), "{\"a\":1}\n").unwrap();
    let (code, _, err) = run(lab().arg("report").arg(dir.path()));
    assert_eq!((code, err.contains("data.jsonl, line 1")), (Some(3), true), "{err}");
}

#[test]
fn the_figures_are_printed_as_json() {
    let dir = tempfile::tempdir().unwrap();
    made_up(dir.path(), &RATES, true);
    let (code, out, err) = run(lab().arg("report").arg(dir.path()).args(["--format", "json"]));
    assert_eq!(code, Some(0), "{err}");
    let summary: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&summary["head"]["seed"], &summary["head"]["whet"]), (&5.into(), &"whet 0".into()));
    let points = summary["points"].as_array().unwrap();
    assert_eq!(points.len(), 3);
    assert_eq!(points[0]["sides"]["with"]["rate"]["value"], 1204.0);
    assert_eq!((&points[2]["step"]["threads"], &points[2]["pairs"]), (&4.into(), &9.into()));
    assert!(!dir.path().join("report.html").exists());
}

#[test]
fn two_runs_are_compared_point_by_point() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    made_up(&a, &RATES, true);
    made_up(&b, &[(1, 1500, 1000), (2, 2300, 2000), (8, 1, 1)], true);
    for (folder, misses) in [(&a, 7), (&b, 9)] {
        let data = folder.join("data.jsonl");
        let text = each_record(&fs::read_to_string(&data).unwrap(), |record| {
            if record["kind"] == "window" {
                record["events"] = serde_json::json!({ "instructions": 1000, "branch-misses": misses });
            }
        });
        fs::write(&data, text).unwrap();
    }
    let page = dir.path().join("c.html");
    let (code, out, err) = run(lab().arg("compare").arg(&a).arg(&b).arg("-o").arg(&page));
    assert_eq!(code, Some(0), "{err}");
    let rows: Vec<&str> = out.lines().filter(|l| l.starts_with("mariadb-1.2.3")).collect();
    assert_eq!(rows.len(), 2, "{out}");
    assert!(rows[0].contains("×1.249") && rows[0].ends_with('*'), "1.498 over 1.199: {out}");
    assert!(!rows[1].contains('*'), "{out}");
    let (_, events) = out.split_once("Events, by hardware counters").unwrap();
    for (run, misses) in [("A", "7"), ("B", "9")] {
        let of_run = |l: &&str| l.split_whitespace().next() == Some(run);
        let lines: Vec<&str> = events.lines().filter(of_run).collect();
        assert_eq!(lines.len(), 6, "three points of two sides: {out}");
        assert!(lines.iter().all(|l| l.split_whitespace().any(|cell| cell == misses)), "{lines:?}");
    }
    assert!(fs::read_to_string(page).unwrap().contains("Gains of both runs"));
    let c = dir.path().join("c");
    made_up(&c, &[(8, 1, 1)], true);
    let (code, _, err) = run(lab().arg("compare").arg(&a).arg(&c));
    assert_eq!((code, err.contains("no point in common")), (Some(2), true), "{err}");
}

/// Returns the colour of a line in each chart that has one of this name.
fn colours_of<'a>(html: &'a str, name: &str) -> Vec<&'a str> {
    let series = html.split("{\"color\":\"").skip(1).filter_map(|s| s.split('}').next());
    let named = series.filter(|s| s.contains(&format!("\"name\":\"{name}\"")) && s.contains("\"line\""));
    named.filter_map(|s| s.split('"').next()).collect()
}

/// There are four colours: of five runs the first and the last have one, but where both are alone in a chart.
#[test]
fn two_of_many_runs_differ_in_colour() {
    let dir = tempfile::tempdir().unwrap();
    let folders = ["a", "b", "c", "d", "e"].map(|name| dir.path().join(name));
    for folder in &folders {
        made_up(folder, &RATES, true);
        let head = folder.join("run.json");
        let text = fs::read_to_string(&head).unwrap();
        fs::write(&head, text.replace("Some <CPU> & more", "EPYC")).unwrap();
    }
    for folder in [&folders[0], &folders[4]] {
        let data = folder.join("data.jsonl");
        let text = fs::read_to_string(&data).unwrap();
        fs::write(&data, format!("{text}{}", text.replace("oltp_read_only", "oltp_point_select"))).unwrap();
    }
    let page = dir.path().join("page.html");
    let (code, _, err) = run(lab().arg("compare").args(&folders).arg("-o").arg(&page));
    assert_eq!(code, Some(0), "{err}");
    let html = fs::read_to_string(&page).unwrap();
    let of = |letter: char| colours_of(&html, &format!("{letter}: EPYC, 2 CPUs, without"));
    assert_eq!([of('A'), of('E')], [["--with"; 2], ["--with", "--second"]]);
}

/// Three machines: their absolute throughput is in one chart for each load and in one table. Each machine has one
/// colour, although the first has not run the second load.
#[test]
fn machines_are_compared_by_their_absolute_throughput() {
    let dir = tempfile::tempdir().unwrap();
    let runs = [("EPYC", 1, 11), ("Xeon", 2, 12), ("Graviton", 3, 13)];
    let folders = runs.map(|(cpu, ..)| dir.path().join(cpu));
    for ((cpu, times, alone), folder) in runs.iter().zip(&folders) {
        let mut rates: Vec<(usize, u64, u64)> =
            RATES.iter().map(|(threads, with, without)| (*threads, with * times, without * times)).collect();
        // A point that no other run has.
        rates.push((*alone, 1200, 1000));
        made_up(folder, &rates, true);
        let head = folder.join("run.json");
        let text = fs::read_to_string(&head).unwrap();
        let mut record: Value = serde_json::from_str(&text).unwrap();
        record["machine"]["cpu"] = (*cpu).into();
        if *cpu == "Xeon" {
            record["machine"]["identity"] =
                serde_json::json!({ "vendor": "GenuineIntel", "family": 6, "model": 207, "stepping": 2 });
        }
        fs::write(&head, record.to_string()).unwrap();
        if *cpu != "EPYC" {
            let data = folder.join("data.jsonl");
            let text = fs::read_to_string(&data).unwrap();
            fs::write(&data, format!("{text}{}", text.replace("oltp_read_only", "oltp_point_select")))
                .unwrap();
        }
    }
    let page = dir.path().join("c.html");
    let (code, out, err) = run(lab().arg("compare").args(&folders).arg("-o").arg(&page));
    assert_eq!(code, Some(0), "{err}");
    let rows: Vec<&str> = out.lines().filter(|l| l.starts_with("oltp_read_only, ")).collect();
    assert_eq!(rows.len(), 9, "{out}");
    let row = rows
        .iter()
        .find(|r| r.contains("2 threads") && r.contains("B: Xeon (family 6, model 207), 2 CPUs"))
        .unwrap();
    assert!(row.contains("4,004 (4,00") && row.contains("4,604 (4,60"), "{row}");
    let html = fs::read_to_string(&page).unwrap();
    let colours = |name: &str| colours_of(&html, name);
    assert_eq!(colours("A: EPYC, 2 CPUs, without"), ["--with"]);
    assert_eq!(colours("B: Xeon (family 6, model 207), 2 CPUs, without"), ["--second"; 2]);
    assert_eq!(colours("C: Graviton, 2 CPUs, without"), ["--third"; 2]);
    let Some(browser) = browser() else { return };
    let (html, _) = dom(browser, &page, 1280, false);
    assert_eq!(attributes(&html, "data-errors"), [""], "the script failed");
    let charts = attributes(&html, "data-series");
    let series: Vec<Value> = serde_json::from_str(&charts[0]).unwrap();
    let lines: Vec<(&str, &Value)> = series
        .iter()
        .filter(|s| s["type"] == "line")
        .map(|s| (s["name"].as_str().unwrap(), &s["data"]))
        .collect();
    assert_eq!(lines.len(), 6);
    assert_eq!(charts.len(), 2);
    for expected in [
        ("A: EPYC, 2 CPUs, without", [1004, 2004, 4004]),
        ("B: Xeon (family 6, model 207), 2 CPUs, with whet", [2404, 4604, 8204]),
        ("C: Graviton, 2 CPUs, without", [3004, 6004, 12004]),
    ] {
        assert!(lines.contains(&(expected.0, &serde_json::json!(expected.1))), "{expected:?}: {lines:?}");
    }
    let (code, _, err) = run(lab().arg("compare").arg(&folders[0]));
    assert!(code == Some(2) && err.contains("2 values required"), "{err}");
}

/// A published run: its raw data is compressed.
#[test]
fn compressed_raw_data_is_read() {
    let dir = tempfile::tempdir().unwrap();
    made_up(dir.path(), &RATES, true);
    let json = || run(lab().arg("report").arg(dir.path()).args(["--format", "json"]));
    let (_, before, _) = json();
    assert!(Command::new("gzip").arg(dir.path().join("data.jsonl")).status().unwrap().success());
    let (code, after, err) = json();
    assert_eq!((code, &after), (Some(0), &before), "{err}");
    let (code, _, err) = run(lab().arg("resume").arg(dir.path()));
    assert!(code == Some(2) && err.contains("gunzip"), "{err}");
    let packed = dir.path().join("data.jsonl.gz");
    let bytes = fs::read(&packed).unwrap();
    fs::write(&packed, &bytes[..bytes.len() / 2]).unwrap();
    let (code, _, err) = json();
    assert!(code == Some(3) && err.contains("is no run"), "{err}");
}

/// One page links to the reports of all runs, which it writes, and has the A/A control of each.
#[test]
fn all_runs_have_one_page() {
    let dir = tempfile::tempdir().unwrap();
    let runs = ["with space", "good"].map(|name| dir.path().join(name));
    for folder in &runs {
        made_up(folder, &RATES, true);
    }
    let data = runs[1].join("data.jsonl");
    let text = fs::read_to_string(&data).unwrap();
    fs::write(&data, with_controls(&text)).unwrap();
    let page = dir.path().join("index.html");
    let (code, out, err) = run(lab().arg("index").args(&runs).arg("-o").arg(&page));
    assert_eq!((code, out.trim()), (Some(0), page.display().to_string().as_str()), "{err}");
    let html = fs::read_to_string(&page).unwrap();
    let links: Vec<String> =
        attributes(&html, "href").into_iter().map(|l| l.replace("&#x2f;", "/")).collect();
    assert_eq!(links, ["with%20space/report.html", "good/report.html"]);
    assert!(runs.iter().all(|r| r.join("report.html").exists()));
    assert!(html.contains("2 runs. One is not to be published"));
    let row = |name: &str, of: &str| {
        let rows = html.split("<tr>").filter(|r| r.contains(&format!("<th scope=\"row\">{name}<")));
        rows.filter(|r| r.contains(of)).count()
    };
    assert_eq!((row("good", "passed"), row("with space", "missing: not to be published")), (1, 1));
    let Some(browser) = browser() else { return };
    for (width, dark) in [(1280, false), (500, true)] {
        let (html, _) = dom(browser, &page, width, dark);
        assert_eq!(attributes(&html, "data-errors"), [""], "the script failed");
        let charts = attributes(&html, "data-series");
        assert_eq!(charts.len(), 2, "gains and controls");
        let gains: Value = serde_json::from_str(&charts[0]).unwrap();
        let found = gains.as_array().unwrap().iter().find(|s| s["type"] == "line").unwrap();
        let middles: Vec<f64> = found["data"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
        assert!(middles.len() == 2 && middles.iter().all(|m| (m - 1.149).abs() < 0.002), "{middles:?}");
    }
}

/// Two servers of one load over time: both are in one chart, each with its own stalls, and a table has their
/// differences.
#[test]
fn servers_are_overlaid_in_time() {
    let seconds = |text: &str| {
        let mut lines = String::new();
        for line in text.lines() {
            let record: Value = serde_json::from_str(line).unwrap();
            lines += &format!("{line}\n");
            if record["kind"] == "window" {
                let number = record["pair"].as_u64().unwrap();
                let second = serde_json::json!({ "step": record["step"], "kind": "second", "at": number * 2, "pair": number,
                    "side": record["side"], "tps": if number == 4 { 10.0 } else { 1000.0 }, "response_ms": 1.0, "p95_ms": 2.0,
                    "idle": 0.5, "cpus": if number == 7 { 0.1 } else { 1.0 }, "flushed": 1 });
                lines += &format!("{second}\n");
            }
        }
        let other = lines.replace("mariadb-1.2.3", "mysql-4.5.6").replace("\"queries\":", "\"queries\":1");
        format!("{lines}{other}")
    };
    let (html, _) = reported(str::to_owned, seconds);
    assert!(html.contains("oltp_read_only, 1 thread, all servers: CPU use of the server"));
    for mark in ["mariadb-1.2.3: stall", "mysql-4.5.6: stall", "mariadb-1.2.3: dip of CPU use"] {
        assert!(html.contains(&format!("\"name\":\"{mark}\"")), "{mark}");
    }
    // The second server has 11,004 queries in a second for the first server's 1,004.
    assert!(
        html.contains("mysql-4.5.6 over mariadb-1.2.3, oltp_read_only, 1 thread, without: throughput +996%")
    );
    assert!(html.contains("CPU time per query -91%"));
}
