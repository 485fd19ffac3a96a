//! Parts that the tests share: processes and their memory, files, and children that end with the test.

use addr::{Avma, AvmaRange, ReadMemory, Unreadable};
use image::{Error, FileParts, Files, Image, MainHint, Mapping, Module, Perms, auxv, maps};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A live process, read through its files in /proc.
pub struct Live {
    dir: PathBuf,
    mem: File,
}

impl Live {
    pub fn open(pid: u32) -> Live {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let mem = File::open(dir.join("mem")).unwrap();
        Live { dir, mem }
    }

    pub fn maps(&self) -> Vec<Mapping> {
        maps::parse(&std::fs::read_to_string(self.dir.join("maps")).unwrap()).unwrap()
    }

    pub fn hint(&self) -> MainHint {
        let hint = auxv::parse(&std::fs::read(self.dir.join("auxv")).unwrap());
        let exe = std::fs::read_link(self.dir.join("exe")).unwrap();
        MainHint { exe_path: exe.to_str().map(str::to_owned), ..hint }
    }

    pub fn image(&self) -> Image {
        self.image_with(&Disk).unwrap()
    }

    pub fn image_with(&self, files: &dyn Files) -> Result<Image, Error> {
        Image::load(&self.maps(), self, files, &self.hint())
    }
}

impl ReadMemory for Live {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        self.mem.read_exact_at(buf, at.0).map_err(|_| Unreadable { at, len: buf.len() as u64 })
    }
}

/// Files read from the disk by their paths.
pub struct Disk;

impl Files for Disk {
    fn open(&self, mapping: &Mapping) -> Option<Box<dyn FileParts>> {
        Some(Box::new(std::fs::read(mapping.file().filter(|_| !mapping.deleted)?).ok()?))
    }
}

/// A child process that is killed when dropped.
pub struct Guest {
    child: Child,
}

impl Guest {
    /// Starts a program and waits until it has written a line.
    pub fn start(command: &mut Command) -> Guest {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Guest { child }
    }

    /// Wraps a child that writes nothing.
    pub fn silent(child: Child) -> Guest {
        Guest { child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn live(&self) -> Live {
        Live::open(self.pid())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Runs a command to its end and returns its output.
pub fn run(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Compiles a C program into `dir` and returns its path.
pub fn compile(dir: &Path, name: &str, source: &str, args: &[&str]) -> PathBuf {
    testkit::build_source("gcc", &[&["-O1"], args].concat(), dir, &format!("{name}.c"), source)
}

/// A file laid out in memory as a loader would do, but not relocated.
pub struct Laid {
    pub maps: Vec<Mapping>,
    pub parts: Vec<(Avma, Vec<u8>)>,
}

impl Laid {
    pub fn new(path: &str, base: u64) -> Laid {
        use object::read::elf::{FileHeader, ProgramHeader};
        let data = std::fs::read(path).unwrap();
        let header = object::elf::FileHeader64::<object::LittleEndian>::parse(&*data).unwrap();
        let e = object::LittleEndian;
        let mut out = Laid { maps: Vec::new(), parts: Vec::new() };
        for p in header.program_headers(e, &*data).unwrap() {
            if p.p_type(e) != object::elf::PT_LOAD {
                continue;
            }
            let skew = p.p_vaddr(e) % 4096;
            let start = base + p.p_vaddr(e) - skew;
            let len = (skew + p.p_memsz(e)).next_multiple_of(4096);
            let from = usize::try_from(p.p_offset(e) - skew).unwrap();
            let to = usize::try_from(p.p_offset(e) + p.p_filesz(e)).unwrap();
            let mut bytes = data[from..to].to_vec();
            bytes.resize(usize::try_from(len).unwrap(), 0);
            let flags = image_flags(p.p_flags(e).0);
            out.maps.push(Mapping {
                range: AvmaRange::with_len(Avma(start), len),
                perms: flags,
                offset: p.p_offset(e) - skew,
                dev: (8, 1),
                inode: 7,
                path: Some(path.to_owned()),
                deleted: false,
            });
            out.parts.push((Avma(start), bytes));
        }
        out
    }

    pub fn hint(&self) -> MainHint {
        MainHint { exe_path: self.maps[0].path.clone(), ..MainHint::default() }
    }
}

fn image_flags(flags: u32) -> Perms {
    Perms { r: flags & 4 != 0, w: flags & 2 != 0, x: flags & 1 != 0, shared: false }
}

impl ReadMemory for Laid {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        let hit = self.parts.iter().any(|(start, bytes)| (*start, &bytes[..]).read(at, buf).is_ok());
        if hit { Ok(()) } else { Err(Unreadable { at, len: buf.len() as u64 }) }
    }
}

/// Returns the first module whose file name begins with `name`.
pub fn module<'a>(image: &'a Image, name: &str) -> &'a Module {
    image.modules().iter().find(|m| m.file_name().is_some_and(|n| n.starts_with(name))).unwrap()
}
