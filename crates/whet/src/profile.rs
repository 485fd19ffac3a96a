//! `whet profile`: profiles in files.

use crate::cli::{ProfileCommand, To};
use crate::human;
use crate::output::Output;
use crate::text::many;
use engine::{Debuginfod, Error, ExitCode, Pid, Profile, ProfileForm, ProfileText};
use serde::Serialize;
use std::path::Path;

/// The answer of `export` and `import`.
#[derive(Debug, Serialize)]
struct Written<'a> {
    /// The file; absent if the text is in this object.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a Path>,
    /// Size of the text. Bytes.
    bytes: usize,
    #[serde(flatten)]
    what: &'a ProfileText,
}

pub fn run(what: &ProfileCommand, out: &Output) -> Result<ExitCode, Error> {
    match what {
        ProfileCommand::Export { pid, to } => {
            let mut profile = engine::export_profile(Pid(*pid))?;
            // Other forms are for tools that know a function by its symbol.
            if matches!(to.form(), ProfileForm::Pprof | ProfileForm::Collapsed) {
                let mut debuginfod = Debuginfod::from_environment();
                engine::name_functions(Pid(*pid), &mut profile, &mut debuginfod)?;
                debuginfod.warning().iter().for_each(|w| out.warn(w));
            }
            write(&profile, to, out)?;
        }
        ProfileCommand::Import { files, to } => write(&engine::merge_profiles(files)?, to, out)?,
        ProfileCommand::Show { file, top } => {
            out.answer(&engine::show_profile(&engine::read_profile(file)?, *top), human::profile);
        }
    }
    Ok(ExitCode::Ok)
}

fn write(profile: &Profile, to: &To, out: &Output) -> Result<(), Error> {
    let mut what = engine::write_profile(profile, to.form(), to.module.as_deref())?;
    let binary = std::mem::take(&mut what.bytes);
    let bytes = what.text.len().max(binary.len());
    if let Some(path) = &to.output {
        let text = std::mem::take(&mut what.text);
        let content = if text.is_empty() { binary } else { text.into_bytes() };
        std::fs::write(path, content).map_err(|source| Error::File { path: path.clone(), source })?;
    }
    if what.left_out > 0 || what.edges_left_out > 0 {
        out.warn(&format!(
            "left out: {} without a symbol of its own or without room, {}",
            many(what.left_out, "function"),
            format_args!("{} of edges and calls", what.edges_left_out)
        ));
    }
    out.answer(&Written { file: to.output.as_deref(), bytes, what: &what }, |w| match w.file {
        Some(path) => format!("{}: {}, {bytes} bytes", path.display(), many(w.what.functions, "function")),
        // A line end is added to every answer.
        None => w.what.text.trim_end_matches('\n').to_owned(),
    });
    Ok(())
}
