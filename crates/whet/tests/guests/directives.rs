//! The directives at the head of a guest's source.

use std::path::{Path, PathBuf};

/// A guest's language.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lang {
    /// C.
    C,
    /// C++.
    Cxx,
    /// Rust.
    Rust,
}

/// How a guest ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// By exit, with this status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

/// One guest program.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    /// Its file's name without the ending.
    pub(crate) name: String,
    pub(crate) source: PathBuf,
    pub(crate) lang: Lang,
    pub(crate) flags: Vec<String>,
    pub(crate) link: Vec<String>,
    /// More sources.
    pub(crate) with: Vec<PathBuf>,
    /// A library's source, and whether the program is linked with it.
    pub(crate) library: Option<(PathBuf, bool)>,
    /// Whether the library is built a second time, as another one.
    pub(crate) twice: bool,
    /// The only compilers that can build it; empty for all.
    pub(crate) compilers: Vec<String>,
    /// Whether it is built position-independent; `None` for both.
    pub(crate) pic: Option<bool>,
    pub(crate) end: End,
    /// How long its clones count in mode `optimized`. Seconds.
    pub(crate) count: String,
    /// It changes its own code, which `verify` may find.
    pub(crate) patches: bool,
    /// whet may find nothing hot in it.
    pub(crate) idle: bool,
    /// whet must refuse it, for this reason.
    pub(crate) refused: Option<String>,
}

/// Reads every guest in a folder, by name.
pub(crate) fn read_all(folder: &Path) -> Result<Vec<Guest>, String> {
    let mut guests = Vec::new();
    for entry in folder.read_dir().map_err(|e| format!("{}: {e}", folder.display()))? {
        let path = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        if path.is_file() && ["c", "cc", "rs"].contains(&ending) {
            let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            guests.push(read(folder, &path, &text).map_err(|e| format!("{}: {e}", path.display()))?);
        }
    }
    guests.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(guests)
}

fn read(folder: &Path, source: &Path, text: &str) -> Result<Guest, String> {
    let name = source.file_stem().and_then(|s| s.to_str()).ok_or("no name")?;
    let mut lang = None;
    let mut guest = Guest {
        name: name.to_owned(),
        source: source.to_owned(),
        lang: Lang::C,
        flags: Vec::new(),
        link: Vec::new(),
        with: Vec::new(),
        library: None,
        twice: false,
        compilers: Vec::new(),
        pic: None,
        end: End::Exit(0),
        count: "0.2".to_owned(),
        patches: false,
        idle: false,
        refused: None,
    };
    for line in text.lines().take_while(|l| l.is_empty() || l.starts_with("//")) {
        let Some(directive) = line.strip_prefix("//#") else { continue };
        let (key, value) = directive.split_once(':').unwrap_or((directive, ""));
        let value = value.trim();
        let words = || value.split_whitespace().map(str::to_owned);
        let number = || value.parse::<i32>().map_err(|e| format!("{line}: {e}"));
        match key {
            "Lang" => {
                lang = Some(match value {
                    "c" => Lang::C,
                    "c++" => Lang::Cxx,
                    "rust" => Lang::Rust,
                    _ => return Err(format!("{line}: no such language")),
                });
            }
            "Flags" => guest.flags.extend(words()),
            "Link" => guest.link.extend(words()),
            "With" => guest.with.extend(words().map(|w| folder.join(w))),
            "Library" => guest.library = Some((folder.join(value), false)),
            "Twice" => (guest.library, guest.twice) = (Some((folder.join(value), false)), true),
            "Linked" => guest.library = Some((folder.join(value), true)),
            "Compilers" => guest.compilers.extend(words()),
            "Pic" => guest.pic = Some(value == "yes"),
            "Exit" => guest.end = End::Exit(number()?),
            "Signal" => guest.end = End::Signal(number()?),
            "Count" => value.clone_into(&mut guest.count),
            "Patches" => guest.patches = true,
            "Idle" => guest.idle = true,
            "Refused" => guest.refused = Some(value.to_owned()),
            _ => return Err(format!("{line}: no such directive")),
        }
    }
    guest.lang = lang.ok_or("no //#Lang")?;
    Ok(guest)
}
