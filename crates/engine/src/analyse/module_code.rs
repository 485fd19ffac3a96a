//! The code of one module: its functions, its branches, and the code addresses in its data.

use crate::analyse::covering;
use crate::analyse::gs::{self, GsUse};
use crate::base::parallel;
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use code::{Branches, Extent, Extents, MergeInput, Piece, Ranges, Refusal};
use image::{Image, Module, ModuleId, ModuleKind, RelocKind};
use memchr::memmem;
use rustc_hash::{FxHashSet, FxHasher};
use std::hash::Hasher;
use unwind::{CfaRule, Fde, Lsda, Reg};

/// The number of parts of a module's code that are swept in parallel.
const SHARES: usize = 4;

/// Code of one module.
#[derive(Debug)]
pub struct ModuleCode {
    /// The module.
    pub id: ModuleId,
    /// Why none of its functions is cloned, if the whole module is refused.
    pub refused: Option<Refusal>,
    /// Its functions.
    pub extents: Extents,
    /// Its direct branches.
    pub branches: Branches,
    /// The ranges of its executable bytes. The bytes are not kept: the bytes of a large server would take
    /// most of whet's memory.
    pub(super) text: Vec<AvmaRange>,
    /// Jumps through words of memory, with the address of each word. Some of them are chance matches.
    pub jumps_through: Vec<(Avma, Avma)>,
    /// A use of the GS base in its code, if any.
    pub(super) gs_use: Option<GsUse>,
    /// Every fragment of a function, by start.
    fragments: Vec<Fragment>,
    /// Code addresses that data holds or that other modules can look up, ascending.
    held: Vec<Avma>,
    /// Code addresses that data holds, ascending. In a program linked to fixed addresses, some are chance
    /// matches.
    in_data: Vec<Avma>,
}

/// A fragment of a function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment {
    pub(super) range: AvmaRange,
    /// The index of its function.
    function: u32,
    /// Hash of its bytes at the time when functions and branches were found.
    pub(super) hash: u64,
}

impl ModuleCode {
    pub(super) fn new(image: &Image, id: ModuleId, memory: &dyn ReadMemory) -> Self {
        let module = image.module(id);
        let refused = module_refusal(module);
        let mut text = Vec::new();
        for range in image.exec_ranges(module) {
            if let Ok(bytes) = memory.bytes(range) {
                text.push((range, bytes));
            }
        }
        let mut this = Self {
            id,
            refused,
            extents: Extents::default(),
            branches: Branches::default(),
            text: text.iter().map(|(r, _)| *r).collect(),
            jumps_through: text.iter().flat_map(|(r, bytes)| jumps_through(r.start, bytes)).collect(),
            gs_use: gs::in_module(module, &text),
            fragments: Vec::new(),
            held: Vec::new(),
            in_data: Vec::new(),
        };
        if this.refused.is_none() && has_restartable_sequences(module, &text) {
            this.refused = Some(Refusal::RestartableSequence);
        }
        if this.refused.is_none() {
            this.find_functions(module, &text, memory);
        }
        this
    }

    fn find_functions(&mut self, module: &Module, text: &[(AvmaRange, Vec<u8>)], memory: &dyn ReadMemory) {
        let fdes = module.frames.fdes();
        let pieces: Vec<Piece<'_>> = text
            .iter()
            .flat_map(|(range, bytes)| Piece::cut(*range, bytes, fdes.iter().map(|f| f.range)))
            .collect();
        let ranges: Ranges = pieces.iter().map(|p| p.range).collect();
        let shares: Vec<&[Piece<'_>]> = pieces.chunks(pieces.len().div_ceil(SHARES).max(1)).collect();
        self.branches = Branches::joined(parallel::map(&shares, |share| code::sweep_part(share, &ranges)));
        let in_data = addresses_in_data(module, memory);
        let held: FxHashSet<Avma> = held_addresses(module, &in_data);
        let far_pads: Vec<(usize, Avma)> = fdes
            .iter()
            .enumerate()
            .filter_map(|(i, f)| Some((i, f.range, Lsda::parse(memory, f.lsda?, f.range).ok()?)))
            .flat_map(|(i, range, lsda)| {
                let pads = lsda.call_sites.into_iter().filter_map(|s| s.landing_pad);
                pads.filter(move |p| !range.contains(*p)).map(move |p| (i, p)).collect::<Vec<_>>()
            })
            .collect();
        let plt: Vec<AvmaRange> = module.plt.iter().map(|p| p.range).collect();
        let exact = |at: Avma| module.symbols.function_starting_at(at).map(|s| s.name);
        let starts: Vec<Avma> = module.symbols.iter().filter(|s| s.kind.is_code()).map(|s| s.at).collect();
        let symbols_in = |range: AvmaRange| {
            let from = starts.partition_point(|&s| s < range.start);
            let to = starts.partition_point(|&s| s < range.end);
            starts[from..to].to_vec()
        };
        self.extents = code::merge(&MergeInput {
            fdes,
            starts_like_entry: &|i| starts_like_entry(module, &fdes[i]),
            branches: &self.branches,
            name: &exact,
            is_address_taken: &|at| held.contains(&at),
            symbols_in: &symbols_in,
            far_pads: &far_pads,
            plt: &plt,
        });
        let hash = |range: AvmaRange| within(text, range).map(hash_of);
        self.fragments = (0u32..)
            .zip(&self.extents.functions)
            .flat_map(|(function, e)| e.parts.iter().map(move |&range| (range, function)))
            .filter_map(|(range, function)| Some(Fragment { range, function, hash: hash(range)? }))
            .collect();
        self.fragments.sort_unstable_by_key(|f| f.range.start);
        self.held = held.into_iter().collect();
        self.held.sort_unstable();
        self.in_data = in_data;
        self.in_data.extend(words_in_data(module, &self.text, memory));
        self.in_data.sort_unstable();
        self.in_data.dedup();
    }

    /// Returns whether an extent starts a function, not a fragment that only jumps reach.
    pub(super) fn is_called(&self, module: &Module, at: Avma) -> bool {
        let known = self.branches.is_taken(at) || self.held.binary_search(&at).is_ok();
        self.branches.calls_to(at).len() > 0
            || known && module.frames.find(at).is_some_and(|fde| starts_like_entry(module, fde))
    }

    /// Returns the addresses in a range that data holds, including labels of computed jumps.
    #[must_use]
    pub fn held_in(&self, range: AvmaRange) -> &[Avma] {
        within_range(&self.held, range)
    }

    /// Returns the addresses in a range that words of data hold. In a program linked to fixed addresses, some
    /// are chance matches.
    #[must_use]
    pub fn in_data_in(&self, range: AvmaRange) -> &[Avma] {
        within_range(&self.in_data, range)
    }

    pub(super) fn fragment_at(&self, pc: Avma) -> Option<&Fragment> {
        let after = self.fragments.partition_point(|f| f.range.start <= pc);
        self.fragments.get(after.checked_sub(1)?).filter(|f| f.range.contains(pc))
    }

    /// Returns the index of the function that contains a program counter.
    pub(super) fn index_at(&self, pc: Avma) -> Option<u32> {
        self.fragment_at(pc).map(|f| f.function)
    }

    /// Returns the function that contains a program counter.
    #[must_use]
    pub fn function_at(&self, pc: Avma) -> Option<&Extent> {
        self.extents.functions.get(self.index_at(pc)? as usize)
    }
}

/// Returns the addresses in a range; `sorted` is ascending.
fn within_range(sorted: &[Avma], range: AvmaRange) -> &[Avma] {
    let from = sorted.partition_point(|&a| a < range.start);
    let to = sorted.partition_point(|&a| a < range.end);
    &sorted[from..to]
}

/// Returns the bytes of a range, if one piece of `text` covers it.
fn within(text: &[(AvmaRange, Vec<u8>)], range: AvmaRange) -> Option<&[u8]> {
    let (whole, bytes) = text.iter().find(|(r, _)| r.covers(&range))?;
    let from = usize::try_from(range.start.since(whole.start)?).ok()?;
    let to = usize::try_from(range.end.since(whole.start)?).ok()?;
    bytes.get(from..to)
}

/// Returns a hash that detects changed code. It is not cryptographic: an attacker who can write code needs no
/// collision.
pub(super) fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

/// Returns whether an FDE begins with the frame of a function that was just called.
fn starts_like_entry(module: &Module, fde: &Fde) -> bool {
    module.frames.initial_row(fde).is_ok()
        && module.frames.rows(fde).ok().and_then(|rows| rows.first().cloned()).is_some_and(|r| {
            r.cfa == CfaRule::RegOffset(Reg::RSP, 8) && r.regs.iter().all(|(reg, _)| *reg == Reg::RA)
        })
}

/// Returns whether a module has restartable sequences (rseq) of its own. The kernel finds these by address
/// and has no record of clones. Each sequence has an abort handler with this signature before it (x86:
/// `RSEQ_SIG` of the librseq ABI). The C library has the signature only as the argument of its registration,
/// also when it is linked into the program.
fn has_restartable_sequences(module: &Module, text: &[(AvmaRange, Vec<u8>)]) -> bool {
    const RSEQ_SIG: u32 = 0x5305_3053;
    let is_argument = |at: Avma| {
        let i = covering::instruction(&module.frames, |range| within(text, range), at);
        module.static_exe
            && module.frames.find(at).is_some()
            && i.is_some_and(|i| {
                i.code() == iced_x86::Code::Mov_r32_imm32
                    && i.immediate32() == RSEQ_SIG
                    && i.next_ip() == at.add(4).0
            })
    };
    let found = |(range, bytes): &(AvmaRange, Vec<u8>)| {
        let signature = RSEQ_SIG.to_le_bytes();
        memmem::find_iter(bytes, &signature).any(|i| !is_argument(range.start.add(i as u64)))
    };
    !is_libc(module) && text.iter().any(found)
}

pub(super) fn is_libc(module: &Module) -> bool {
    module.file_name().is_some_and(|f| f.starts_with("libc.so") || f.starts_with("libc-"))
}

/// Returns each `jmp *slot(%rip)` in code at `at`, as (from, slot). Its two opcode bytes also occur by
/// chance.
fn jumps_through(at: Avma, bytes: &[u8]) -> impl Iterator<Item = (Avma, Avma)> + '_ {
    memmem::find_iter(bytes, &[0xff, 0x25]).filter_map(move |i| {
        let distance = i32::from_le_bytes(*bytes.get(i + 2..)?.first_chunk()?);
        let from = at.add(i as u64);
        Some((from, from.add(6).offset(i64::from(distance))))
    })
}

/// Returns why a whole module is left alone.
fn module_refusal(module: &Module) -> Option<Refusal> {
    let file = module.file_name().unwrap_or_default();
    match module.kind {
        ModuleKind::Interpreter | ModuleKind::Vdso => Some(Refusal::RuntimeInternal),
        // The unwinder walks its own frames and recognises them by address.
        _ if file.starts_with("libgcc_s") || file.starts_with("libunwind") => Some(Refusal::RuntimeInternal),
        ModuleKind::Main | ModuleKind::Library => None,
    }
}

/// Returns the addresses that relocated words of data hold.
fn addresses_in_data(module: &Module, memory: &dyn ReadMemory) -> Vec<Avma> {
    let held = |r: &image::Reloc| match r.kind {
        RelocKind::Relative(Some(at)) => Some(at),
        RelocKind::Relative(None) => memory.u64(r.at).ok().map(Avma),
        _ => None,
    };
    module.relocations.iter().filter_map(held).collect()
}

/// Returns the words of data that are code addresses, for a program linked to fixed addresses. Some are
/// chance matches: nothing distinguishes addresses from other words there.
fn words_in_data(module: &Module, text: &[AvmaRange], memory: &dyn ReadMemory) -> Vec<Avma> {
    let data = module.segments.iter().filter(|s| !module.pie && !s.perms.x);
    let is_code = |at: &Avma| text.iter().any(|r| r.contains(*at));
    data.filter_map(|s| memory.bytes(s.file_backed).ok().map(|bytes| (s.range.start, bytes)))
        .flat_map(|(start, bytes)| {
            let skip = usize::try_from(start.0.next_multiple_of(8) - start.0).unwrap_or(0);
            let (words, _) = bytes.get(skip..).unwrap_or_default().as_chunks::<8>();
            words.iter().map(|w| Avma(u64::from_le_bytes(*w))).filter(is_code).collect::<Vec<_>>()
        })
        .collect()
}

/// Returns the code addresses that data holds or that other modules can look up.
fn held_addresses(module: &Module, in_data: &[Avma]) -> FxHashSet<Avma> {
    let mut held: FxHashSet<Avma> = in_data.iter().copied().collect();
    held.extend(module.symbols.iter().filter(|s| s.exported).map(|s| s.at));
    held.insert(module.entry.unwrap_or_default());
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_through_slots_are_read_relative_to_their_end() {
        let code = [
            0x90, 0xf2, 0xff, 0x25, 0x10, 0, 0, 0, 0xff, 0x15, 0, 0, 0, 0, 0xff, 0x25, 0xf0, 0xff, 0xff, 0xff,
        ];
        let found: Vec<_> = jumps_through(Avma(0x1000), &code).collect();
        assert_eq!(found, [(Avma(0x1002), Avma(0x1018)), (Avma(0x100e), Avma(0x1004))]);
    }
}
