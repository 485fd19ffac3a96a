//! Documents compared with the sources: the diagram of crates, links, and the files and functions they name.
//!
//! `WHET_BLESS=1 cargo test -p tidy` rewrites the generated diagram.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Document with the diagram.
const ARCHITECTURE: &str = "docs/architecture.md";
/// Lines around the generated part.
const BEGIN: &str = "<!-- generated: begin -->\n";
const END: &str = "<!-- generated: end -->\n";
/// Endings of names that are taken for files in a document.
const ENDINGS: [&str; 9] = ["c", "cc", "html", "md", "py", "rs", "sh", "toml", "txt"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All documents: relative path and text.
fn documents() -> Vec<(PathBuf, String)> {
    let root = root();
    let mut found = Vec::new();
    for folder in ["", "docs", "docs/results", "fuzz"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "md") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(&root).unwrap().to_path_buf(), text));
            }
        }
    }
    for needed in ["README.md", "DESIGN.md", "SPECIFICATION.md", "RUNBOOK.md", "SECURITY.md", "CHANGELOG.md"]
    {
        assert!(found.iter().any(|(path, _)| path == Path::new(needed)), "{needed} is missing");
    }
    found
}

/// The dependencies of each crate among the crates of this workspace, tests' own left out.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let folder = root().join("crates");
    let names: BTreeSet<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let of = |name: &String| {
        let manifest = fs::read_to_string(folder.join(name).join("Cargo.toml")).unwrap();
        let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
        let lines = section.lines().take_while(|line| !line.starts_with('['));
        let keys = lines.filter_map(|line| line.split(['.', '=', ' ']).next()).map(str::to_owned);
        keys.filter(|key| names.contains(key)).collect()
    };
    names.iter().map(|name| (name.clone(), of(name))).collect()
}

/// Whether there is a way of arrows from one crate to another.
fn reaches(graph: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str) -> bool {
    graph[from].iter().any(|next| next == to || reaches(graph, next, to))
}

/// The diagram: one arrow for each dependency that no longer way of arrows implies.
fn diagram() -> String {
    let graph = dependencies();
    let mut out = String::from("```mermaid\ngraph TD\n");
    for (name, uses) in &graph {
        for used in uses {
            if !uses.iter().any(|other| other != used && reaches(&graph, other, used)) {
                out.push_str(&format!("    {name} --> {used}\n"));
            }
        }
        let is_used = graph.values().any(|uses| uses.contains(name));
        if uses.is_empty() && !is_used {
            out.push_str(&format!("    {name}\n"));
        }
    }
    out + "```\n"
}

#[test]
fn the_diagram_of_crates_is_current() {
    let path = root().join(ARCHITECTURE);
    let text = fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once(BEGIN).unwrap();
    let (shown, tail) = rest.split_once(END).unwrap();
    let current = diagram();
    if std::env::var_os("WHET_BLESS").is_some() {
        fs::write(&path, format!("{head}{BEGIN}{current}{END}{tail}")).unwrap();
        return;
    }
    assert_eq!(shown, current, "{ARCHITECTURE} is out of date: WHET_BLESS=1 cargo test -p tidy");
}

#[test]
fn links_lead_somewhere() {
    for (doc, text) in documents() {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            if path.is_empty() || path.starts_with("http") {
                continue;
            }
            let target = root().join(&doc).parent().unwrap().join(path);
            assert!(target.exists(), "{} points at {path}, which does not exist", doc.display());
        }
    }
}

/// Texts between single backticks that read like paths of files or folders in this repository.
fn named_files(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(|name| {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        let file = name.rsplit_once('.').is_some_and(|(_, ending)| ENDINGS.contains(&ending));
        // `TARGET/` stands for many.
        let folder = name.ends_with('/') && !name.contains(|c: char| c.is_ascii_uppercase());
        plain && (file || folder) && name.trim_end_matches('/').contains('/') && !name.starts_with('/')
    })
}

#[test]
fn files_that_documents_name_exist() {
    let mut seen = 0;
    for (doc, text) in documents() {
        for name in named_files(&text) {
            seen += 1;
            // DESIGN.md leaves `crates/` out.
            let exists = [root().join(name), root().join("crates").join(name)].iter().any(|p| p.exists());
            assert!(exists, "{} names {name}, which does not exist", doc.display());
        }
    }
    assert!(seen > 50, "only {seen} files found in the documents");
}

/// DESIGN.md writes a module of the engine as `engine::ROOM::MODULE`, a room as `engine::ROOM`.
#[test]
fn modules_that_design_names_exist() {
    let text = fs::read_to_string(root().join("DESIGN.md")).unwrap();
    let mut seen = 0;
    for name in text.split("`engine::").skip(1).filter_map(|rest| rest.split('`').next()) {
        seen += 1;
        let path = root().join("crates/engine/src").join(name.replace("::", "/"));
        let exists = path.is_dir() || path.with_extension("rs").exists();
        assert!(exists, "DESIGN.md names engine::{name}, which does not exist");
    }
    assert!(seen > 10, "only {seen} modules found in DESIGN.md");
}

/// CONTRIBUTING.md follows a function through the crates: each row of its table names a file and what to read in it.
#[test]
fn functions_that_contributing_names_exist() {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let mut seen = 0;
    for row in text.lines().filter(|line| line.starts_with('|')) {
        let ticked: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        let Some((file, functions)) = ticked.split_first().filter(|(file, _)| file.ends_with(".rs")) else {
            continue;
        };
        let source = fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        for function in functions {
            seen += 1;
            let name = function.rsplit("::").next().unwrap();
            let defined = ["fn ", "struct ", "enum "].iter().any(|word| {
                [" ", "(", "<", "\n"].iter().any(|after| source.contains(&format!("{word}{name}{after}")))
            });
            assert!(defined, "CONTRIBUTING.md names {function} in {file}, which does not define it");
        }
    }
    assert!(seen > 15, "only {seen} functions found in CONTRIBUTING.md");
}
