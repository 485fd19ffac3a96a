//! Holds the house in order: what may depend on what, how large a file may be, what a source may not contain.
//!
//! Everything here is a test; there is nothing to call.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
    }

    fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                rust_files(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push(path);
            }
        }
    }

    fn all_sources() -> Vec<(PathBuf, String)> {
        let mut files = Vec::new();
        rust_files(&root().join("crates"), &mut files);
        files
            .into_iter()
            .map(|f| {
                let text = fs::read_to_string(&f).unwrap();
                (f.strip_prefix(root()).unwrap().to_path_buf(), text)
            })
            .collect()
    }

    /// Names under `[section]` of a manifest.
    fn keys(manifest: &str, section: &str) -> Vec<String> {
        manifest
            .lines()
            .skip_while(|l| l.trim() != format!("[{section}]"))
            .skip(1)
            .take_while(|l| !l.starts_with('['))
            .filter_map(|l| l.split(['.', '=', ' ']).next())
            .filter(|k| !k.is_empty() && !k.starts_with('#'))
            .map(str::to_owned)
            .collect()
    }

    /// The arrows of DESIGN.md. Data flows one way; no crate uses a crate behind or around these arrows.
    #[test]
    fn arrows_between_crates() {
        let arrows: BTreeMap<&str, &[&str]> = BTreeMap::from([
            ("addr", &[][..]),
            ("unwind", &["addr"]),
            ("image", &["addr", "unwind"]),
            ("code", &["addr", "unwind"]),
            ("profile", &["addr", "code"]),
            ("layout", &[]),
            ("emit", &["addr", "unwind", "code"]),
            ("fetch_model", &["addr", "code", "profile", "emit"]),
            ("tracee", &["addr"]),
            ("perf", &["addr"]),
            ("splice", &["addr", "unwind", "tracee"]),
            ("symbols", &["addr"]),
            (
                "engine",
                &[
                    "addr",
                    "unwind",
                    "image",
                    "code",
                    "profile",
                    "layout",
                    "emit",
                    "fetch_model",
                    "tracee",
                    "perf",
                    "splice",
                    "symbols",
                ],
            ),
            ("measure", &["tracee", "perf", "engine"]),
            ("fleet", &["profile"]),
            ("fleet_sync", &["fleet", "profile"]),
            ("daemon", &["engine", "measure", "fleet"]),
            ("whet", &["engine", "measure", "daemon"]),
            (
                "oracle",
                &[
                    "addr", "unwind", "image", "code", "profile", "emit", "tracee", "splice", "engine",
                    "testkit",
                ],
            ),
            // Tests of every crate may use it, so it uses none.
            ("testkit", &[]),
            // whet is used by its command line alone.
            ("lab", &[]),
            ("tidy", &[]),
        ]);
        let crates: Vec<String> = fs::read_dir(root().join("crates"))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        for name in &crates {
            let allowed =
                arrows.get(name.as_str()).unwrap_or_else(|| panic!("{name} has no place in DESIGN.md"));
            let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
            for dep in keys(&manifest, "dependencies") {
                if crates.contains(&dep) {
                    assert!(allowed.contains(&dep.as_str()), "{name} may not depend on {dep}");
                }
            }
        }
    }

    /// The core is pure: it names no process, no system call, no clock, no file.
    #[test]
    fn the_core_is_pure() {
        for (file, text) in all_sources() {
            let pure =
                ["addr", "unwind", "code", "profile", "layout", "emit", "fetch_model", "symbols", "fleet"]
                    .iter()
                    .any(|c| file.starts_with(format!("crates/{c}/src")));
            let is_test = file.to_string_lossy().contains("test");
            if !pure || is_test {
                continue;
            }
            let product = text.split("#[cfg(test)]").next().unwrap_or_default();
            for word in
                ["libc::", "std::fs", "std::process", "std::time", "std::env", "std::net", "std::thread"]
            {
                assert!(!product.contains(word), "{}: {word} in a pure crate", file.display());
            }
        }
    }

    /// `unsafe` has two homes.
    #[test]
    fn unsafe_has_two_homes() {
        for entry in fs::read_dir(root().join("crates")).unwrap() {
            let dir = entry.unwrap().path();
            let name = dir.file_name().unwrap().to_string_lossy().into_owned();
            let lib = ["src/lib.rs", "src/main.rs"].iter().map(|f| dir.join(f)).find(|f| f.exists()).unwrap();
            let text = fs::read_to_string(lib).unwrap();
            let may = ["tracee", "perf"].contains(&name.as_str());
            assert!(may || text.contains("#![forbid(unsafe_code)]"), "{name} does not forbid unsafe code");
        }
    }

    #[test]
    fn files_are_rooms_to_live_in() {
        for (file, text) in all_sources() {
            let lines = text.lines().count();
            assert!(lines <= 1000, "{}: {lines} lines", file.display());
            assert!(text.ends_with('\n'), "{}: no newline at the end", file.display());
            assert!(!text.contains('\t'), "{}: a tab", file.display());
            let facade = file.ends_with("src/lib.rs") && !file.starts_with("crates/tidy");
            assert!(!facade || lines <= 200, "{}: a lib.rs says what is there, no more", file.display());
        }
    }

    #[test]
    fn nothing_is_left_for_later() {
        for (file, text) in all_sources() {
            if file.starts_with("crates/tidy") {
                continue;
            }
            for word in ["TODO", "FIXME", "XXX:", "todo!(", "unimplemented!(", "dbg!(", "#[ignore]"] {
                assert!(!text.contains(word), "{}: {word}", file.display());
            }
        }
    }
}
