//! Builds a graph from the bytes of a function without jump tables: enough for functions made by hand.

use addr::{Avma, AvmaRange};
use code::{Block, BlockId, Cfg, Dest, Inst, InstBytes, Term};
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use std::collections::BTreeSet;

pub fn graph(entry: u64, bytes: &[u8]) -> Cfg {
    let end = entry + bytes.len() as u64;
    let mut insts = Vec::new();
    let mut leaders = BTreeSet::from([entry]);
    let mut d = Decoder::with_ip(64, bytes, entry, DecoderOptions::NONE);
    while d.can_decode() {
        let i = d.decode();
        assert!(!i.is_invalid(), "at {:#x}", i.ip());
        let from = usize::try_from(i.ip() - entry).unwrap();
        let bytes = InstBytes::new(&bytes[from..from + i.len()]).unwrap();
        insts.push(Inst { at: Avma(i.ip()), decoded: i, bytes });
        match i.flow_control() {
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                leaders.extend([i.near_branch_target(), i.next_ip()]);
            }
            FlowControl::Return
            | FlowControl::IndirectBranch
            | FlowControl::Exception
            | FlowControl::Interrupt => {
                leaders.insert(i.next_ip());
            }
            _ => {}
        }
    }
    leaders.retain(|&l| l >= entry && l < end);
    let starts: Vec<u64> = leaders.into_iter().collect();
    let dest = |at: u64| match starts.binary_search(&at) {
        Ok(i) => Dest::Block(BlockId(u32::try_from(i).unwrap())),
        Err(_) => Dest::Outside(Avma(at)),
    };
    let blocks = starts.iter().enumerate().map(|(n, &start)| {
        let stop = starts.get(n + 1).copied().unwrap_or(end);
        let at = |a: u64| u32::try_from(insts.partition_point(|i| i.at.0 < a)).unwrap();
        let last = &insts[at(stop) as usize - 1].decoded;
        let (taken, fall) = (dest(last.near_branch_target()), dest(last.next_ip()));
        let term = match last.flow_control() {
            FlowControl::UnconditionalBranch => Term::Jump { to: taken },
            FlowControl::ConditionalBranch if last.is_jcc_short_or_near() => {
                Term::Cond { cc: last.condition_code(), taken, fall }
            }
            FlowControl::ConditionalBranch => Term::CondShort { taken, fall },
            FlowControl::Return => Term::Return,
            FlowControl::IndirectBranch => Term::Indirect,
            FlowControl::Exception | FlowControl::Interrupt => Term::Trap,
            // A call at the very end of the function cannot return.
            FlowControl::Call if stop == end => Term::NoReturnCall { next: Avma(end) },
            _ => Term::Fall { next: fall },
        };
        Block {
            range: AvmaRange::new(Avma(start), Avma(stop)),
            insts: at(start)..at(stop),
            term,
            landing_pad: false,
        }
    });
    let blocks = blocks.collect();
    let parts = vec![AvmaRange::with_len(Avma(entry), bytes.len() as u64)];
    Cfg { entry: Avma(entry), parts, insts, blocks, tables: Vec::new(), functions: Vec::new() }
}

/// Builds a random function: blocks of harmless instructions, each ended by a branch to some block.
pub fn random_function(rng: &mut super::rng::Rng, at: u64, callees: &[u64]) -> Vec<u8> {
    const BODY: [&[u8]; 8] = [
        &[0x48, 0x01, 0xd8],
        &[0x31, 0xc0],
        &[0x48, 0x8b, 0x47, 0x10],
        &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0xf3, 0x0f, 0x1e, 0xfa],
        &[0x90],
        &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0xff, 0xd0],
    ];
    /// A displacement to fill in once all blocks have addresses.
    enum Fix {
        Near(usize, usize),
        Short(usize),
    }
    let blocks = 1 + rng.below(14);
    let (mut out, mut starts, mut fixes) = (Vec::new(), Vec::new(), Vec::new());
    let rel =
        |end: usize, to: u64| i32::try_from(to.cast_signed() - (at + end as u64).cast_signed()).unwrap();
    for b in 0..blocks {
        starts.push(out.len());
        let most = if rng.below(6) == 0 { 40 } else { 6 };
        for _ in 0..rng.below(most) {
            match rng.below(12) {
                0 => {
                    // lea rax, [rip+data] and cmp dword [rip+data], imm32: the displacement is not last.
                    let to = at + 0x10_0000 + u64::from(rng.coin());
                    out.extend([0x48, 0x8d, 0x05]);
                    out.extend(rel(out.len() + 4, to).to_le_bytes());
                    out.extend([0x81, 0x3d]);
                    out.extend(rel(out.len() + 8, to).to_le_bytes());
                    out.extend([1, 2, 3, 4]);
                }
                1 => {
                    let to = callees[rng.below(callees.len())];
                    if rng.coin() {
                        out.extend([0x66, 0x48]);
                    }
                    out.push(0xe8);
                    out.extend(rel(out.len() + 4, to).to_le_bytes());
                }
                n => out.extend(BODY[n % BODY.len()]),
            }
        }
        let last = b + 1 == blocks;
        let to = rng.below(blocks);
        match rng.below(if last { 3 } else { 10 }) {
            0 => out.push(0xc3),
            1 => {
                out.push(0xe9);
                fixes.push(Fix::Near(out.len(), to));
                out.extend([0; 4]);
            }
            2 => {
                // A tail call.
                out.push(0xe9);
                let to = callees[rng.below(callees.len())];
                out.extend(rel(out.len() + 4, to).to_le_bytes());
            }
            3 => {
                if rng.coin() {
                    out.push(0x67);
                }
                out.push([0xe0, 0xe1, 0xe2, 0xe3][rng.below(4)]);
                fixes.push(Fix::Short(out.len()));
                out.push(0);
            }
            4 => out.push(0x90),
            5 => out.extend([0x0f, 0x0b]),
            6 => {
                out.extend([0x0f, 0x80 | u8::try_from(rng.below(16)).unwrap()]);
                let to = callees[rng.below(callees.len())];
                out.extend(rel(out.len() + 4, to).to_le_bytes());
            }
            _ => {
                if rng.below(4) == 0 {
                    out.push([0x2e, 0x3e, 0xf2][rng.below(3)]);
                }
                out.extend([0x0f, 0x80 | u8::try_from(rng.below(16)).unwrap()]);
                fixes.push(Fix::Near(out.len(), to));
                out.extend([0; 4]);
            }
        }
    }
    for fix in fixes {
        match fix {
            Fix::Near(place, to) => {
                let disp = rel(place + 4, at + starts[to] as u64);
                out[place..place + 4].copy_from_slice(&disp.to_le_bytes());
            }
            Fix::Short(place) => {
                let disp = |s: usize| i8::try_from(s.cast_signed() - (place + 1).cast_signed());
                let near: Vec<i8> = starts.iter().filter_map(|&s| disp(s).ok()).collect();
                // The next block is always near.
                out[place] = near[rng.below(near.len())].cast_unsigned();
            }
        }
    }
    out
}
