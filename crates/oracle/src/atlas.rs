//! The address maps of clones, the bytes under redirects, and the frame tables of clones and originals.

use crate::Error;
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use emit::{AddressMap, Entry, Link};
use engine::Target;
use image::{Image, Mapping, ModuleKind};
use rustc_hash::FxHashMap;
use splice::State;
use std::cell::RefCell;
use std::rc::Rc;
use unwind::{FrameTable, Row};

/// `endbr64`: marks an instruction to which indirect branches may lead.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// One clone.
#[derive(Debug)]
pub(crate) struct Clone {
    /// The original's entry.
    pub(crate) original: Avma,
    /// The address that every entry passes: the first instruction, or the one behind it if the first is
    /// `endbr64`.
    pub(crate) entered: Avma,
    pub(crate) map: AddressMap,
    /// True if the clone belongs to the newest generation. While clones that count are in force, true for
    /// these instead.
    pub(crate) newest: bool,
}

/// The bytes that a redirect replaced.
#[derive(Debug)]
pub(crate) struct Old {
    pub(crate) at: Avma,
    pub(crate) bytes: Vec<u8>,
}

/// Rows already read, by the index of the frame table and the offset of the entry in it.
type Rows = FxHashMap<(usize, u64), Rc<[Row]>>;

#[derive(Debug)]
pub(crate) struct Atlas {
    /// By rising start address.
    clones: Vec<Clone>,
    /// Fragments of all clones, by rising address, each with the index of its clone in `clones`.
    fragments: Vec<(AvmaRange, usize)>,
    /// Bytes under redirects in code, by rising address.
    olds: Vec<Old>,
    /// Bytes under redirects in data.
    data_olds: Vec<Old>,
    /// The frame tables of clones, each with the text of its code cache.
    caches: Vec<(AvmaRange, FrameTable)>,
    image: Image,
    rows: RefCell<Rows>,
}

impl Atlas {
    /// Reads clones, redirects and frame tables from the target.
    pub(crate) fn read(target: &Target) -> Result<Self, Error> {
        let installed = target.installed.as_ref().ok_or(Error::NoClones)?;
        let image = target.image()?;
        let generation = installed.generation();
        let counting = installed.is_counting();
        let mut atlas = Self {
            clones: Vec::new(),
            fragments: Vec::new(),
            olds: Vec::new(),
            data_olds: Vec::new(),
            caches: Vec::new(),
            image,
            rows: RefCell::default(),
        };
        for cache in &installed.caches {
            let header = &cache.header;
            let maps = engine::read_maps(&target.process.bytes(header.map)?);
            let newest = match counting {
                true => header.counting && header.state != State::Undone,
                false => !header.counting && header.generation == generation,
            };
            for (original, map) in maps {
                let start = map.fragments().start();
                let marked = target.process.bytes(AvmaRange::with_len(start, 4))? == ENDBR64;
                let entered = start.add(if marked { ENDBR64.len() as u64 } else { 0 });
                atlas.clones.push(Clone { original, entered, map, newest });
            }
            let olds = cache.records.iter().map(|r| Old { at: r.at, bytes: r.old_bytes().to_vec() });
            let (code, data): (Vec<Old>, Vec<Old>) = olds.partition(|o| is_code(&target.maps, o.at));
            atlas.olds.extend(code);
            atlas.data_olds.extend(data);
            let table = clone_frames(&target.process, header.eh_frame_hdr, header.data)?;
            atlas.caches.push((header.text, table));
        }
        if atlas.clones.is_empty() {
            return Err(Error::NoClones);
        }
        atlas.clones.sort_by_key(|c| c.map.fragments().start());
        let of = |(i, c): (usize, &Clone)| c.map.fragments().ranges().map(|r| (r, i)).collect::<Vec<_>>();
        atlas.fragments = atlas.clones.iter().enumerate().flat_map(of).collect();
        atlas.fragments.sort_unstable();
        atlas.olds.sort_by_key(|o| o.at);
        Ok(atlas)
    }

    pub(crate) fn clones(&self) -> &[Clone] {
        &self.clones
    }

    /// Returns the clone with code at `pc`.
    pub(crate) fn clone_of(&self, pc: Avma) -> Option<&Clone> {
        let after = self.fragments.partition_point(|(range, _)| range.start <= pc);
        let (range, clone) = self.fragments.get(after.checked_sub(1)?)?;
        self.clones.get(*clone).filter(|_| range.contains(pc))
    }

    /// Returns the clone of the function that is entered at `pc`, either at the clone or at the original.
    pub(crate) fn entered_at(&self, pc: Avma) -> Option<&Clone> {
        let here = self.clone_of(pc).filter(|c| c.entered == pc);
        here.or_else(|| self.clones.iter().find(|c| c.newest && c.original == pc))
    }

    /// Returns the clone instruction at `pc`, with its clone. Returns `None` for originals and inside
    /// instructions.
    pub(crate) fn entry_of(&self, pc: Avma) -> Option<(&Clone, Entry)> {
        let clone = self.clone_of(pc)?;
        // Of several entries at one address, the last has the bytes.
        clone.map.entries_at(pc).last().map(|entry| (clone, *entry))
    }

    /// Returns whether a thread at `b` in the clones' world is where a thread at `a` in the originals' world
    /// is.
    pub(crate) fn stands_for(&self, b: Avma, a: Avma) -> bool {
        match self.clone_of(b) {
            Some(c) => c.map.to_original(b) == Some(a) || c.map.to_clone(a) == Some(b),
            None => a == b,
        }
    }

    /// Returns whether the original instruction at `a` was dropped, with `b` in its place: a jump, or a call
    /// whose callee is inlined.
    pub(crate) fn is_dropped(&self, a: Avma, b: Avma) -> bool {
        let dropped = |e: &Entry| e.link == Link::Dropped && e.original == a;
        self.clone_of(b).is_some_and(|c| c.map.entries_at(b).iter().any(dropped))
    }

    /// Returns whether the clone instruction at `b` is part of the code for the call at `a`, but not its
    /// first instruction.
    pub(crate) fn is_within(&self, b: Avma, a: Avma) -> bool {
        self.entry_of(b).is_some_and(|(_, e)| e.link == Link::Within && e.original == a)
    }

    /// Returns whether the clone instruction at `b` is a copy of the original instruction at `a`.
    pub(crate) fn is_copy(&self, b: Avma, a: Avma) -> bool {
        self.entry_of(b).is_some_and(|(_, e)| matches!(e.link, Link::Copy | Link::Again) && e.original == a)
    }

    /// Returns whether a function of the originals begins at `a`.
    pub(crate) fn is_entry(&self, a: Avma) -> bool {
        let begins = |f: &FrameTable| f.find(a).is_some_and(|fde| fde.range.start == a);
        self.image.modules().iter().any(|m| begins(&m.frames))
    }

    /// Returns whether `a` is a function's first instruction, an `endbr64`, and `b` is behind the `endbr64`
    /// of its clone. Direct branches lead there.
    pub(crate) fn is_behind_mark(&self, a: Avma, b: Avma) -> bool {
        let behind = |c: &Clone| c.original == a && c.entered == b && c.map.fragments().start() != b;
        self.clone_of(b).is_some_and(behind)
    }

    /// Returns whether `a` in the originals' world is in a stub of the procedure linkage table that the
    /// clones' side, at `b`, has bypassed. Clones call through the slot.
    pub(crate) fn is_passed_by(&self, a: Avma, b: Avma) -> bool {
        let stub = self.image.module_of(a).and_then(|m| {
            let after = m.plt.partition_point(|p| p.range.start <= a);
            m.plt.get(after.checked_sub(1)?).filter(|p| p.range.contains(a))
        });
        stub.is_some_and(|p| !p.range.contains(b))
    }

    /// Returns whether only the clone has the instruction at `b`.
    pub(crate) fn is_extra(&self, b: Avma) -> bool {
        self.entry_of(b).is_some_and(|(_, e)| e.link == Link::Extra)
    }

    /// Returns whether two words are equal, or are the two sides' forms of one code address.
    pub(crate) fn same(&self, a: u64, b: u64) -> bool {
        a == b || self.clone_of(Avma(b)).is_some() && self.stands_for(Avma(b), Avma(a))
    }

    /// Returns the bytes of data that redirects replaced.
    pub(crate) fn data_olds(&self) -> &[Old] {
        &self.data_olds
    }

    /// Returns the bytes that redirects replaced, for all redirects of code that may reach into `range`.
    pub(crate) fn olds_in(&self, range: AvmaRange) -> &[Old] {
        // No redirect has more than eight bytes.
        let from = self.olds.partition_point(|o| o.at.add(8) <= range.start);
        let to = self.olds.partition_point(|o| o.at < range.end);
        self.olds.get(from..to).unwrap_or_default()
    }

    /// Returns whether `pc` is in the vDSO, the kernel's code that reads clocks.
    pub(crate) fn in_vdso(&self, pc: Avma) -> bool {
        self.image.module_of(pc).is_some_and(|m| m.kind == ModuleKind::Vdso)
    }

    /// Returns the unwind rule at an original instruction.
    pub(crate) fn row_of_original(&self, pc: Avma) -> Option<Row> {
        let modules = self.image.modules();
        let module = modules.iter().position(|m| m.frames.find(pc).is_some())?;
        self.row(self.caches.len() + module, &modules.get(module)?.frames, pc)
    }

    /// Returns the unwind rule at a clone instruction, by the table in the target.
    pub(crate) fn row_of_clone(&self, pc: Avma) -> Option<Row> {
        let cache = self.caches.iter().position(|(text, _)| text.contains(pc))?;
        self.row(cache, &self.caches.get(cache)?.1, pc)
    }

    fn row(&self, table: usize, frames: &FrameTable, pc: Avma) -> Option<Row> {
        let fde = frames.find(pc)?;
        let mut known = self.rows.borrow_mut();
        let rows = match known.get(&(table, fde.offset)) {
            Some(rows) => Rc::clone(rows),
            None => {
                let rows: Rc<[Row]> = frames.rows(fde).unwrap_or_default().into();
                known.insert((table, fde.offset), Rc::clone(&rows));
                rows
            }
        };
        let after = rows.partition_point(|r| r.range.start <= pc);
        rows.get(after.checked_sub(1)?).filter(|r| r.range.contains(pc)).cloned()
    }

    /// Returns a name for messages: the symbol, or the module's file name and the SVMA.
    pub(crate) fn name(&self, pc: Avma) -> String {
        let at = self.entry_of(pc).map_or(pc, |(_, e)| e.original);
        let Some(module) = self.image.module_of(at) else { return at.to_string() };
        match module.symbols.name_at(at) {
            Some(name) => name.to_owned(),
            None => format!("{}+{:#x}", module.file_name().unwrap_or("?"), module.bias.svma(at).0),
        }
    }
}

fn is_code(maps: &[Mapping], at: Avma) -> bool {
    maps.iter().any(|m| m.perms.x && m.range.contains(at))
}

/// Reads the frame table to which a `.eh_frame_hdr` leads. Checks it against the index, by which the unwinder
/// finds frames.
fn clone_frames(mem: &dyn ReadMemory, hdr: Avma, data: AvmaRange) -> Result<FrameTable, Error> {
    let bad = |what| Error::Index { at: hdr, what };
    let signed = |v: u32| i64::from(v.cast_signed());
    // Version 1. The encodings are those that `unwind` writes: pc-relative 4 bytes, unsigned 4 bytes, and
    // section-relative 4 bytes.
    if mem.u32(hdr)? != 0x3b03_1b01 {
        return Err(bad("an unknown form"));
    }
    let eh_frame = hdr.add(4).offset(signed(mem.u32(hdr.add(4))?));
    let count = mem.u32(hdr.add(8))?;
    let table = FrameTable::parse(mem.bytes(AvmaRange::new(eh_frame, data.end))?, eh_frame, mem)?;
    if table.fdes().len() as u64 != u64::from(count) || table.skipped() != 0 || table.overlaps() != 0 {
        return Err(bad("not one entry for each frame"));
    }
    let index = mem.bytes(AvmaRange::with_len(hdr.add(12), u64::from(count) * 8))?;
    for (fde, entry) in table.fdes().iter().zip(index.as_chunks::<8>().0) {
        let [a, b, c, d, e, f, g, h] = *entry;
        let at = |bytes| hdr.offset(signed(u32::from_le_bytes(bytes)));
        if at([a, b, c, d]) != fde.range.start || at([e, f, g, h]) != eh_frame.add(fde.offset) {
            return Err(bad("an entry leads elsewhere"));
        }
    }
    Ok(table)
}
