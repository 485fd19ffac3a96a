//! The configuration of `whet-fleet`: the content of `whet-fleet.toml`.

use crate::{Error, Host, Remote, files};
use fleet::{Class, HostId, Keys};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The path of the configuration, unless another is given.
pub const CONFIG_FILE: &str = "/etc/whet-fleet.toml";
/// The environment variable that names another file.
pub const CONFIG_VARIABLE: &str = "WHET_FLEET_CONFIG";
/// The file from which a host's id is computed.
const MACHINE: &str = "/etc/machine-id";
/// The beginnings of variables that become options of the store, such as credentials.
const VARIABLES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// All settings. `packaging/whet-fleet.toml` describes each key.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The address of the store; empty if there is none.
    pub store: String,
    /// Options of the store.
    pub options: BTreeMap<String, String>,
    /// The class of this host.
    pub class: Class,
    /// The public keys whose signatures this host trusts.
    pub keys: Vec<String>,
    /// A text that only this host has; `/etc/machine-id` if empty.
    pub host: String,
    /// The spool folder.
    pub spool: PathBuf,
    /// The folder of files that outlive a run.
    pub state: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store: String::new(),
            options: BTreeMap::new(),
            class: Class::default(),
            keys: Vec::new(),
            host: String::new(),
            spool: "/var/spool/whet".into(),
            state: "/var/lib/whet-fleet".into(),
        }
    }
}

impl Config {
    /// Returns the path of the file that applies if the command line names none.
    #[must_use]
    pub fn file() -> PathBuf {
        std::env::var_os(CONFIG_VARIABLE).map_or_else(|| CONFIG_FILE.into(), PathBuf::from)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Usage`] with line and column, [`Error::File`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = files::read(path)?.ok_or_else(|| files::failed(path, &"there is no such file"))?;
        let text =
            String::from_utf8(bytes).map_err(|_| Error::Usage(format!("{}: no text", path.display())))?;
        Self::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        let config: Self = toml::from_str(text).map_err(|e| {
            let at = text.get(..e.span().map_or(0, |s| s.start)).unwrap_or(text);
            let line = at.matches('\n').count() + 1;
            let column = at.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
            Error::Usage(format!(
                "{}:{line}:{column}: {}",
                path.display(),
                e.message().trim().replace('\n', "; ")
            ))
        })?;
        let wrong = |what: String| Error::Usage(format!("{}: {what}", path.display()));
        Keys::parse(&config.keys).map_err(|e| wrong(format!("keys: {e}")))?;
        for (key, folder) in [("spool", &config.spool), ("state", &config.state)] {
            if !folder.is_absolute() {
                return Err(wrong(format!("{key}: must begin with /")));
            }
        }
        Ok(config)
    }

    /// Opens the store.
    ///
    /// # Errors
    /// [`Error::Usage`]
    pub fn remote(&self) -> Result<Remote, Error> {
        if self.store.is_empty() {
            return Err(Error::Usage("the configuration names no store".to_owned()));
        }
        let variables = std::env::vars().filter(|(k, _)| VARIABLES.iter().any(|v| k.starts_with(v)));
        let options: Vec<(String, String)> = variables
            .map(|(k, v)| (k.to_ascii_lowercase(), v))
            .chain(self.options.iter().map(|(k, v)| (k.clone(), v.clone())))
            .collect();
        Remote::open(&self.store, &options)
    }

    /// Returns the trusted keys.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is none.
    pub fn keys(&self) -> Result<Keys, Error> {
        let keys = Keys::parse(&self.keys).map_err(|e| Error::Usage(e.to_string()))?;
        if keys.is_empty() {
            return Err(Error::Usage("the configuration names no key, so nothing could be taken".to_owned()));
        }
        Ok(keys)
    }

    /// Returns this host's id.
    ///
    /// # Errors
    /// [`Error::File`]
    pub fn host_id(&self) -> Result<HostId, Error> {
        if !self.host.is_empty() {
            return Ok(HostId::of(&self.host));
        }
        let path = Path::new(MACHINE);
        let bytes = files::read(path)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let id = text.trim();
        if id.is_empty() {
            return Err(files::failed(path, &"it names no machine; set `host` in the configuration"));
        }
        Ok(HostId::of(id))
    }

    /// Returns this host.
    ///
    /// # Errors
    /// [`Error::Usage`], [`Error::File`]
    pub fn host(&self) -> Result<Host, Error> {
        Ok(Host { id: self.host_id()?, class: self.class.clone(), keys: self.keys()? })
    }

    /// Returns the path of the host's memory.
    #[must_use]
    pub fn memory_file(&self) -> PathBuf {
        self.state.join("memory.json")
    }

    /// Returns the path of the record of the last run.
    #[must_use]
    pub fn last_run_file(&self) -> PathBuf {
        self.state.join("last-run.json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_equals_the_defaults_and_describes_each_key() {
        let shipped = include_str!("../../../packaging/whet-fleet.toml");
        let parse = |text: &str| Config::parse(text, Path::new("w.toml"));
        assert_eq!(parse(shipped).unwrap(), Config::default());
        let all: String =
            shipped.lines().map(|l| format!("{}\n", l.strip_prefix("#:").unwrap_or(l))).collect();
        let config = parse(&all).unwrap();
        assert!(!config.store.is_empty() && !config.keys.is_empty() && !config.options.is_empty());
        assert_eq!((config.spool, config.state), (Config::default().spool, Config::default().state));
        assert!(!config.host.is_empty());
    }

    #[test]
    fn mistakes_are_reported() {
        let wrong = |text: &str| Config::parse(text, Path::new("w.toml")).unwrap_err().to_string();
        assert!(wrong("store = \"\"\nclas = \"a\"\n").starts_with("w.toml:2:1: "), "{}", wrong("\nclas = 1"));
        assert!(wrong("class = \"A b\"").contains("class"));
        assert!(wrong("keys = [\"x\"]").contains("no minisign public key"));
        assert!(wrong("spool = \"x\"").contains("must begin with /"));
        assert!(Config::default().remote().is_err() && Config::default().keys().is_err());
        let s3 = Config { store: "ftp://x/y".to_owned(), ..Config::default() };
        assert!(matches!(s3.remote(), Err(Error::Usage(_))));
    }
}
