//! One linear pass over all code of a module: finds all direct branches, computed code addresses, and code
//! that instructions read as data.
//!
//! The pass decodes every piece from its first byte on. In a piece that an FDE covers, this gives the true
//! instructions. In the gaps between FDEs (assembly without unwind rules, padding, constants), some of the
//! results may never run. This is safe: a result is only ever used as a reason *against* something (joining
//! two fragments, overwriting an entry).

use crate::Ranges;
use addr::{Addr, Avma, AvmaRange};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

/// A run of code to be decoded from its start.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Its addresses.
    pub range: AvmaRange,
    /// Its bytes. If they are fewer than the range is long, the rest is skipped.
    pub bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Splits an executable range into its functions and the gaps between them, in order of address.
    /// `functions` must be sorted by start. Whatever lies outside `text` is cut off. If functions overlap,
    /// each is a separate piece.
    #[must_use]
    pub fn cut(
        text: AvmaRange,
        bytes: &'a [u8],
        functions: impl IntoIterator<Item = AvmaRange>,
    ) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let mut push = |start: Avma, end: Avma| {
            if start < end {
                pieces.push(Piece {
                    range: AvmaRange::new(start, end),
                    bytes: within(text.start, bytes, start, end),
                });
            }
        };
        let mut at = text.start;
        for f in functions {
            let (start, end) = (f.start.max(text.start), f.end.min(text.end));
            if start >= end {
                continue;
            }
            push(at, start);
            push(start, end);
            at = at.max(end);
        }
        push(at, text.end);
        pieces
    }
}

/// Returns the bytes of `start..end` out of `bytes`, which lie at `base`; fewer if `bytes` ends earlier.
fn within(base: Avma, bytes: &[u8], start: Avma, end: Avma) -> &[u8] {
    let place = |a: Avma| a.since(base).and_then(|o| usize::try_from(o).ok()).unwrap_or(usize::MAX);
    let (from, to) = (place(start).min(bytes.len()), place(end).min(bytes.len()));
    bytes.get(from..to).unwrap_or_default()
}

/// A direct call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DirectCall {
    /// The address of the instruction.
    pub from: Avma,
    /// The callee.
    pub to: Avma,
    /// The instruction's size in bytes; the last four are the displacement.
    pub len: u8,
}

impl DirectCall {
    /// Returns the return address.
    #[must_use]
    pub fn end(&self) -> Avma {
        self.from.add(u64::from(self.len))
    }
}

/// The most bytes that one instruction reads: `fxrstor`. `xrstor` may read more, but no program keeps its state
/// in code.
const MOST_READ: u64 = 512;

/// A reference from one address to another: (destination, source), so that sorting groups by destination.
type Mention = (Avma, Avma);

/// All direct branches of a module, and the code that its instructions refer to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Branches {
    /// Sorted.
    jumps: Vec<Mention>,
    /// Sorted by `from`.
    calls: Vec<DirectCall>,
    /// Sorted.
    called: Vec<Mention>,
    /// Sorted.
    taken: Vec<Mention>,
    /// Code that instructions access as data: sorted starts and lengths.
    read: Vec<(Avma, u64)>,
    instructions: usize,
    invalid: usize,
}

impl Branches {
    /// Returns the direct jumps (`jmp`, `jcc`, `loop`, `jrcxz`, the abort path of `xbegin`) whose destination
    /// is in `range`, as (from, to), rising by destination.
    pub fn jumps_into(&self, range: AvmaRange) -> impl ExactSizeIterator<Item = (Avma, Avma)> + '_ {
        into(&self.jumps, range)
    }

    /// Returns the direct calls whose destination is in `range`, as (from, to), rising by destination.
    pub fn calls_into(&self, range: AvmaRange) -> impl ExactSizeIterator<Item = (Avma, Avma)> + '_ {
        into(&self.called, range)
    }

    /// Returns the addresses of the calls to `to`, rising.
    pub fn calls_to(&self, to: Avma) -> impl ExactSizeIterator<Item = Avma> + '_ {
        into(&self.called, AvmaRange::with_len(to, 1)).map(|(from, _)| from)
    }

    /// Returns the direct calls in `range`, rising.
    #[must_use]
    pub fn calls_from(&self, range: AvmaRange) -> &[DirectCall] {
        let lo = self.calls.partition_point(|c| c.from < range.start);
        let hi = self.calls.partition_point(|c| c.from < range.end);
        self.calls.get(lo..hi).unwrap_or_default()
    }

    /// Returns the code addresses in `range` that an instruction computes, as (from, to), rising by address.
    /// It computes them by a RIP-relative `lea`, or as an immediate in code that is not position independent.
    pub fn taken_in(&self, range: AvmaRange) -> impl ExactSizeIterator<Item = (Avma, Avma)> + '_ {
        into(&self.taken, range)
    }

    /// Returns whether an instruction computes exactly this address.
    #[must_use]
    pub fn is_taken(&self, at: Avma) -> bool {
        self.taken_in(AvmaRange::with_len(at, 1)).len() > 0
    }

    /// Returns whether an instruction accesses a byte of `range` at a constant address.
    #[must_use]
    pub fn is_read(&self, range: AvmaRange) -> bool {
        let from = self.read.partition_point(|r| r.0.raw().saturating_add(MOST_READ) <= range.start.raw());
        let to = self.read.partition_point(|r| r.0 < range.end);
        let near = self.read.get(from..to).unwrap_or_default();
        near.iter().any(|&(at, len)| at.raw().saturating_add(len) > range.start.raw())
    }

    /// Merges the results for parts of a module.
    #[must_use]
    pub fn joined(mut parts: Vec<Self>) -> Self {
        Self {
            jumps: merged(parts.iter_mut().map(|p| &mut p.jumps)),
            calls: merged(parts.iter_mut().map(|p| &mut p.calls)),
            called: merged(parts.iter_mut().map(|p| &mut p.called)),
            taken: merged(parts.iter_mut().map(|p| &mut p.taken)),
            read: merged(parts.iter_mut().map(|p| &mut p.read)),
            instructions: parts.iter().map(|p| p.instructions).sum(),
            invalid: parts.iter().map(|p| p.invalid).sum(),
        }
    }

    /// Returns the number of decoded instructions.
    #[must_use]
    pub fn instructions(&self) -> usize {
        self.instructions
    }

    /// Returns the number of addresses at which no instruction was found. Each costs one byte: the pass
    /// continues at the next.
    #[must_use]
    pub fn invalid(&self) -> usize {
        self.invalid
    }
}

/// Merges sorted runs in no more memory than they take, and empties them: a large server has millions of
/// branches.
fn merged<'a, T: Ord + 'a>(runs: impl Iterator<Item = &'a mut Vec<T>>) -> Vec<T> {
    let mut runs: Vec<Vec<T>> = runs.map(std::mem::take).collect();
    let mut all = Vec::with_capacity(runs.iter().map(Vec::len).sum());
    for run in &mut runs {
        all.append(run);
        *run = Vec::new();
    }
    // Stable sorting detects the runs and merges them.
    all.sort();
    // Pieces that overlap give the same instruction twice.
    all.dedup();
    all
}

fn into(mentions: &[Mention], range: AvmaRange) -> impl ExactSizeIterator<Item = (Avma, Avma)> + '_ {
    let lo = mentions.partition_point(|m| m.0 < range.start);
    let hi = mentions.partition_point(|m| m.0 < range.end);
    mentions.get(lo..hi).unwrap_or_default().iter().map(|&(to, from)| (from, to))
}

/// Decodes all pieces. They may overlap and come in any order. Cost: about 50 ns per instruction in total.
#[must_use]
pub fn sweep(pieces: &[Piece]) -> Branches {
    let text = pieces.iter().map(|p| p.range).collect();
    Branches::joined(vec![sweep_part(pieces, &text)])
}

/// Works like [`sweep`] for some of the pieces; `text` is what all pieces cover.
#[must_use]
pub fn sweep_part(pieces: &[Piece], text: &Ranges) -> Branches {
    let mut found = Branches::default();
    let mut inst = Instruction::default();
    for piece in pieces {
        sweep_piece(piece, text, &mut found, &mut inst);
    }
    found.called = found.calls.iter().map(|c| (c.to, c.from)).collect();
    found.jumps.sort_unstable();
    found.calls.sort_unstable();
    found.called.sort_unstable();
    found.taken.sort_unstable();
    found.read.sort_unstable();
    found
}

fn sweep_piece(piece: &Piece, text: &Ranges, found: &mut Branches, inst: &mut Instruction) {
    let len = usize::try_from(piece.range.len()).unwrap_or(usize::MAX).min(piece.bytes.len());
    let bytes = piece.bytes.get(..len).unwrap_or_default();
    let start = piece.range.start;
    let mut decoder = Decoder::with_ip(64, bytes, start.raw(), DecoderOptions::NONE);
    while decoder.can_decode() {
        let place = decoder.position();
        decoder.decode_out(inst);
        if inst.is_invalid() {
            found.invalid += 1;
            let next = place + 1;
            if decoder.set_position(next).is_err() {
                return;
            }
            decoder.set_ip(start.add(next as u64).raw());
            continue;
        }
        found.instructions += 1;
        note(inst, text, found);
    }
}

fn note(inst: &Instruction, text: &Ranges, found: &mut Branches) {
    let from = Avma(inst.ip());
    if let Some((at, len)) = constant_memory(inst)
        && text.contains(at)
    {
        found.read.push((at, len));
    }
    match inst.flow_control() {
        FlowControl::Next => {
            if let Some(to) = computed_address(inst)
                && text.contains(to)
            {
                found.taken.push((to, from));
            }
        }
        FlowControl::ConditionalBranch
        | FlowControl::UnconditionalBranch
        | FlowControl::XbeginXabortXend
        | FlowControl::Call => {
            // `xend`, `syscall` and similar instructions have no branch operand.
            if !matches!(inst.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
            {
                return;
            }
            let to = Avma(inst.near_branch_target());
            if inst.flow_control() == FlowControl::Call {
                let len = u8::try_from(inst.len()).unwrap_or(u8::MAX);
                found.calls.push(DirectCall { from, to, len });
            } else {
                found.jumps.push((to, from));
            }
        }
        FlowControl::IndirectBranch
        | FlowControl::IndirectCall
        | FlowControl::Return
        | FlowControl::Interrupt
        | FlowControl::Exception => {}
    }
}

/// Returns the memory that an instruction accesses at a constant address, relative to the instruction pointer
/// or absolute, as its start and length. A length is unknown if it depends on the processor's state (`xsave`).
fn constant_memory(inst: &Instruction) -> Option<(Avma, u64)> {
    let is_memory = (0..inst.op_count()).any(|i| inst.op_kind(i) == OpKind::Memory);
    let is_constant = matches!(inst.memory_base(), Register::None | Register::RIP | Register::EIP)
        && inst.memory_index() == Register::None
        && inst.segment_prefix() == Register::None;
    let len = match inst.memory_size().size() as u64 {
        0 => MOST_READ,
        known => known.min(MOST_READ),
    };
    (is_memory && is_constant && inst.code() != Code::Lea_r64_m)
        .then(|| (Avma(inst.memory_displacement64()), len))
}

/// Returns the address that an instruction computes from constants alone.
fn computed_address(inst: &Instruction) -> Option<Avma> {
    match inst.code() {
        Code::Lea_r64_m if inst.is_ip_rel_memory_operand() => Some(Avma(inst.ip_rel_memory_address())),
        Code::Mov_r32_imm32 => Some(Avma(u64::from(inst.immediate32()))),
        Code::Mov_r64_imm64 => Some(Avma(inst.immediate64())),
        Code::Mov_rm64_imm32 | Code::Pushq_imm32 => Some(Avma(inst.immediate(inst.op_count() - 1))),
        _ => None,
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
