//! A real file laid out in memory, with changed bytes: no change causes a panic or an endless loop.

use crate::common::{Disk, Laid};
use addr::{Addr, Avma, AvmaRange, ReadMemory, Unreadable};
use image::{FileParts, Files, Image, Mapping, NoFiles, runtime};
use std::time::{Duration, Instant};

/// Memory with some bytes replaced.
struct Changed<'a> {
    laid: &'a Laid,
    bytes: Vec<(Avma, Vec<u8>)>,
}

impl ReadMemory for Changed<'_> {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        self.laid.read(at, buf)?;
        for (from, bytes) in &self.bytes {
            for (i, b) in (0u64..).zip(bytes) {
                let place = from.add(i).since(at).and_then(|o| usize::try_from(o).ok());
                if let Some(slot) = place.and_then(|o| buf.get_mut(o)) {
                    *slot = *b;
                }
            }
        }
        Ok(())
    }
}

/// Calls every function that computes something from a loaded image.
fn walk(image: &Image, mem: &dyn ReadMemory) {
    let _ = runtime::detect(image, mem);
    for m in image.modules() {
        let _ = image.exec_ranges(m);
        let _ = m.ifuncs().count();
        for r in m.relocations.iter().take(2000) {
            let _ = (m.symbol_of(r), m.relocation_at(r.at), m.stub_at(r.at), m.segment_of(r.at));
            let _ = image.is_readonly_data(AvmaRange::with_len(r.at, 8));
        }
        for s in m.symbols.iter().take(2000) {
            let _ = (m.symbols.name_at(s.at), m.symbols.exported(s.name), m.frames.find(s.at));
        }
    }
}

/// Returns ranges in which a change has an effect: headers, the heads of tables, the dynamic section; also
/// the whole module.
fn sore_spots(laid: &Laid) -> Vec<AvmaRange> {
    let image = Image::load(&laid.maps, laid, &Disk, &laid.hint()).unwrap();
    let m = image.main();
    let start = m.extent.start;
    let mut out = vec![AvmaRange::with_len(start, 64), AvmaRange::with_len(start.add(64), 0x2f0)];
    out.push(AvmaRange::with_len(start.add(0x300), 0x800));
    out.extend(m.eh_frame_hdr.map(|r| AvmaRange::with_len(r.start, 32)));
    out.extend(m.eh_frame.map(|r| AvmaRange::with_len(r.start, r.len().min(600))));
    out.extend(m.relro.map(|r| AvmaRange::with_len(r.end.sub(0x400), 0x400)));
    out.extend(m.relro);
    out.push(m.extent);
    out
}

fn mutate(path: &str, base: u64) {
    let laid = Laid::new(path, base);
    let spots = sore_spots(&laid);
    arbtest::arbtest(|u| {
        let mut mem = Changed { laid: &laid, bytes: Vec::new() };
        for _ in 0..u.int_in_range(1..=6)? {
            let spot = *u.choose(&spots)?;
            let mut at = spot.start.add(u.int_in_range(0..=spot.len() - 1)?);
            let bytes = match u.int_in_range(0..=3u8)? {
                0 => vec![u.arbitrary()?],
                1 => vec![*u.choose(&[0u8, 0xff, 1, 0x7f, 0x80])?; u.int_in_range(1..=8usize)?],
                _ => {
                    // A word that is nearly right: a small number, an address, a distance.
                    at = at.align_down(8);
                    let old = laid.u64(at).unwrap_or(0);
                    let word = match u.int_in_range(0..=4u8)? {
                        0 => u.int_in_range(0..=0x400u64)?,
                        1 => old.wrapping_add(u.int_in_range(0..=64u64)?),
                        2 => old.wrapping_sub(u.int_in_range(0..=64u64)?),
                        3 => old << u.int_in_range(0..=40u32)?,
                        _ => base.wrapping_add(u.int_in_range(0..=0x4_0000u64)?),
                    };
                    word.to_le_bytes().to_vec()
                }
            };
            mem.bytes.push((at, bytes));
        }
        let started = Instant::now();
        if let Ok(image) = Image::load(&laid.maps, &mem, &NoFiles, &laid.hint()) {
            walk(&image, &mem);
        }
        assert!(started.elapsed() < Duration::from_secs(3), "{:x?}", mem.bytes);
        Ok(())
    })
    .budget(Duration::from_secs(1));
}

#[test]
fn a_program() {
    mutate("/bin/ls", 0x5555_5555_0000);
}

#[test]
fn a_library() {
    mutate("/lib/x86_64-linux-gnu/libpthread.so.0", 0x7fff_0000_0000);
    mutate("/lib64/ld-linux-x86-64.so.2", 0x7fff_0000_0000);
}

#[test]
fn its_file() {
    // The memory is sound. The file is damaged, though not in its build-id, and sometimes cut off.
    struct Damaged(Vec<u8>);
    impl Files for Damaged {
        fn open(&self, _: &Mapping) -> Option<Box<dyn FileParts>> {
            Some(Box::new(self.0.clone()))
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let exe = crate::common::compile(dir.path(), "small", "int main(void) { return 0; }", &[]);
    let good = std::fs::read(&exe).unwrap();
    let laid = Laid::new(exe.to_str().unwrap(), 0x5555_5555_0000);
    let tail = good.len() - 0x1c00;
    arbtest::arbtest(|u| {
        let mut bytes = good.clone();
        for _ in 0..u.int_in_range(1..=8)? {
            let i = if u.arbitrary()? {
                u.int_in_range(0..=63usize)?
            } else {
                u.int_in_range(tail..=good.len() - 1)?
            };
            bytes[i] = u.arbitrary()?;
        }
        if u.ratio(1, 4)? {
            bytes.truncate(u.choose_index(good.len())?);
        }
        let image = Image::load(&laid.maps, &laid, &Damaged(bytes), &laid.hint()).unwrap();
        walk(&image, &laid);
        Ok(())
    })
    .budget(Duration::from_secs(1));
}
