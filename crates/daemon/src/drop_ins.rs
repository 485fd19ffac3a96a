//! Drop-ins: files that each change some keys of the configuration, in the folder of its name: `/etc/whet.d` for
//! `/etc/whet.toml`.
//!
//! The files `*.toml` apply in the order of their names, after the configuration. A key replaces the same key of
//! an earlier file; each `[[target]]` is one more target. Every file is checked alone, so that an error has the
//! line and column of its own file.

use crate::config::{Config, ConfigError};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The key whose values add up.
const TARGET: &str = "target";

impl Config {
    /// Reads a file and its drop-ins.
    ///
    /// # Errors
    /// [`ConfigError`]
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        read(path, false)
    }

    /// Reads a file and its drop-ins; the file need not exist.
    ///
    /// # Errors
    /// [`ConfigError`] for files that exist.
    pub fn read_or_default(path: &Path) -> Result<Self, ConfigError> {
        read(path, true)
    }

    /// Reads one file, without drop-ins.
    ///
    /// # Errors
    /// [`ConfigError`]
    pub fn read_alone(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&text(path)?, path)
    }

    /// Returns the files that make up a configuration, in the order in which they apply.
    ///
    /// # Errors
    /// [`ConfigError::Read`] if the folder of drop-ins cannot be read.
    pub fn files(path: &Path) -> Result<Vec<PathBuf>, ConfigError> {
        let own = path.exists().then(|| path.to_owned());
        Ok(own.into_iter().chain(of(path)?).collect())
    }
}

/// Returns the drop-ins of a configuration, in their order.
fn of(config: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let folder = config.with_extension("d");
    let failed = |source| ConfigError::Read { path: folder.clone(), source };
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
        Err(e) => return Err(failed(e)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let hidden = path.file_name().is_none_or(|n| n.as_encoded_bytes().starts_with(b"."));
        if !hidden && path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn text(path: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

/// Reads a configuration and its drop-ins. With `or_default`, the configuration itself may be missing.
fn read(path: &Path, or_default: bool) -> Result<Config, ConfigError> {
    let main = match text(path) {
        Err(ConfigError::Read { source, .. }) if or_default && source.kind() == ErrorKind::NotFound => {
            String::new()
        }
        other => other?,
    };
    let mut config = Config::parse(&main, path)?;
    let drop_ins = of(path)?;
    if drop_ins.is_empty() {
        return Ok(config);
    }
    let wrong = |path: &Path, e: &toml::de::Error| ConfigError::Read {
        path: path.to_owned(),
        source: io::Error::new(ErrorKind::InvalidData, e.message().to_owned()),
    };
    let mut whole: Table = toml::from_str(&main).map_err(|e| wrong(path, &e))?;
    for file in drop_ins {
        let text = text(&file)?;
        // Each key is valid by itself, so the whole is valid if every file is.
        Config::parse(&text, &file)?;
        merge(&mut whole, toml::from_str(&text).map_err(|e| wrong(&file, &e))?);
        config = whole.clone().try_into().map_err(|e| wrong(&file, &e))?;
    }
    Ok(config)
}

fn merge(to: &mut Table, from: Table) {
    for (key, value) in from {
        match (to.get_mut(&key), value) {
            (Some(Value::Table(own)), Value::Table(other)) => merge(own, other),
            (Some(Value::Array(own)), Value::Array(other)) if key == TARGET => own.extend(other),
            (_, value) => _ = to.insert(key, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("whet.d")).unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let path = folder.path().join("whet.toml");
        (folder, path)
    }

    #[test]
    fn drop_ins_apply_in_the_order_of_their_names() {
        let (_folder, path) = folder(&[
            ("whet.toml", "[take]\ncpu_percent = 10.0\nat_once = 2\n[[target]]\nexe = \"a\"\n"),
            ("whet.d/20-b.toml", "take.cpu_percent = 30.0\n[[target]]\nexe = \"c\"\n"),
            ("whet.d/10-a.toml", "[take]\ncpu_percent = 20.0\nevery = \"9s\"\n[[target]]\nexe = \"b\"\n"),
            ("whet.d/30-c.toml.dpkg-old", "nonsense"),
            ("whet.d/.hidden.toml", "nonsense"),
        ]);
        let config = Config::read(&path).unwrap();
        assert_eq!((config.take.cpu_percent, config.take.at_once), (30.0, 2));
        assert_eq!(config.take.every.0.as_secs(), 9);
        let exes: Vec<_> = config.target.iter().filter_map(|t| t.exe.as_deref()).collect();
        assert_eq!(exes, ["a", "b", "c"]);
    }

    #[test]
    fn a_wrong_drop_in_is_reported_at_its_own_place_and_changes_nothing() {
        let (folder, path) = folder(&[("whet.d/a.toml", "[take]\nat_once = 3\n")]);
        assert!(matches!(Config::read(&path), Err(ConfigError::Read { .. })), "there is no configuration");
        assert_eq!(Config::read_or_default(&path).unwrap().take.at_once, 3);
        for (text, place) in
            [("\n[take]\nat_once = 0\n", ":3:1: at_once"), ("x = 1\n", ":1:1: "), ("[", ":1:")]
        {
            fs::write(folder.path().join("whet.d/b.toml"), text).unwrap();
            let why = Config::read_or_default(&path).unwrap_err().to_string();
            assert!(why.contains(&format!("b.toml{place}")), "{why}");
        }
    }
}
