//! Builds a guest into the cache, unless it is there already from the same sources and the same compiler.

use crate::directives::{Guest, Lang};
use crate::variants::Variant;
use crate::{Harness, count};
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the path of the built program.
pub(crate) fn build(harness: &Harness, guest: &Guest, variant: Variant) -> Result<PathBuf, String> {
    let key = key(harness, guest, variant)?;
    let folder = harness.cache.join("bin");
    let program = folder.join(format!("{}-{}-{key:016x}", guest.name, variant.name()));
    if program.is_file() {
        count(&harness.counts.cached);
        return Ok(program);
    }
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let compiler = variant.compiler(guest);
    let build_library = |source: &Path, ending: &str, defined: &[&str]| {
        let path = program.with_extension(ending);
        let mut command = Command::new(compiler);
        command
            .arg(format!("-O{}", variant.level))
            .args(["-fPIC", "-shared", "-s"])
            .args(defined)
            .arg(source);
        run(command, &path).map(|()| path)
    };
    let mut library = None;
    let mut second = None;
    if let Some((source, linked)) = &guest.library {
        library = Some((build_library(source, "so", &[])?, *linked));
        if guest.twice {
            second = Some(build_library(source, "second.so", &["-DGUEST_SECOND"])?);
        }
    }
    let mut command = Command::new(compiler);
    command.args(arguments(harness, guest, variant)).arg(&guest.source);
    let define = |name: &str, path: &Path| {
        let mut define = OsString::from(format!("-D{name}=\""));
        define.push(path);
        define.push("\"");
        define
    };
    if let Some((path, linked)) = &library {
        command.arg(define("GUEST_LIBRARY", path));
        if *linked {
            command.arg(path);
        }
    }
    command.args(second.iter().map(|path| define("GUEST_SECOND_LIBRARY", path)));
    command.args(&guest.with).args(&guest.link);
    // The program comes last: its presence shows that everything is there.
    run(command, &program)?;
    count(&harness.counts.builds);
    Ok(program)
}

fn arguments(harness: &Harness, guest: &Guest, variant: Variant) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    if guest.lang == Lang::Rust {
        let model = if variant.pic { "pic" } else { "static" };
        arguments.extend(["--edition=2024", "-Cstrip=symbols"].map(OsString::from));
        arguments.push(format!("-Copt-level={}", variant.level).into());
        arguments.push(format!("-Crelocation-model={model}").into());
    } else {
        arguments.push(format!("-O{}", variant.level).into());
        arguments.extend(["-s", "-w"].map(OsString::from));
        let kind = if variant.pic { ["-fPIE", "-pie"] } else { ["-fno-pic", "-no-pie"] };
        arguments.extend(kind.map(OsString::from));
        arguments.push("-I".into());
        arguments.push(harness.sources.clone().into());
    }
    arguments.extend(guest.flags.iter().map(OsString::from));
    arguments
}

/// Runs a compiler. The output gets its name only when it is complete.
fn run(mut command: Command, to: &Path) -> Result<(), String> {
    let unfinished = to.with_extension(format!("new{}", std::process::id()));
    command.arg("-o").arg(&unfinished).stdin(Stdio::null());
    let out = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if !out.status.success() {
        return Err(format!("{command:?}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr)));
    }
    std::fs::rename(&unfinished, to).map_err(|e| format!("{}: {e}", to.display()))
}

/// Returns a hash of everything that the program is made of.
fn key(harness: &Harness, guest: &Guest, variant: Variant) -> Result<u64, String> {
    let mut hasher = DefaultHasher::new();
    let shared = if guest.lang == Lang::Rust { "support/guest.rs" } else { "guest.h" };
    let shared = harness.sources.join(shared);
    let library = guest.library.iter().map(|(source, _)| source);
    for source in guest.with.iter().chain(library).chain([&guest.source, &shared]) {
        std::fs::read(source).map_err(|e| format!("{}: {e}", source.display()))?.hash(&mut hasher);
    }
    arguments(harness, guest, variant).hash(&mut hasher);
    guest.link.hash(&mut hasher);
    guest.library.as_ref().map(|(_, linked)| linked).hash(&mut hasher);
    guest.twice.hash(&mut hasher);
    harness.compilers.version(variant.compiler(guest)).hash(&mut hasher);
    Ok(hasher.finish())
}
