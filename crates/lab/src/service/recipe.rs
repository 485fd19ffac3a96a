//! Recipes: how each program is started. Programs run in the foreground, so the lab measures the process that
//! it starts.

use super::client::Protocol;
use crate::command::{Spec, find};
use crate::error::Error;
use rustix::process::Signal;
use std::path::{Path, PathBuf};

/// The way to start a program. The functions take its folder and its socket.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Its name in the report.
    pub name: &'static str,
    /// Names of the program. The first name that exists is used.
    pub programs: &'static [&'static str],
    /// Debian's package.
    pub package: &'static str,
    /// The option that prints the version.
    pub version: &'static str,
    /// The arguments.
    pub arguments: fn(&Path, &Path) -> Vec<String>,
    /// Files in its folder, by name.
    pub files: fn(&Path, &Path) -> Vec<(&'static str, String)>,
    /// Whether it serves at the socket.
    pub serves: bool,
    /// The name of the socket in its folder.
    pub socket: &'static str,
    /// The user that it runs as if the lab is root. `None` means root.
    pub user: Option<&'static str>,
    /// The command that fills its folder before it is started. The first path is that of the program.
    pub setup: Option<fn(&Path, &Path) -> Spec>,
    /// The signal that ends it in order.
    pub end: Signal,
    /// Whether its descendants serve as well.
    pub is_family: bool,
}

/// The defaults of recipes.
pub(super) const USUAL: Recipe = Recipe {
    name: "",
    programs: &[],
    package: "",
    version: "--version",
    arguments: |_, _| Vec::new(),
    files: |_, _| Vec::new(),
    serves: true,
    socket: "s",
    user: None,
    setup: None,
    end: Signal::TERM,
    is_family: false,
};

impl Recipe {
    /// Runs a program as the recipe's user.
    pub fn of_user(&self, spec: Spec) -> Spec {
        match self.user {
            Some(user) => spec.run_as(user),
            None => spec,
        }
    }

    /// Returns the path of the program.
    ///
    /// # Errors
    /// [`Error::Missing`] if the program is not installed.
    pub fn locate(&self) -> Result<PathBuf, Error> {
        self.programs.iter().find_map(|p| find(p)).ok_or_else(|| Error::Missing {
            program: self.programs.join(" or "),
            get: format!("apt-get install {}", self.package),
        })
    }
}

pub(super) fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// Returns the recipe of a key-value server.
pub fn key_value(protocol: Protocol) -> Recipe {
    match protocol {
        Protocol::Redis => Recipe {
            name: "redis",
            programs: &["redis-server"],
            package: "redis-server",
            arguments: |folder, socket| {
                let (folder, socket) = (folder.display().to_string(), socket.display().to_string());
                words([
                    "--port",
                    "0",
                    "--unixsocket",
                    &socket,
                    "--dir",
                    &folder,
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                ])
            },
            ..USUAL
        },
        Protocol::Memcached => Recipe {
            name: "memcached",
            programs: &["memcached"],
            package: "memcached",
            // memcached refuses to run as root without `-u`. The server is private and has no network.
            arguments: |_, socket| words(["-s", &socket.display().to_string(), "-m", "256", "-u", "root"]),
            ..USUAL
        },
    }
}

/// The interpreters, by the names of their languages.
const INTERPRETERS: [(&str, Recipe); 4] = [
    (
        "python",
        Recipe {
            name: "python",
            // The first python3 in PATH may be a version manager's script.
            programs: &["/usr/bin/python3", "python3"],
            package: "python3",
            arguments: |folder, _| vec![folder.join("work.py").display().to_string()],
            files: |_, _| vec![("work.py", include_str!("../../assets/interpreters/work.py").to_owned())],
            serves: false,
            ..USUAL
        },
    ),
    (
        "ruby",
        Recipe {
            name: "ruby",
            programs: &["ruby"],
            package: "ruby",
            arguments: |folder, _| vec![folder.join("work.rb").display().to_string()],
            files: |_, _| vec![("work.rb", include_str!("../../assets/interpreters/work.rb").to_owned())],
            serves: false,
            ..USUAL
        },
    ),
    (
        "php",
        Recipe {
            name: "php",
            programs: &["php"],
            package: "php-cli",
            arguments: |folder, _| vec![folder.join("work.php").display().to_string()],
            files: |_, _| vec![("work.php", include_str!("../../assets/interpreters/work.php").to_owned())],
            serves: false,
            ..USUAL
        },
    ),
    (
        "sqlite",
        Recipe {
            name: "sqlite",
            programs: &["sqlite3"],
            package: "sqlite3",
            // With `-init`, the user's own start file is not read.
            arguments: |folder, _| {
                let script = folder.join("work.sql").display().to_string();
                words(["-batch", "-bail", "-init", &script, ":memory:"])
            },
            files: |_, _| vec![("work.sql", include_str!("../../assets/interpreters/work.sql").to_owned())],
            serves: false,
            ..USUAL
        },
    ),
];

/// Returns the recipe of an interpreter. The error lists the languages.
pub fn interpreter(language: &str) -> Result<Recipe, String> {
    let found = INTERPRETERS.iter().find(|(name, _)| *name == language);
    let names: Vec<&str> = INTERPRETERS.iter().map(|(name, _)| *name).collect();
    found.map(|(_, recipe)| *recipe).ok_or_else(|| format!("{language:?} is none of {}", names.join(", ")))
}
