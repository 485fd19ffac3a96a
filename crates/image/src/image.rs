//! All modules of a process.

use crate::load::{Skeleton, skeleton};
use crate::{Error, Files, MainHint, Mapping, Module, ModuleKind, maps};
use addr::{Avma, AvmaRange, ReadMemory};

/// A loaded ELF file that was left out, and why.
#[derive(Debug)]
pub struct Skipped {
    /// Where its header is.
    pub at: Avma,
    /// Its path.
    pub path: Option<String>,
    /// What is wrong with it.
    pub why: Error,
}

/// What is loaded in a process: its memory map and its modules.
#[derive(Debug)]
pub struct Image {
    maps: Vec<Mapping>,
    modules: Vec<Module>,
    skipped: Vec<Skipped>,
    main: usize,
}

impl Image {
    /// Reads all modules. Code, frame tables and dynamic data come from memory, never from files.
    ///
    /// `maps` is what [`maps::parse`] gives; it and `mem` must be of one moment, or of a process that loads and unloads
    /// nothing meanwhile (a module that changes under the reader ends among [`Image::skipped`] or has faults).
    ///
    /// # Errors
    /// [`Error::NoMain`] where none of the modules fits `hint`; what is wrong with the main program (for example
    /// [`Error::Unsupported32Bit`]) where it could not be read. A fault of another module is no error.
    pub fn load(
        maps: &[Mapping],
        mem: &dyn ReadMemory,
        files: &dyn Files,
        hint: &MainHint,
    ) -> Result<Image, Error> {
        let mut found: Vec<Skeleton<'_>> = Vec::new();
        let mut skipped = Vec::new();
        for m in maps {
            let vdso = m.path.as_deref() == Some("[vdso]") || Some(m.range.start) == hint.vdso;
            if !vdso && (m.file().is_none() || m.offset != 0) {
                continue;
            }
            if found.last().is_some_and(|s| s.extent.contains(m.range.start)) {
                continue;
            }
            match skeleton(m, maps, mem) {
                Ok(Some(s)) => found.push(s),
                Ok(None) => {}
                Err(why) => skipped.push(Skipped { at: m.range.start, path: m.path.clone(), why }),
            }
        }
        let Some(main) = main_program(&found, hint, mem) else {
            // The program may be among those that are not supported: then that is the answer.
            let i = skipped.iter().position(|s| s.is_main(maps, hint));
            return Err(i.map_or(Error::NoMain, |i| skipped.swap_remove(i).why));
        };
        let interpreter = found.get(main).and_then(|m| m.interpreter(mem));
        let mut modules = Vec::new();
        let mut main_at = None;
        for (i, s) in found.into_iter().enumerate() {
            let kind = if i == main {
                ModuleKind::Main
            } else if s.path() == Some("[vdso]") || Some(s.extent.start) == hint.vdso {
                ModuleKind::Vdso
            } else if Some(s.extent.start) == hint.at_base {
                ModuleKind::Interpreter
            } else {
                ModuleKind::Library
            };
            let (at, path) = (s.extent.start, s.path().map(str::to_owned));
            match s.load(kind, maps, mem, files) {
                Ok(m) => {
                    if i == main {
                        main_at = Some(modules.len());
                    }
                    modules.push(m);
                }
                Err(why) if i == main => return Err(why),
                Err(why) => skipped.push(Skipped { at, path, why }),
            }
        }
        let main = main_at.ok_or(Error::NoMain)?;
        // A program that was started by naming the loader has no AT_BASE of its own: then the path tells.
        if let Some(name) = interpreter.filter(|_| !modules.iter().any(|m| m.kind == ModuleKind::Interpreter))
        {
            let loader = modules.iter_mut().find(|m| m.kind == ModuleKind::Library && m.answers_to(&name));
            if let Some(m) = loader {
                m.kind = ModuleKind::Interpreter;
            }
        }
        keep_initial_set(&mut modules, main);
        Ok(Image { maps: maps.to_vec(), modules, skipped, main })
    }

    /// The modules by rising address.
    #[must_use]
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// The program itself.
    #[must_use]
    pub fn main(&self) -> &Module {
        &self.modules[self.main]
    }

    /// Loaded files that are not among the modules.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// The memory map the image was read by.
    #[must_use]
    pub fn maps(&self) -> &[Mapping] {
        &self.maps
    }

    /// The mapping that holds an address.
    #[must_use]
    pub fn mapping_of(&self, at: Avma) -> Option<&Mapping> {
        maps::at(&self.maps, at)
    }

    /// The module whose extent holds an address.
    #[must_use]
    pub fn module_of(&self, at: Avma) -> Option<&Module> {
        let i = self.modules.partition_point(|m| m.extent.end <= at);
        self.modules.get(i).filter(|m| m.extent.contains(at))
    }

    /// The function that contains an address, by its module's symbols.
    #[must_use]
    pub fn name_at(&self, at: Avma) -> Option<&str> {
        self.module_of(at)?.symbols.name_at(at)
    }

    /// Whether these bytes are constants: part of one module, in a segment without write access or in its RELRO, and in
    /// private mappings that are readable and not writable *now*. The live mapping is the authority, as RELRO is
    /// writable until the loader has relocated it and a program may unprotect anything.
    #[must_use]
    pub fn is_readonly_data(&self, range: AvmaRange) -> bool {
        let Some(m) = self.module_of(range.start).filter(|m| m.extent.covers(&range)) else { return false };
        let stays = m.relro.is_some_and(|r| r.covers(&range))
            || m.segments.iter().any(|s| !s.perms.w && s.range.covers(&range));
        let constant = |p: &Mapping| p.perms.r && !p.perms.w && !p.perms.shared;
        !range.is_empty() && stays && maps::run_end(&self.maps, range.start, constant) >= range.end
    }

    /// The executable bytes of a module: its executable segments, as far as they are mapped executable now.
    #[must_use]
    pub fn exec_ranges(&self, module: &Module) -> Vec<AvmaRange> {
        let clip = |s: &crate::Segment| {
            let end = maps::run_end(&self.maps, s.range.start, |m| m.perms.x).min(s.range.end);
            AvmaRange::new(s.range.start, end)
        };
        module.segments.iter().filter(|s| s.perms.x).map(clip).filter(|r| !r.is_empty()).collect()
    }
}

impl Skipped {
    fn is_main(&self, maps: &[Mapping], hint: &MainHint) -> bool {
        let here = maps::at(maps, self.at);
        let by_phdr =
            hint.at_phdr.and_then(|a| maps::at(maps, a)).zip(here).is_some_and(|(a, b)| a.same_file(b));
        by_phdr || is_exe_path(self.path.as_deref(), hint)
    }
}

fn is_exe_path(path: Option<&str>, hint: &MainHint) -> bool {
    let plain = |p: &str| p.strip_suffix(" (deleted)").unwrap_or(p).to_owned();
    hint.exe_path.as_deref().zip(path).is_some_and(|(e, p)| plain(e) == plain(p))
}

/// The main program: where `AT_PHDR` points, else what `/proc/PID/exe` names. Both name the loader where the program was
/// started as its argument (`ld.so PROGRAM`); then it is the one module that is linked as a program.
fn main_program(found: &[Skeleton<'_>], hint: &MainHint, mem: &dyn ReadMemory) -> Option<usize> {
    let phdrs = |s: &Skeleton<'_>| Some(s.phdrs_at) == hint.at_phdr;
    let named =
        found.iter().position(phdrs).or_else(|| found.iter().position(|s| is_exe_path(s.path(), hint)))?;
    let s = found.get(named)?;
    if s.is_program(mem) || s.interpreter(mem).is_some() {
        return Some(named);
    }
    let program = |s: &Skeleton<'_>| s.is_program(mem) && s.interpreter(mem).is_some();
    found.iter().position(program).or(Some(named))
}

/// Marks what glibc never unloads: the program, its loader, the vDSO and all that the program needs, directly or through
/// others.
fn keep_initial_set(modules: &mut [Module], main: usize) {
    let mut reached = vec![false; modules.len()];
    let mut todo = vec![main];
    while let Some(i) = todo.pop() {
        let Some(seen) = reached.get_mut(i) else { continue };
        if std::mem::replace(seen, true) {
            continue;
        }
        let Some(module) = modules.get(i) else { continue };
        for name in &module.needed {
            // Were there two of one name (a copy opened from another path, or into another namespace), only one would be
            // of the initial set; as nothing says which, neither counts.
            let mut fits = modules.iter().enumerate().filter(|(_, m)| m.answers_to(name));
            if let (Some((j, _)), None) = (fits.next(), fits.next()) {
                todo.push(j);
            }
        }
    }
    for (m, reached) in modules.iter_mut().zip(reached) {
        m.nodelete |= reached || !matches!(m.kind, ModuleKind::Library);
    }
}
