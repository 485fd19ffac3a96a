//! A process to be worked on: opened and checked, with the earlier changes of whet.

use crate::{Error, Pristine};
use addr::{AvmaRange, ReadMemory};
use image::{FileParts, Files, Image, MainHint, Mapping};
use splice::Installed;
use tracee::{MappedFile, Pid, Process};

/// An opened target.
#[derive(Debug)]
pub struct Target {
    /// The process.
    pub process: Process,
    /// Its mappings when it was opened.
    pub maps: Vec<Mapping>,
    /// What an earlier whet installed in it.
    pub installed: Option<Installed>,
}

impl Target {
    /// Opens a process and reads its mappings and journal.
    ///
    /// # Errors
    /// Returns [`Error::Tracee`] if the process does not exist or access is not permitted, [`Error::Splice`]
    /// for a journal of another version.
    pub fn open(pid: Pid) -> Result<Self, Error> {
        let target = Self::open_of_any_version(pid)?;
        if let Some(installed) = &target.installed {
            if let Some(version) = installed.newer() {
                return Err(splice::Error::NewerJournal(version).into());
            }
            splice::admit_finishing_code(&target.process, &installed.anchor)?;
        }
        Ok(target)
    }

    /// Same as [`Target::open`], to show or undo changes that a later whet may have made.
    ///
    /// # Errors
    /// Same as [`Target::open`], but accepts a later version with the part of the format that never changes.
    pub fn open_of_any_version(pid: Pid) -> Result<Self, Error> {
        let process = Process::open(pid)?;
        let maps = image::maps::parse(&process.maps_text()?)?;
        let mut installed = splice::discover(&process, &journal_candidates(&maps))?;
        if let Some(installed) = &mut installed {
            splice::forget_unloaded(&process, installed)?;
        }
        Ok(Self { process, maps, installed })
    }

    /// Same as [`Target::open`], for work that began after `undos` undos by an operator.
    ///
    /// # Errors
    /// Returns [`Error::Changed`] if an undo by an operator has begun since, and the errors of [`Target::open`].
    pub(crate) fn open_since(pid: Pid, undos: u64) -> Result<Self, Error> {
        let target = Self::open(pid)?;
        if target.undos() == undos { Ok(target) } else { Err(Error::Changed { pid }) }
    }

    /// Returns the mappings of this moment.
    ///
    /// # Errors
    /// Returns [`Error::Tracee`] if the process has ended, [`Error::Image`] for a text that cannot be parsed.
    pub(crate) fn maps_now(&self) -> Result<Vec<Mapping>, Error> {
        Ok(image::maps::parse(&self.process.maps_text()?)?)
    }

    /// Opens the target again, as its mappings or its clones may have changed.
    ///
    /// # Errors
    /// Same as [`Target::open_since`].
    pub(crate) fn again(&self) -> Result<Self, Error> {
        Self::open_since(self.process.pid(), self.undos())
    }

    /// Returns the cause of a failure: if the process has ended or executed another program meanwhile,
    /// returns that instead.
    #[must_use]
    pub fn cause(&self, e: Error) -> Error {
        let pid = self.process.pid();
        if !self.process.is_alive() {
            return tracee::Error::Gone(pid).into();
        }
        // Handles from before an exec refer to the old memory, from which nothing can be read any more.
        let code = self.maps.iter().find(|m| m.perms.x && m.perms.r && m.inode != 0);
        match code.map(|m| self.process.read(m.range.start, &mut [0])) {
            // It has no memory any more, but some of its threads have still to end.
            Some(Err(_)) if self.process.is_ending() => tracee::Error::Gone(pid).into(),
            Some(Err(_)) => tracee::Error::Exec(pid).into(),
            _ => e,
        }
    }

    /// Returns how many undos by an operator had begun when the target was opened.
    #[must_use]
    pub fn undos(&self) -> u64 {
        self.installed.as_ref().map_or(0, |i| i.anchor.undos)
    }

    /// Returns the path of its program.
    #[must_use]
    pub fn exe(&self) -> String {
        self.process.exe().map(|p| p.display().to_string()).unwrap_or_default()
    }

    /// Returns its memory without redirects.
    #[must_use]
    pub fn pristine(&self) -> Pristine<'_, Process> {
        Pristine::new(&self.process, self.installed.as_ref())
    }

    /// Loads its modules.
    ///
    /// # Errors
    /// Returns [`Error::Image`].
    pub fn image(&self) -> Result<Image, Error> {
        self.image_by(&self.files())
    }

    /// Loads its modules with names from other files.
    ///
    /// # Errors
    /// Returns [`Error::Image`].
    pub(crate) fn image_by(&self, files: &dyn Files) -> Result<Image, Error> {
        let mut hint: MainHint = image::auxv::parse(&self.process.auxv()?);
        hint.exe_path = Some(self.exe());
        Ok(Image::load(&self.maps, &self.pristine(), files, &hint)?)
    }

    /// Returns whether other files are mapped as code now than when the target was opened.
    pub(crate) fn has_other_code(&self) -> bool {
        let now = self.maps_now().ok();
        let code = |m: &&Mapping| m.perms.x && m.inode != 0;
        now.is_none_or(|now| !now.iter().filter(code).eq(self.maps.iter().filter(code)))
    }

    /// Returns the files of its modules.
    pub(crate) fn files(&self) -> impl Files + '_ {
        ProcessFiles(&self.process)
    }
}

/// Refuses programs that whet leaves alone as a whole.
pub(crate) fn check_program(pid: Pid, image: &Image, memory: &dyn ReadMemory) -> Result<(), Error> {
    if let Some(runtime) = image::runtime::detect(image, memory) {
        return Err(Error::Unsupported {
            pid,
            code: runtime.code(),
            why: format!(
                "it holds a runtime ({}) that looks code addresses up in tables of its own",
                runtime.code()
            ),
        });
    }
    Ok(())
}

/// Returns how many undos by an operator have begun in a process; 0 if that cannot be read.
pub(crate) fn undos(process: &Process) -> u64 {
    let maps = process.maps_text().ok().and_then(|text| image::maps::parse(&text).ok()).unwrap_or_default();
    let anchor = |range: &AvmaRange| splice::Anchor::read(process, range.start).ok().flatten();
    journal_candidates(&maps).iter().find_map(anchor).map_or(0, |anchor| anchor.undos)
}

/// Returns the mappings that may hold an anchor: private, anonymous, and only readable.
fn journal_candidates(maps: &[Mapping]) -> Vec<AvmaRange> {
    maps.iter()
        .filter(|m| {
            m.path.is_none() && m.inode == 0 && m.perms.r && !m.perms.w && !m.perms.x && !m.perms.shared
        })
        .map(|m| m.range)
        .collect()
}

/// The files that a process has mapped, under its own view of the file system.
struct ProcessFiles<'a>(&'a Process);

impl Files for ProcessFiles<'_> {
    fn open(&self, mapping: &Mapping) -> Option<Box<dyn FileParts>> {
        let file = self.0.mapped_file(mapping.path.as_deref()?, mapping.range)?;
        Some(Box::new(Parts(file)))
    }
}

struct Parts(MappedFile);

impl FileParts for Parts {
    fn part(&self, from: u64, len: u64) -> Option<Vec<u8>> {
        self.0.part(from, len)
    }
}
