//! The modules of a process.

use crate::load::{Skeleton, skeleton};
use crate::{Error, Files, MainHint, Mapping, Module, ModuleKind, maps};
use addr::{Avma, AvmaRange, ReadMemory};

/// A loaded ELF file that was left out, and the reason.
#[derive(Debug)]
pub struct Skipped {
    /// The address of its header.
    pub at: Avma,
    /// Its path.
    pub path: Option<String>,
    /// The reason.
    pub why: Error,
}

/// A module of an image, by its index in [`Image::modules`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ModuleId(pub u32);

impl ModuleId {
    /// Returns its index in [`Image::modules`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Finds the modules of a process, by rising address, and those that cannot be read.
fn skeletons<'m>(
    maps: &'m [Mapping],
    mem: &dyn ReadMemory,
    hint: &MainHint,
) -> (Vec<Skeleton<'m>>, Vec<Skipped>) {
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
    (found, skipped)
}

/// The memory map of a process, and the modules loaded in it.
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
    /// `maps` comes from [`maps::parse`]. `maps` and `mem` must show the same moment, or a process that loads
    /// and unloads nothing meanwhile. A module that changes during the read is listed in [`Image::skipped`]
    /// or has faults.
    ///
    /// # Errors
    /// Returns [`Error::NoMain`] if no module fits `hint`. If the main program was found but could not be
    /// read, returns its error (for example [`Error::Unsupported32Bit`]). A fault of another module is no
    /// error.
    pub fn load(
        maps: &[Mapping],
        mem: &dyn ReadMemory,
        files: &dyn Files,
        hint: &MainHint,
    ) -> Result<Image, Error> {
        let (found, mut skipped) = skeletons(maps, mem, hint);
        let Some(main) = main_program(&found, hint, mem) else {
            // The program may be one of the skipped files; then its error is returned.
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
        // A program that was started by naming the loader has no AT_BASE. Then the loader is recognised by
        // its path.
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

    /// Returns the modules by rising address.
    #[must_use]
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Returns the modules by rising address, with their ids.
    pub fn numbered_modules(&self) -> impl Iterator<Item = (ModuleId, &Module)> {
        (0u32..).map(ModuleId).zip(&self.modules)
    }

    /// Returns a module.
    ///
    /// # Panics
    /// If the id is not of this image.
    #[must_use]
    pub fn module(&self, id: ModuleId) -> &Module {
        &self.modules[id.index()]
    }

    /// Returns the main program.
    #[must_use]
    pub fn main(&self) -> &Module {
        &self.modules[self.main]
    }

    /// Returns the loaded files that are not among the modules.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Returns the memory map by which the image was read.
    #[must_use]
    pub fn maps(&self) -> &[Mapping] {
        &self.maps
    }

    /// Returns the mapping at an address.
    #[must_use]
    pub fn mapping_of(&self, at: Avma) -> Option<&Mapping> {
        maps::at(&self.maps, at)
    }

    /// Returns the module whose extent contains an address.
    #[must_use]
    pub fn module_of(&self, at: Avma) -> Option<&Module> {
        let i = self.modules.partition_point(|m| m.extent.end <= at);
        self.modules.get(i).filter(|m| m.extent.contains(at))
    }

    /// Returns the name of the function that contains an address, according to its module's symbols.
    #[must_use]
    pub fn name_at(&self, at: Avma) -> Option<&str> {
        self.module_of(at)?.symbols.name_at(at)
    }

    /// Returns whether these bytes are constants. They must lie inside one module, in a segment without write
    /// access or in its RELRO. Their mappings must be private, readable, and not writable *now*. The live
    /// mappings decide, because RELRO is writable until the loader has relocated it, and a program may make
    /// any page writable.
    #[must_use]
    pub fn is_readonly_data(&self, range: AvmaRange) -> bool {
        let Some(m) = self.module_of(range.start).filter(|m| m.extent.covers(&range)) else { return false };
        let stays = m.relro.is_some_and(|r| r.covers(&range))
            || m.segments.iter().any(|s| !s.perms.w && s.range.covers(&range));
        let constant = |p: &Mapping| p.perms.r && !p.perms.w && !p.perms.shared;
        !range.is_empty() && stays && maps::run_end(&self.maps, range.start, constant) >= range.end
    }

    /// Returns the executable bytes of a module: its executable segments, as far as they are mapped
    /// executable now.
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

/// Finds the main program: the module with the program headers at `AT_PHDR`, else the module with the path of
/// `/proc/PID/exe`. If the program was started as an argument of the loader (`ld.so PROGRAM`), both name the
/// loader. Then the program is the first module that is linked as a program and names an interpreter.
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

/// Marks the modules that glibc never unloads: the program, its loader, the vDSO and all libraries that the
/// program needs, directly or through others.
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
            // Two modules may fit one name: a copy opened from another path or into another namespace. Only
            // one of them is in the initial set, and nothing shows which, so neither is marked.
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
