//! The final test: libgcc and libstdc++ unwind a program that has only the tables written here.

use crate::common::Elf;
use addr::{Addr, Avma};
use std::path::Path;
use std::process::{Command, Output};
use unwind::{CloneFrame, FrameTable, Lsda, write_frames};

/// The address at which the guest maps its tables: free in a program linked to a fixed address, and near the
/// program.
const AT: Avma = Avma(0x2000_0000);
/// Space for the frame tables in front of the exception tables, in bytes.
const ROOM: usize = 1 << 16;

fn build(dir: &Path, flags: &[&str]) -> Option<String> {
    let out = dir.join("throws");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guests/throws.cc");
    let always = ["-std=c++14", "-w", "-no-pie", "-fno-pie", "-Wl,--no-eh-frame-hdr", source];
    testkit::build("g++", always.iter().chain(flags), &out).then(|| out.to_str().unwrap().to_owned())
}

/// Writes tables for the originals as if they were their own clones: everything but the code is like that of
/// clones.
fn tables(elf: &Elf) -> Vec<u8> {
    let table = FrameTable::parse(elf.from(elf.eh_frame_at).unwrap().to_vec(), elf.eh_frame_at, elf).unwrap();
    assert_eq!(table.skipped(), 0);
    let mut blob = vec![0; ROOM];
    let mut frames = Vec::new();
    for fde in table.fdes() {
        let lsda = fde.lsda.map(|at| {
            let here = AT.add(blob.len() as u64);
            let lsda = Lsda::parse(elf, at, fde.range).unwrap();
            blob.extend(lsda.write(fde.range.start).unwrap());
            here
        });
        frames.push(CloneFrame {
            range: fde.range,
            rows: table.rows(fde).unwrap(),
            personality: fde.personality,
            lsda,
            signal_frame: fde.signal_frame,
        });
    }
    let written = write_frames(&frames, AT, AT.add(0x8000_0000 / 4)).unwrap().eh_frame;
    blob[..written.len()].copy_from_slice(&written);
    blob
}

fn check(flags: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let Some(guest) = build(dir.path(), flags) else { return };
    let run = |args: &[&str]| -> Output { Command::new(&guest).args(args).output().unwrap() };
    // The control: without these tables, the guest has none.
    assert_eq!(run(&[]).status.code(), None, "the guest should abort without tables");

    let blob = dir.path().join("tables");
    std::fs::write(&blob, tables(&Elf::load(&guest).unwrap())).unwrap();
    let output = run(&[blob.to_str().unwrap(), &format!("{AT}")]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text,
        "~middle ~aligned int 7 543211~middle ~aligned int 7 \n\
         ~middle ~aligned exception seven 543212~middle ~aligned exception seven \n\
         ~middle ~aligned string a string 543213~middle ~aligned string a string \n\
         ~middle ~aligned odd 9\n\
         ~middle ~aligned other\n\
         got 7; unexpected got 5; got a string; unexpected got 5; unexpected got 5; \n\
         terminated\n",
        "{flags:?}"
    );
    assert_eq!(output.status.code(), Some(42));
}

#[test]
fn libgcc_unwinds_by_our_tables() {
    check(&["-O2"]);
    check(&["-O0"]);
    check(&["-O2", "-mpush-args", "-mno-accumulate-outgoing-args", "-fomit-frame-pointer"]);
}
