//! Reads one module from memory.

use crate::dynamic::{DynSyms, Dynamic};
use crate::elf::{self, EHDR, ET_DYN, ET_EXEC, Header, Phdr};
use crate::file::ModuleFile;
use crate::module::{Module, ModuleKind, Segment};
use crate::relocs::Reloc;
use crate::symbols::{Builder, Symbols};
use crate::{Error, Files, Mapping, Perms, frames, identity, maps, plt, relocs};
use addr::{Addr, Avma, AvmaRange, Bias, ReadMemory, Svma};
use unwind::FrameTable;

/// The page size of x86-64 Linux. Bytes.
const PAGE: u64 = 4096;
/// The end of user addresses with four-level paging, and with five-level paging unless a program requests
/// more.
const USER_END: u64 = 1 << 47;
/// The largest interpreter path or dynamic section that is read, in bytes. No sound module has
/// a larger one.
const MAX_SMALL: u64 = 1 << 20;
/// The most needed libraries of a module that are kept. No module needs more.
const MAX_NEEDED: usize = 4096;
/// How many mappings of the program headers' part of a file are searched for the module's own.
const MAX_VIEWS: usize = 16;

/// A module whose headers fit the memory map. Nothing else of it has been read.
#[derive(Debug)]
pub(crate) struct Skeleton<'a> {
    first: &'a Mapping,
    header: Header,
    /// The address of the program headers: `AT_PHDR` of a main program.
    pub phdrs_at: Avma,
    phdrs: Vec<Phdr>,
    pub bias: Bias,
    pub extent: AvmaRange,
    segments: Vec<Segment>,
}

/// Returns the module that starts at `first`. Returns `Ok(None)` if there is no ELF file, or if it is mapped
/// as data and not loaded.
///
/// # Errors
/// Returns an error for a loaded module of an unsupported kind, or with headers that contradict themselves or
/// the map.
pub(crate) fn skeleton<'a>(
    first: &'a Mapping,
    maps: &[Mapping],
    mem: &dyn ReadMemory,
) -> Result<Option<Skeleton<'a>>, Error> {
    let mut ehdr = [0; EHDR];
    if !first.perms.r || mem.read(first.range.start, &mut ehdr).is_err() || !elf::is_elf(&ehdr) {
        return Ok(None);
    }
    // A code cache of whet's is no module.
    if elf::is_of_clones(&ehdr) {
        return Ok(None);
    }
    match headers(first, &ehdr, maps, mem) {
        // A file without an executable mapping is only read as data. It is no module.
        Err(_) if !maps.iter().any(|m| m.perms.x && m.same_file(first)) => Ok(None),
        other => other,
    }
}

fn headers<'a>(
    first: &'a Mapping,
    ehdr: &[u8],
    maps: &[Mapping],
    mem: &dyn ReadMemory,
) -> Result<Option<Skeleton<'a>>, Error> {
    let at = first.range.start;
    let bad = |what| Error::BadElf { at, what };
    let header = elf::header(ehdr, at)?;
    let (phdrs_at, phdrs) =
        table(first, &header, maps, mem).ok_or_else(|| bad("program headers outside the mapped file"))?;
    let Some(bias) = bias(&phdrs, at) else {
        return Err(bad("no segment holds the ELF header"));
    };
    if header.kind == ET_EXEC && bias.0 != 0 {
        return Ok(None);
    }
    let segments = segments(loads(&phdrs), bias).ok_or_else(|| bad("a segment outside the address space"))?;
    let (Some(lo), Some(hi)) = (segments.first(), segments.iter().map(|s| s.range.end).max()) else {
        return Err(bad("no segments"));
    };
    let extent = AvmaRange::new(lo.range.start.align_down(PAGE), hi.add(PAGE - 1).align_down(PAGE));
    // A file that is mapped for reading has its code at file offsets, in mappings that are not executable. A
    // second view of a file's first page has no code at its bias; the data segment of a small program shares
    // this page.
    let in_place = |s: &&Segment| {
        let last = s.range.end.sub(1);
        [s.range.start, last].into_iter().all(|a| maps::at(maps, a).is_some_and(|m| m.perms.x))
    };
    let code: Vec<&Segment> = segments.iter().filter(|s| s.perms.x).collect();
    if code.is_empty() || !code.iter().all(in_place) {
        return Ok(None);
    }
    Ok(Some(Skeleton { first, header, phdrs_at, phdrs, bias, extent, segments }))
}

/// Returns the address of the program headers in memory, and the headers. Linkers place them behind the ELF
/// header. Tools that need more headers (llvm-bolt, patchelf) place all of them in a segment of their own at
/// the file's end. If several mappings show that part of the file, the module's own is at the address that
/// the headers themselves state.
fn table(
    first: &Mapping,
    header: &Header,
    maps: &[Mapping],
    mem: &dyn ReadMemory,
) -> Option<(Avma, Vec<Phdr>)> {
    let ours = |m: &Mapping| m.perms.r && m.same_file(first);
    let from = maps.partition_point(|m| m.range.start < first.range.start);
    let offset = |m: &Mapping| header.phoff.checked_sub(m.offset).filter(|o| *o < m.range.len());
    let views = maps.iter().skip(from).filter(|m| ours(m)).filter_map(|m| Some((m, offset(m)?)));
    views.take(MAX_VIEWS).find_map(|(m, offset)| {
        let table = AvmaRange::with_len(m.range.start.add(offset), header.phdrs_len());
        if !AvmaRange::new(table.start, maps::run_end(maps, table.start, ours)).covers(&table) {
            return None;
        }
        let phdrs = elf::phdrs(&mem.bytes(table).ok()?);
        let stated = || {
            let holder =
                loads(&phdrs).find(|p| p.offset <= header.phoff && header.phoff - p.offset < p.filesz)?;
            let vaddr = holder.vaddr.wrapping_add(header.phoff - holder.offset);
            Some(bias(&phdrs, first.range.start)?.avma(Svma(vaddr)))
        };
        let behind_header = m.range.start == first.range.start;
        (behind_header || stated() == Some(table.start)).then_some((table.start, phdrs))
    })
}

fn loads(phdrs: &[Phdr]) -> impl Iterator<Item = &Phdr> {
    phdrs.iter().filter(|p| p.kind == elf::PT_LOAD && p.memsz > 0)
}

/// Returns the bias of a module whose ELF header is mapped at `at`. The bias comes from the PT_LOAD whose
/// first page has file offset 0, because the address of this mapping is known. The stated address of offset 0
/// is p_vaddr - p_offset. The lowest PT_LOAD need not be the same one, because linker scripts may order
/// segments otherwise.
fn bias(phdrs: &[Phdr], at: Avma) -> Option<Bias> {
    let holder = loads(phdrs).find(|p| p.offset < PAGE && p.offset <= p.vaddr)?;
    Some(Bias(at.0.wrapping_sub(holder.vaddr - holder.offset)))
}

/// Returns the segments in the process, by rising address; `None` if one leaves the address space.
fn segments<'p>(loads: impl Iterator<Item = &'p Phdr>, bias: Bias) -> Option<Vec<Segment>> {
    let mut out = Vec::new();
    for p in loads {
        let start = bias.avma(Svma(p.vaddr));
        let end = start.0.checked_add(p.memsz).filter(|e| *e <= USER_END)?;
        let range = AvmaRange::new(start, Avma(end));
        let file_backed = AvmaRange::with_len(start, p.filesz.min(p.memsz));
        let has = |flag| p.flags & flag != 0;
        let perms = Perms { r: has(elf::PF_R), w: has(elf::PF_W), x: has(elf::PF_X), shared: false };
        out.push(Segment { range, file_backed, perms });
    }
    out.sort_by_key(|s| s.range.start);
    Some(out)
}

impl Skeleton<'_> {
    pub fn path(&self) -> Option<&str> {
        self.first.path.as_deref()
    }

    /// Returns the memory of the first program header of a kind; `None` if it is not inside the module.
    fn part(&self, kind: u32) -> Option<AvmaRange> {
        let p = self.phdrs.iter().find(|p| p.kind == kind)?;
        self.place(p)
    }

    fn place(&self, p: &Phdr) -> Option<AvmaRange> {
        let range = AvmaRange::with_len(self.bias.avma(Svma(p.vaddr)), p.memsz);
        (!range.is_empty() && self.extent.covers(&range)).then_some(range)
    }

    fn small_part(&self, p: &Phdr, mem: &dyn ReadMemory) -> Option<Vec<u8>> {
        mem.bytes(self.place(p).filter(|r| r.len() <= MAX_SMALL)?).ok()
    }

    fn first_small_part(&self, kind: u32, mem: &dyn ReadMemory) -> Option<Vec<u8>> {
        self.phdrs.iter().find(|p| p.kind == kind).and_then(|p| self.small_part(p, mem))
    }

    /// Reads the path in `PT_INTERP`.
    pub fn interpreter(&self, mem: &dyn ReadMemory) -> Option<String> {
        let bytes = self.first_small_part(elf::PT_INTERP, mem)?;
        crate::bytes::c_str(&bytes, 0).map(str::to_owned)
    }

    /// Reads the dynamic section.
    pub fn dynamic(&self, mem: &dyn ReadMemory) -> Option<Dynamic> {
        let bytes = self.first_small_part(elf::PT_DYNAMIC, mem)?;
        Some(Dynamic::parse(&bytes, self.bias, self.extent))
    }

    /// Returns whether the module is linked as a program, not as a library.
    pub fn is_program(&self, mem: &dyn ReadMemory) -> bool {
        self.header.kind == ET_EXEC || self.dynamic(mem).is_some_and(|d| d.pie)
    }

    /// Returns the range of `PT_GNU_RELRO`, rounded as in glibc's `_dl_protect_relro`: only whole pages are
    /// protected.
    fn relro(&self) -> Option<AvmaRange> {
        let exact = self.part(elf::PT_GNU_RELRO)?;
        let r = AvmaRange::new(exact.start.align_down(PAGE), exact.end.align_down(PAGE));
        (!r.is_empty()).then_some(r)
    }

    /// Reads the rest of the module. Parts that cannot be read stay empty and are listed in
    /// [`Module::faults`].
    pub fn load(
        self,
        kind: ModuleKind,
        maps: &[Mapping],
        mem: &dyn ReadMemory,
        files: &dyn Files,
    ) -> Result<Module, Error> {
        let mut faults = Vec::new();
        let in_file = |p: &Phdr| self.in_file(p, mem);
        let build_id = identity::build_id(&self.phdrs, in_file);
        let derived = || identity::derived(&self.header, &self.phdrs, in_file);
        let derived_id = if build_id.is_none() { derived() } else { None };
        let has_dynamic = self.phdrs.iter().any(|p| p.kind == elf::PT_DYNAMIC);
        let dynamic = self.dynamic(mem);
        if has_dynamic && dynamic.is_none() {
            faults.push(self.bad("no readable dynamic section"));
        }
        let dynamic = dynamic.unwrap_or_default();
        let dynsyms = DynSyms::read(&dynamic, mem, self.extent);

        let file = files.open(self.first).and_then(|f| {
            let file = ModuleFile::verified(f, build_id.as_deref(), &self.phdrs);
            file.map_err(|e| faults.push(e)).ok()
        });
        let symbols = self.symbols(&dynsyms, file.as_ref(), &mut faults);

        let (eh_frame, frames) = self.frames(file.as_ref(), maps, mem, &mut faults)?;
        let relocations = self.relocations(&dynamic, file.as_ref().filter(|_| !has_dynamic), mem);
        let mut owned = relocs::Names::new(&dynsyms);
        let slots = relocs::jump_slots(&relocations, &mut owned);
        let plt = self.plt(&relocations, &mut owned, &frames, mem);

        let string = |offset: u64| dynsyms.string(offset).map(str::to_owned);
        let interpreter = self.interpreter(mem);
        Ok(Module {
            path: self.first.path.clone(),
            deleted: self.first.deleted,
            kind,
            pie: self.header.kind == ET_DYN,
            static_exe: kind == ModuleKind::Main && interpreter.is_none(),
            bias: self.bias,
            extent: self.extent,
            relro: self.relro(),
            entry: (self.header.entry != 0).then(|| self.bias.avma(Svma(self.header.entry))),
            build_id,
            derived_id,
            interpreter,
            eh_frame,
            eh_frame_hdr: self.part(elf::PT_GNU_EH_FRAME),
            frames,
            symbols,
            relocations,
            slots,
            plt,
            plt_got: dynamic.pltgot,
            soname: dynamic.soname.and_then(string),
            needed: dynamic.needed.iter().take(MAX_NEEDED).filter_map(|o| string(*o)).collect(),
            bind_now: dynamic.bind_now,
            nodelete: dynamic.nodelete,
            faults,
            dynsyms,
            segments: self.segments,
        })
    }

    /// Returns the bytes that the file has for a segment.
    fn in_file(&self, p: &Phdr, mem: &dyn ReadMemory) -> Option<Vec<u8>> {
        let range = self.place(&Phdr { memsz: p.filesz, ..*p })?;
        mem.bytes(range).ok()
    }

    /// Returns the symbols of the dynamic table and of the file.
    fn symbols(&self, dynsyms: &DynSyms, file: Option<&ModuleFile>, faults: &mut Vec<Error>) -> Symbols {
        let mut names = Builder::new(self.bias, self.extent);
        names.dynamic(dynsyms);
        if let Some(Err(e)) = file.map(|f| f.symbols(&mut names)) {
            faults.push(e);
        }
        names.finish()
    }

    /// Returns the relocations by rising address. `fixed` is the file of a module without a dynamic section.
    fn relocations(&self, dynamic: &Dynamic, fixed: Option<&ModuleFile>, mem: &dyn ReadMemory) -> Vec<Reloc> {
        let mut relocations = relocs::read(dynamic, mem, self.bias, self.extent);
        if let Some(file) = fixed {
            // A fixed static program has no dynamic section. Its start code finds these relocations by
            // symbols. Their addends are stated in the file, and the loader never changes them.
            relocs::rela(&file.data(".rela.plt"), self.bias, self.extent, &mut relocations);
            relocations.sort_by_key(|r| r.at);
        }
        relocations.shrink_to_fit();
        relocations
    }

    fn bad(&self, what: &'static str) -> Error {
        Error::BadElf { at: self.first.range.start, what }
    }

    /// Returns the range of `.eh_frame` and its contents.
    fn frames(
        &self,
        file: Option<&ModuleFile>,
        maps: &[Mapping],
        mem: &dyn ReadMemory,
        faults: &mut Vec<Error>,
    ) -> Result<(Option<AvmaRange>, FrameTable), Error> {
        let none = || FrameTable::parse(Vec::new(), self.extent.start, mem).map_err(Error::from);
        let hdr_at = self.part(elf::PT_GNU_EH_FRAME);
        let (start, listed) = match hdr_at.and_then(|r| frames::hdr(mem, r)) {
            Some(h) => (h.eh_frame, h.listed),
            None => {
                if hdr_at.is_some() {
                    faults.push(self.bad("an .eh_frame_hdr of unknown form"));
                }
                // A static program needs no header to find its own table, so only the section table shows its
                // place.
                let section = file.and_then(|f| f.section(".eh_frame"));
                match section {
                    Some(s) => (self.bias.avma(Svma(s.addr)), None),
                    None => return Ok((None, none()?)),
                }
            }
        };
        let Some(segment) = self.segments.iter().find(|s| s.file_backed.contains(start)) else {
            faults.push(self.bad("an .eh_frame outside the module"));
            return Ok((None, none()?));
        };
        let readable = maps::run_end(maps, start, |m| m.perms.r);
        let whole = AvmaRange::new(start, segment.file_backed.end.min(readable));
        let bytes = match mem.bytes(whole) {
            Ok(b) => b,
            Err(e) => {
                faults.push(e.into());
                return Ok((None, none()?));
            }
        };
        let table = match listed {
            Some(listed) => FrameTable::parse_listed(bytes, start, &listed, mem),
            None => FrameTable::parse(bytes, start, mem),
        };
        match table {
            Ok(table) => {
                if table.fdes().is_empty() && table.skipped() > 0 {
                    faults.push(self.bad("an .eh_frame in which nothing can be understood"));
                }
                Ok((Some(table.extent()), table))
            }
            Err(e) => {
                faults.push(e.into());
                Ok((None, none()?))
            }
        }
    }

    fn plt(
        &self,
        relocations: &[Reloc],
        names: &mut relocs::Names<'_>,
        frames: &FrameTable,
        mem: &dyn ReadMemory,
    ) -> Vec<plt::PltStub> {
        use relocs::RelocKind::{GlobDat, Irelative, JumpSlot};
        let slots: plt::Slots = relocations
            .iter()
            .filter(|r| matches!(r.kind, JumpSlot | GlobDat | Irelative(_)))
            .map(|r| (r.at, r.symbol))
            .collect();
        if slots.is_empty() {
            return Vec::new();
        }
        let mut out = Vec::new();
        for s in self.segments.iter().filter(|s| s.perms.x) {
            if let Ok(bytes) = mem.bytes(s.file_backed) {
                let fde = |a| frames.find(a).map(|f| f.range);
                out.extend(plt::stubs(&bytes, s.range.start, &slots, |n| names.of(n), fde));
            }
        }
        out
    }
}
