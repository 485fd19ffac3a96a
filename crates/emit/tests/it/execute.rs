//! Clones that run: a program whose functions are all cloned in random orders prints the same as before.
//!
//! The program's file is rewritten. A new segment holds text and data of the clones. Each original's entry
//! gets a jump to its clone. The unwind index is replaced by an index of both. So every part of an output is
//! used.

use crate::common::Rng;
use crate::common::program::{Program, Source};
use addr::{Addr, Avma, ReadMemory};
use code::{BlockId, Cfg, Dest, SiteForm};
use emit::{Body, Function, InlineSite, Output};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSegment, elf};
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Returns a random path through a function that can be inlined.
fn way(f: &Source, rng: &mut Rng) -> Option<Vec<BlockId>> {
    let mut path = vec![BlockId(0)];
    for _ in 0..8 {
        if emit::can_inline(Body { cfg: &f.cfg, path: &path, lsda: f.lsda.as_ref() }) {
            return Some(path);
        }
        let mut next = Vec::new();
        f.cfg.successors(*path.last()?, |dest| {
            next.extend(if let Dest::Block(b) = dest { Some(b) } else { None });
        });
        path.push(*next.get(rng.below(next.len().max(1)))?);
    }
    None
}

/// Returns inline sites for all calls of a function that can be inlined.
fn inline_sites<'a>(cfg: &Cfg, ways: &'a HashMap<Avma, (&'a Source, Vec<BlockId>)>) -> Vec<InlineSite<'a>> {
    let calls = cfg.numbered_insts().filter(|(_, i)| i.decoded.is_call_near());
    calls
        .filter_map(|(call, i)| {
            let callee = Avma(i.decoded.near_branch_target());
            let (f, path) = ways.get(&callee)?;
            let body = Body { cfg: &f.cfg, path, lsda: f.lsda.as_ref() };
            Some(InlineSite { call, callee, body: Some(body), guard: None })
        })
        .collect()
}

fn guest(compiler: &str, flags: &[&str], seeds: u64) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("guest");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/everything.cc");
    // Position-dependent: the clones' tables hold absolute addresses, which are final only in such programs.
    let always = ["-std=c++17", "-no-pie", "-static-libstdc++", "-static-libgcc", source.to_str().unwrap()];
    if !testkit::build(compiler, always.iter().chain(flags), &program) {
        return;
    }
    let run = |path: &Path| {
        // A file that was just written may still be open in a child process that another test is about to
        // start.
        let out = loop {
            match Command::new(path).output() {
                Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                out => break out.unwrap(),
            }
        };
        (
            out.status,
            String::from_utf8_lossy(&out.stdout).into_owned(),
            String::from_utf8_lossy(&out.stderr).into_owned(),
        )
    };
    let wanted = run(&program);
    assert!(wanted.0.code().is_some(), "{wanted:?}");
    let p = Program::load(&program);
    for seed in 0..seeds {
        let mut rng = Rng(seed);
        let keep = [8, 3, 6];
        let ways: HashMap<Avma, (&Source, Vec<BlockId>)> =
            p.functions.iter().filter_map(|f| Some((f.cfg.entry, (f, way(f, &mut rng)?)))).collect();
        let mut functions: Vec<Function<'_>> = p
            .functions
            .iter()
            .map(|f| f.shuffled(&mut rng, keep[usize::try_from(seed).unwrap() % keep.len()]))
            .collect();
        for f in functions.iter_mut().filter(|_| seed != 1) {
            f.inline_sites = inline_sites(f.cfg, &ways);
        }
        let (text_at, data_at) = (p.end, p.end.add(0x200_0000));
        // The program's threads have no GS base, so a counter's offset is its address.
        let counters_at = data_at.add(0x200_0000);
        let mut counters_end = u32::try_from(counters_at.0).unwrap();
        for f in functions.iter_mut().filter(|_| seed > 0) {
            f.counters = crate::common::counters(f.cfg, &mut rng, &mut counters_end);
        }
        let out = emit::emit(&crate::common::request(text_at, data_at, functions)).unwrap();
        let (bytes, redirected) =
            rewrite(&std::fs::read(&program).unwrap(), &p, &out, text_at, data_at, counters_end);
        let clone = dir.path().join(format!("clone{seed}"));
        std::fs::write(&clone, bytes).unwrap();
        std::fs::set_permissions(&clone, std::fs::Permissions::from_mode(0o755)).unwrap();
        eprintln!(
            "{compiler} {flags:?} {seed}: {} clones, {redirected} entered, {:?}",
            out.clones.len(),
            out.stats
        );
        assert!(redirected * 3 > out.clones.len());
        assert!(seed == 1 || out.stats.inlined > 10, "{:?}", out.stats);
        // Only functions without counters are unrolled.
        assert!(seed > 0 || out.stats.unrolled > 0, "{:?}", out.stats);
        assert_eq!(run(&clone), wanted, "{compiler} {flags:?} seed {seed}");
    }
}

/// Returns the program's file with clones, and the number of redirected entries.
fn rewrite(
    file: &[u8],
    p: &Program,
    out: &Output,
    text_at: Avma,
    data_at: Avma,
    counters_end: u32,
) -> (Vec<u8>, usize) {
    let elf = ElfFile64::<object::LittleEndian>::parse(file).unwrap();
    let place = |at: Avma| {
        let s =
            elf.segments().find(|s| s.address() <= at.0 && at.0 < s.address() + s.file_range().1).unwrap();
        usize::try_from(at.0 - s.address() + s.file_range().0).unwrap()
    };
    let mut new = file.to_vec();
    // The words that redirects jump through lie behind the data.
    let mut data = out.data.clone();
    data.resize(data.len().next_multiple_of(8), 0);
    let mut redirected = 0;
    for clone in &out.clones {
        let f = p.functions.iter().find(|f| f.cfg.entry == clone.original).unwrap();
        let led: Vec<_> =
            f.sites.iter().filter_map(|s| Some((s, clone.entrance(f.at(s.leads_to))?))).collect();
        for (site, to) in &led {
            let dest = match site.form {
                SiteForm::IndirectJump => {
                    data.extend(to.0.to_le_bytes());
                    data_at.add(data.len() as u64 - 8)
                }
                _ => *to,
            };
            let bytes = emit::redirect(site.form, site.range.end, dest).unwrap();
            new[place(site.range.start)..][..bytes.len()].copy_from_slice(&bytes);
        }
        if led.is_empty() {
            continue;
        }
        redirected += 1;
    }

    // The new segment: text, data, and the index of all frames.
    let mut segment = out.text.clone();
    segment.resize(usize::try_from(data_at.0 - text_at.0).unwrap(), 0);
    segment.extend(&data);
    segment.resize(segment.len().next_multiple_of(8), 0);
    let index_at = text_at.add(segment.len() as u64);
    let offset =
        |e: &elf::ProgramHeader64<object::LittleEndian>, kind| e.p_type.get(object::LittleEndian) == kind;
    let headers = elf.elf_program_headers();
    let hdr = headers.iter().position(|h| offset(h, elf::PT_GNU_EH_FRAME)).unwrap();
    let hdr_at = Avma(headers[hdr].p_vaddr.get(object::LittleEndian));
    let mut index = entries(p, hdr_at);
    index.extend(entries(&(data_at, &out.data[..]), out.eh_frame_hdr));
    index.sort_unstable();
    let rel = |to: u64| i32::try_from(to.cast_signed() - index_at.0.cast_signed()).unwrap().to_le_bytes();
    segment.extend([1, 0x1b, 0x03, 0x3b]);
    // To the original's table; unwinders do not read it while there is an index.
    segment.extend((i32::from_le_bytes(rel(hdr_at.0)) - 4).to_le_bytes());
    segment.extend(u32::try_from(index.len()).unwrap().to_le_bytes());
    for (code, fde) in &index {
        segment.extend([rel(*code), rel(*fde)].concat());
    }
    let at_file = new.len().next_multiple_of(4096);
    new.resize(at_file, 0);
    new.extend(&segment);

    let mut header =
        |n: usize, kind: elf::ProgramType, flags: elf::ProgramFlags, file_at: u64, at: u64, len: u64| {
            let start = usize::try_from(elf.elf_header().e_phoff.get(object::LittleEndian)).unwrap() + n * 56;
            // Counters lie behind the bytes of the file.
            let whole = if kind == elf::PT_LOAD { u64::from(counters_end) - at } else { len };
            let words = [file_at, at, at, len, whole, 4096];
            let bytes: Vec<u8> = [kind.0, flags.0]
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .chain(words.iter().flat_map(|v| v.to_le_bytes()))
                .collect();
            new[start..start + 56].copy_from_slice(&bytes);
        };
    let note = headers.iter().position(|h| offset(h, elf::PT_NOTE)).unwrap();
    header(
        note,
        elf::PT_LOAD,
        elf::PF_R | elf::PF_W | elf::PF_X,
        at_file as u64,
        text_at.0,
        segment.len() as u64,
    );
    let index_len = 12 + 8 * index.len() as u64;
    let index_file = at_file as u64 + (index_at.0 - text_at.0);
    header(hdr, elf::PT_GNU_EH_FRAME, elf::PF_R, index_file, index_at.0, index_len);
    (new, redirected)
}

/// Returns the entries of an `.eh_frame_hdr` as addresses of code and its FDE.
fn entries(mem: &dyn ReadMemory, hdr: Avma) -> Vec<(u64, u64)> {
    assert_eq!(mem.u32(hdr).unwrap(), u32::from_le_bytes([1, 0x1b, 0x03, 0x3b]));
    let n = u64::from(mem.u32(hdr.add(8)).unwrap());
    let word = |at: u64| hdr.offset(i64::from(mem.u32(hdr.add(at)).unwrap().cast_signed())).0;
    (0..n).map(|i| (word(12 + 8 * i), word(16 + 8 * i))).collect()
}

#[test]
fn gcc_optimized() {
    guest("g++", &["-O2", "-fno-pie"], 2);
}

#[test]
fn gcc_small_and_position_independent() {
    guest("g++", &["-Os", "-fPIE"], 3);
}

#[test]
fn gcc_plain() {
    guest("g++", &["-O0", "-fno-pie", "-fnon-call-exceptions"], 2);
}

#[test]
fn clang_optimized() {
    guest("clang++", &["-O2", "-fPIE"], 3);
}
