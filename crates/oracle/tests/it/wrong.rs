//! Wrong clones are found: a check that reports "no mismatch" must be able to report a mismatch.

use crate::support::{Guest, guests};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use emit::{AddressMap, Link};
use engine::Target;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use oracle::{Difference, Options, Report, Tamper, examine, examine_tampered};
use std::time::Duration;

fn options(max_functions: usize) -> Options {
    Options { max_functions, max_steps: 300, time: Duration::from_secs(20), seed: 5 }
}

fn run(tamper: Tamper<'_>, max_functions: usize) -> Report {
    let guest = Guest::start(&guests().join("varargs.c"), &[]);
    guest.shuffle(3);
    tampered(guest, tamper, max_functions)
}

/// Does the same with calls that are inlined or guarded.
fn run_inlining(tamper: Tamper<'_>) -> Report {
    let guest = Guest::start(&guests().join("inlining.cc"), &[]);
    guest.shuffle_counted(6);
    tampered(guest, tamper, 40)
}

/// A caller of functions with paths that can be inlined, in the guest of inlining, and two of these
/// functions.
const WAYS: [&str; 3] = ["_Z7by_waysR5Wordsm", "_Z2atP5Wordsm", "_Z10same_pointPK5PointS1_"];

/// Does the same with callees in which control leaves the inlined path.
fn run_ways(tamper: Tamper<'_>) -> Report {
    let guest = Guest::start(&guests().join("inlining.cc"), &[]);
    guest.shuffle_counted_only(6, &WAYS);
    tampered(guest, tamper, 40)
}

fn tampered(guest: Guest, tamper: Tamper<'_>, max_functions: usize) -> Report {
    let right = examine(guest.pid(), &options(5)).unwrap();
    assert!(right.mismatches.is_empty(), "{}", right.mismatches[0]);
    let wrong = examine_tampered(guest.pid(), &options(max_functions), tamper).unwrap();
    // Only twins were changed: the guest itself is right to its end.
    guest.finish();
    for m in &wrong.mismatches {
        eprintln!("{m}");
    }
    wrong
}

/// Returns the copies of original instructions up to the first branch, with their bytes.
fn first_block(map: &AddressMap, memory: &dyn ReadMemory) -> Vec<(Instruction, Vec<u8>)> {
    let first = map.fragments().ranges().next().unwrap();
    let bytes = memory.bytes(first).unwrap();
    let mut out = Vec::new();
    let in_first = |e: &&emit::Entry| e.link == Link::Copy && first.contains(map.fragments().address(e.at));
    for e in map.entries().iter().take_while(in_first) {
        let at = e.at as usize;
        let inst =
            Decoder::with_ip(64, &bytes[at..], first.start.0 + at as u64, DecoderOptions::NONE).decode();
        out.push((inst, bytes[at..at + inst.len()].to_vec()));
        if inst.flow_control() != FlowControl::Next {
            break;
        }
    }
    out
}

/// Returns the code for calls in a clone, without the first instruction of each, with the bytes.
fn within(map: &AddressMap, memory: &dyn ReadMemory) -> Vec<(Instruction, Vec<u8>)> {
    let within = map.entries().iter().filter(|e| e.link == Link::Within);
    within.map(|e| instruction(map.fragments().address(e.at), memory)).collect()
}

/// Returns the instruction at an address, with its bytes.
fn instruction(at: Avma, memory: &dyn ReadMemory) -> (Instruction, Vec<u8>) {
    let mut bytes = [0; 15];
    memory.read(at, &mut bytes).unwrap();
    let inst = Decoder::with_ip(64, &bytes, at.0, DecoderOptions::NONE).decode();
    (inst, bytes[..inst.len()].to_vec())
}

/// Returns all guards of a clone: the comparison and the branch.
fn guards(map: &AddressMap, memory: &dyn ReadMemory) -> Vec<(Instruction, Instruction)> {
    let follows = |w: &&[emit::Entry]| w[0].link == Link::Extra && w[1].link == Link::Within;
    let at = |e: &emit::Entry| instruction(map.fragments().address(e.at), memory).0;
    let pairs = map.entries().windows(2).filter(follows).map(|w| (at(&w[0]), at(&w[1])));
    pairs
        .filter(|(compare, branch)| compare.mnemonic() == Mnemonic::Cmp && branch.is_jcc_short_or_near())
        .collect()
}

fn says(report: &Report, what: &str) -> bool {
    report.mismatches.iter().any(|m| matches!(m.difference, Difference::Inline { what: w } if w == what))
}

#[test]
fn a_wrong_number_in_an_inlined_body_is_found() {
    // Changes the last byte of the number that is loaded.
    let change = |map: &AddressMap, memory: &dyn ReadMemory| {
        let loads = |i: &Instruction| i.mnemonic() == Mnemonic::Mov && i.op1_kind() == OpKind::Immediate32;
        let bodies = within(map, memory).into_iter().filter(|(i, _)| loads(i));
        bodies.map(|(i, b)| (Avma(i.ip() + b.len() as u64 - 1), vec![b[b.len() - 1] ^ 1])).collect()
    };
    let report = run_inlining(&change);
    assert!(
        report.mismatches.iter().any(|m| matches!(m.difference, Difference::Register { .. })),
        "{report}"
    );
}

/// Returns the calls of the rest of a callee.
fn rests(map: &AddressMap, memory: &dyn ReadMemory) -> Vec<Instruction> {
    let aside = map.entries().iter().enumerate().filter(|(i, _)| map.is_aside(*i));
    aside.map(|(_, e)| instruction(map.fragments().address(e.at), memory).0).collect()
}

#[test]
fn a_wrong_rest_of_a_callee_is_found() {
    // The destination is one byte further on.
    let other = |map: &AddressMap, memory: &dyn ReadMemory| {
        let displacement =
            |i: Instruction| (Avma(i.next_ip()), i.near_branch_target().wrapping_sub(i.next_ip()) + 1);
        let calls = rests(map, memory).into_iter().map(displacement);
        calls.map(|(next, d)| (next.sub(4), d.to_le_bytes()[..4].to_vec())).collect()
    };
    let report = run_ways(&other);
    assert!(says(&report, "the rest of the callee is not what is called"), "{report}");
}

#[test]
fn a_wrong_exit_from_an_inlined_path_is_found() {
    // The condition is inverted.
    let turn = |map: &AddressMap, memory: &dyn ReadMemory| {
        let exits = within(map, memory).into_iter().filter(|(i, _)| i.is_jcc_short_or_near());
        let guards: Vec<u64> = guards(map, memory).into_iter().map(|g| g.1.ip()).collect();
        let exits = exits.filter(|(i, _)| !guards.contains(&i.ip()));
        exits.map(|(i, b)| (Avma(i.ip() + 1), vec![b[1] ^ 1])).collect()
    };
    let report = run_ways(&turn);
    assert!(!report.mismatches.is_empty(), "{report}");
}

#[test]
fn a_guard_that_goes_the_wrong_way_is_found() {
    // `jne` becomes `je`.
    let turn = |map: &AddressMap, memory: &dyn ReadMemory| {
        let branches = guards(map, memory).into_iter().map(|g| g.1);
        branches.map(|i| (Avma(i.ip()), vec![0x0f, 0x84])).collect()
    };
    let report = run_inlining(&turn);
    assert!(says(&report, "the guard goes the wrong way"), "{report}");
}

#[test]
fn a_guard_with_a_wrong_table_is_found() {
    // The table's address plus 8: the call would lead elsewhere.
    let other = |map: &AddressMap, memory: &dyn ReadMemory| {
        let constants = guards(map, memory).into_iter().map(|g| Avma(g.0.ip_rel_memory_address()));
        constants.map(|at| (at, memory.u64(at).unwrap().wrapping_add(8).to_le_bytes().to_vec())).collect()
    };
    let report = run_inlining(&other);
    assert!(says(&report, "the table leads elsewhere than the call behind the guard"), "{report}");
}

#[test]
fn a_wrong_register_is_found() {
    // Changes the lowest bit of the number of the register operand in the first `op reg, reg`.
    let flip = |map: &AddressMap, memory: &dyn ReadMemory| {
        let block = first_block(map, memory);
        let found = block.iter().find(|(i, _)| {
            i.op_count() == 2 && i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Register
                // An instruction that clears a register changes nothing if the other register is clear too.
                && i.op0_register() != i.op1_register()
        });
        let wrong = found.map(|(i, bytes)| {
            let mut bytes = bytes.clone();
            *bytes.last_mut().unwrap() ^= 1;
            (Avma(i.ip()), bytes)
        });
        wrong.into_iter().collect()
    };
    let report = run(&flip, 12);
    let found = report.mismatches.iter().filter(|m| {
        matches!(
            m.difference,
            Difference::Register { .. } | Difference::Flags { .. } | Difference::Vectors { .. }
        )
    });
    assert!(found.count() > 0, "{report}");
}

#[test]
fn a_wrong_condition_is_found() {
    // The first branch of the clone goes the other way.
    let invert = |map: &AddressMap, memory: &dyn ReadMemory| {
        let block = first_block(map, memory);
        let last = block.last().filter(|(i, _)| i.is_jcc_short_or_near());
        let wrong = last.map(|(i, bytes)| {
            let mut bytes = bytes.clone();
            let opcode = usize::from(bytes[0] == 0x0f);
            bytes[opcode] ^= 1;
            (Avma(i.ip()), bytes)
        });
        wrong.into_iter().collect()
    };
    let report = run(&invert, 12);
    assert!(report.mismatches.iter().any(|m| m.difference == Difference::Path), "{report}");
}

#[test]
fn a_wrong_store_is_found() {
    // The first store that is not a push goes eight bytes further, or pushes another register.
    let shift = |map: &AddressMap, memory: &dyn ReadMemory| {
        let block = first_block(map, memory);
        let found = block
            .iter()
            .find(|(_, b)| matches!(b[..], [0x50..=0x57]) || matches!(b[..], [0x41, 0x50..=0x57]));
        let wrong = found.map(|(i, bytes)| {
            let mut bytes = bytes.clone();
            *bytes.last_mut().unwrap() ^= 1;
            (Avma(i.ip()), bytes)
        });
        wrong.into_iter().collect()
    };
    let report = run(&shift, 12);
    assert!(report.mismatches.iter().any(|m| matches!(m.difference, Difference::Memory { .. })), "{report}");
}

#[test]
fn wrong_frames_are_found() {
    let guest = Guest::start(&guests().join("varargs.c"), &[]);
    guest.shuffle(4);
    // The guest never unwinds, so its tables can be wrong without harm: each frame of 16 bytes gets 24.
    let target = Target::open(guest.pid()).unwrap();
    for cache in &target.installed.as_ref().unwrap().caches {
        // The frames lie behind the index of `.eh_frame_hdr`. The index has a head of 12 bytes, whose last
        // word counts the entries of 8 bytes.
        let index = cache.header.eh_frame_hdr;
        let mut entries = [0; 4];
        target.process.read(index.add(8), &mut entries).unwrap();
        let frames = index.add(12 + 8 * u64::from(u32::from_le_bytes(entries)));
        let tables = AvmaRange::new(frames, cache.header.records.start);
        let mut bytes = target.process.bytes(tables).unwrap();
        for i in 0..bytes.len() - 1 {
            if bytes[i..i + 2] == [0x0e, 16] {
                bytes[i + 1] = 24;
            }
        }
        target.process.write(tables.start, &bytes).unwrap();
    }
    let report = examine(guest.pid(), &options(12)).unwrap();
    guest.finish();
    assert!(report.mismatches.iter().any(|m| matches!(m.difference, Difference::Frames { .. })), "{report}");
}
