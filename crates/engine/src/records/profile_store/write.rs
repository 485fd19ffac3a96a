//! Writes a profile in its own form, or in a form for other tools.

use super::collapsed::collapsed;
use super::pprof::pprof;
use crate::Error;
use layout::{CallEdge, FuncNode};
use profile::{Binding, BuildId, FunctionKey, FunctionProfile, ModuleProfile, Place, Profile};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// The form to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProfileForm {
    /// whet's own form: everything, for all modules.
    #[default]
    Profile,
    /// For llvm-bolt `--data`: branches of one module by symbol.
    Fdata,
    /// For a linker (lld `--symbol-ordering-file`; for gold's `--section-ordering-file` put `.text.` before
    /// each line): the symbols of one module, hot ones first. Symbols that belong together are side by side.
    Order,
    /// For `pprof`: bytes, all modules.
    Pprof,
    /// For flame graph tools: samples by stacks whose callers are estimated, all modules.
    Collapsed,
}

/// A profile as text, or as bytes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProfileText {
    /// The form.
    pub form: ProfileForm,
    /// The module; all modules if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Functions in it.
    pub functions: usize,
    /// Functions that were left out: no symbol names only them, or there was no room.
    pub left_out: u64,
    /// Edges and calls of included functions that were left out: they lead to such functions or to cold
    /// fragments.
    pub edges_left_out: usize,
    /// The text itself; absent if it was written to a file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The bytes of a form that is no text.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

/// Writes a profile. `module` (a file name or the beginning of a build id) chooses the module for forms with
/// one module; the default is the program.
///
/// # Errors
/// [`Error::NoSuchModule`].
pub fn write_profile(
    profile: &Profile,
    form: ProfileForm,
    module: Option<&str>,
) -> Result<ProfileText, Error> {
    let left_out = profile.left_out;
    let whole = ProfileText { form, functions: profile.functions(), left_out, ..ProfileText::default() };
    match form {
        ProfileForm::Profile => return Ok(ProfileText { text: profile.to_string(), ..whole }),
        ProfileForm::Pprof => return Ok(ProfileText { bytes: pprof(profile), ..whole }),
        ProfileForm::Collapsed => return Ok(ProfileText { text: collapsed(profile), ..whole }),
        ProfileForm::Fdata | ProfileForm::Order => {}
    }
    let (id, chosen) = choose(profile, module)?;
    let (functions, unnamed, edges_left_out, text) = match form {
        ProfileForm::Fdata => {
            let f = profile::fdata(profile, id);
            (f.functions, f.unnamed, f.edges_left_out, f.text)
        }
        _ => {
            let names = order(chosen);
            let text = names.iter().map(|n| format!("{n}\n")).collect();
            (names.len(), chosen.functions.len() - names.len(), 0, text)
        }
    };
    let left_out = left_out.saturating_add(unnamed as u64);
    let module = Some(chosen.name.clone());
    Ok(ProfileText { form, module, functions, left_out, edges_left_out, text, bytes: Vec::new() })
}

fn choose<'p>(profile: &'p Profile, wanted: Option<&str>) -> Result<(&'p BuildId, &'p ModuleProfile), Error> {
    let is_program =
        |m: &ModuleProfile| profile.exes.iter().any(|e| e.rsplit('/').next() == Some(m.name.as_str()));
    let fits = |(id, m): &(&BuildId, &ModuleProfile)| match wanted {
        Some(wanted) => m.name == wanted || id.to_string().starts_with(wanted),
        None => profile.modules.len() == 1 || is_program(m),
    };
    let mut fitting = profile.modules.iter().filter(fits);
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => Ok(one),
        (first, _) => Err(Error::NoSuchModule {
            name: wanted.map(str::to_owned),
            several: first.is_some(),
            known: profile.modules.iter().map(|(id, m)| format!("{} {id}", m.name)).collect(),
        }),
    }
}

/// Returns names in the best order of functions.
fn order(module: &ModuleProfile) -> Vec<&str> {
    let functions: Vec<(&FunctionKey, &FunctionProfile)> = module.functions.iter().collect();
    // Inferred counts have another unit than exact counts; samples have the same unit for all functions.
    let all_counted = functions.iter().all(|(_, f)| f.is_counted());
    let nodes: Vec<FuncNode> = functions
        .iter()
        .map(|(_, f)| FuncNode {
            size: f.size.max(1),
            samples: if all_counted { f.weight() } else { f.samples },
        })
        .collect();
    let index: FxHashMap<_, _> = functions.iter().enumerate().map(|(i, (key, _))| (key.at, i)).collect();
    let mut calls = Vec::new();
    for (caller, (_, f)) in functions.iter().enumerate() {
        let mut called = |at: i64, callee: &Place, count: u64| {
            if callee.module.is_none()
                && let Some(&callee) = index.get(&callee.at)
                && callee != caller
            {
                calls.push(CallEdge { caller, callee, count, offset: u64::try_from(at).unwrap_or(0) });
            }
        };
        for ((at, callee), &count) in &f.calls {
            called(*at, callee, count);
        }
        for (&at, site) in &f.sites {
            site.called(f.count_at(at)).for_each(|(callee, count)| called(at, callee, count));
        }
    }
    let named = |i: usize| functions.get(i).map(|f| f.1).filter(|f| f.binding != Binding::None);
    layout::best_function_order(&nodes, &calls)
        .order
        .into_iter()
        .filter_map(named)
        .map(|f| f.name.as_str())
        .filter(|n| !n.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
whet-profile 1
exe /usr/bin/a
module aa a
function 0x1000 1 counted entered 1 samples 0 size 0x100 global main
+0 +0 90000
call +2 0x3000 100000
function 0x2000 2 counted entered 9 samples 0 size 0x100 none
+0 +0 9000
function 0x3000 3 counted entered 9 samples 0 size 0x100 local hot
+0 +0 100000
function 0x4000 4 counted entered 9 samples 0 size 0x100 local warm
+0 +0 60000
module bb libb.so
function 0x1000 5 counted entered 9 samples 0 size 0x100 global b
+0 +0 10
end
";

    fn write(form: ProfileForm, module: Option<&str>) -> Result<ProfileText, Error> {
        write_profile(&TEXT.parse().unwrap(), form, module)
    }

    #[test]
    fn callers_precede_their_callees() {
        let order = write(ProfileForm::Order, None).unwrap();
        assert!(order.text.contains("main\nhot\n") && order.text.contains("warm\n"), "{}", order.text);
        assert_eq!((order.functions, order.left_out, order.module.as_deref()), (3, 1, Some("a")));
    }

    #[test]
    fn modules_are_chosen() {
        assert_eq!(write(ProfileForm::Order, Some("libb.so")).unwrap().text, "b\n");
        assert_eq!(write(ProfileForm::Fdata, Some("b")).unwrap().text, "0 [unknown] 0 1 b 0 0 9\n");
        assert!(matches!(
            write(ProfileForm::Fdata, Some("c")),
            Err(Error::NoSuchModule { several: false, .. })
        ));
        assert!(matches!(
            write(ProfileForm::Fdata, Some("")),
            Err(Error::NoSuchModule { several: true, .. })
        ));
        assert_eq!(write(ProfileForm::Profile, None).unwrap().functions, 5);
    }

    #[test]
    fn profiles_are_summarized() {
        let shown = crate::show_profile(&TEXT.parse().unwrap(), 2);
        let module = &shown.modules[0];
        assert_eq!((module.functions, module.blocks, module.edges, module.counted), (4, 4, 0, 4));
        assert_eq!(module.top.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["hot", "main"]);
    }
}
