//! `whet generate`: man pages and shell completions, made from the definitions of the command line, so that
//! they cannot differ from it. For packages, and for installations by cargo.

use crate::cli::Cli;
use crate::file;
use crate::output::Output;
use clap::{Command, CommandFactory};
use clap_complete::{Generator, Shell};
use clap_mangen::Man;
use engine::{Error, ExitCode};
use serde::Serialize;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The answer of `generate`.
#[derive(Debug, Serialize)]
struct Generated {
    /// The files written.
    files: Vec<PathBuf>,
}

/// Writes all pages and completions to a folder, which is created if it does not exist.
///
/// # Errors
/// [`Error::File`]
pub fn run(folder: &Path, out: &Output) -> Result<ExitCode, Error> {
    let failed = |source| Error::File { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(failed)?;
    let mut files = pages(&command()).map_err(failed)?;
    files.extend([Shell::Bash, Shell::Zsh, Shell::Fish].map(completion));
    let mut written = Vec::new();
    for (name, bytes) in files {
        let path = folder.join(name);
        file::write_whole(&path, &bytes)?;
        written.push(path);
    }
    out.answer(&Generated { files: written }, |g| {
        g.files.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join("\n")
    });
    Ok(ExitCode::Ok)
}

/// Returns the command line without its hidden commands.
fn command() -> Command {
    let all = Cli::command();
    let mut shown = Command::new("whet")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .args(all.get_arguments().cloned())
        .subcommands(all.get_subcommands().filter(|c| !c.is_hide_set()).cloned());
    if let Some(about) = all.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(examples) = all.get_after_help() {
        shown = shown.after_help(examples.clone());
    }
    shown.build();
    shown
}

fn completion(shell: Shell) -> (String, Vec<u8>) {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "whet", &mut text);
    (shell.file_name("whet"), text)
}

/// Returns the pages of a command and of its subcommands.
fn pages(command: &Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = vec![page(command)?];
    for inner in command.get_subcommands() {
        pages.extend(self::pages(inner)?);
    }
    Ok(pages)
}

fn page(command: &Command) -> io::Result<(String, Vec<u8>)> {
    let man =
        Man::new(command.clone()).source(concat!("whet ", env!("CARGO_PKG_VERSION"))).manual("User Commands");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    text.extend(sections(&after).bytes());
    text.extend(see_also(command).bytes());
    Ok((man.get_filename(), text))
}

/// Formats the text below the options as sections of their own. Lines stay as they are.
fn sections(after: &str) -> String {
    let mut text = String::new();
    for part in after.split("\n\n") {
        let (heading, lines) = match part.split_once(":\n") {
            Some((heading, lines)) => (heading.to_uppercase(), lines),
            None => ("NOTES".to_owned(), part),
        };
        if lines.is_empty() {
            continue;
        }
        let _ = writeln!(text, ".SH \"{heading}\"\n.nf");
        for line in lines.lines() {
            let _ = writeln!(text, "\\&{}", line.replace('\\', "\\e").replace('-', "\\-"));
        }
        text.push_str(".fi\n");
    }
    text
}

fn see_also(command: &Command) -> String {
    match command.get_name() {
        "whet" => ".SH \"SEE ALSO\"\nwhet.toml(5), perf(1), gdb(1)\n".to_owned(),
        _ => ".SH \"SEE ALSO\"\nwhet(1), whet.toml(5)\n".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_keep_their_lines() {
        let text = sections("Marks: + only here.\n\nExamples:\n  whet undo 1\n  .x --all\\");
        assert_eq!(
            text,
            ".SH \"NOTES\"\n.nf\n\\&Marks: + only here.\n.fi\n.SH \"EXAMPLES\"\n.nf\n\\&  whet undo 1\n\\&  .x \\-\\-all\\e\n.fi\n"
        );
        assert_eq!(sections(""), "");
    }

    #[test]
    fn every_visible_command_has_a_page() {
        let names: Vec<String> = pages(&command()).unwrap().into_iter().map(|(name, _)| name).collect();
        for name in ["whet.1", "whet-optimize.1", "whet-profile-export.1", "whet-doctor.1"] {
            assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
        }
        let bash = String::from_utf8(completion(Shell::Bash).1).unwrap();
        for hidden in Cli::command().get_subcommands().filter(|c| c.is_hide_set()) {
            let word = hidden.get_name();
            assert!(!names.iter().any(|n| n.contains(word)) && !bash.contains(word), "{word}");
        }
    }
}
