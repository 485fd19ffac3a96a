//! How the unwinder of a static program finds code: by direct calls whose displacements can be redirected.
//!
//! A static program has no slot or pointer between its unwinder and the function that finds frame tables.
//! libgcc from GCC 12 on glibc 2.35 calls `_dl_find_object`; all other unwinders call `dl_iterate_phdr`. Both
//! functions are found by their symbols, so the unwinder of a stripped program cannot be redirected. For each
//! redirected function, all ways to it must be known. Otherwise an unwinder might call it without the anchor.

use crate::analyse::covering;
use crate::build::unwinder::EH_FRAME_HEADER;
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use iced_x86::{FlowControl, Instruction, OpKind};
use image::{Image, Module, ModuleKind};
use memchr::memmem;

/// glibc's lookup of frame tables. The names of the lookup's own functions begin with this name.
const FIND_OBJECT: &str = "_dl_find_object";
/// The function that all other unwinders call.
const ITERATE_PHDR: &str = "dl_iterate_phdr";
/// libgcc's function that calls the lookup.
const LOOKUP_CALLER: &str = "_Unwind_Find_FDE";

/// A function that only LLVM's libunwind has.
const STEPS: &str = "__unw_step";
/// A function of glibc. It passes the address of `_dl_find_object` to libraries that a static program loads.
const HANDS_ON: &str = "__rtld_static_init";

/// The direct calls of one function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectCalls {
    /// The function.
    pub function: Avma,
    /// The four bytes of each call's displacement.
    pub displacements: Vec<AvmaRange>,
}

/// The lookup calls of a static program's unwinders.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct LookupCalls {
    /// Calls of `_dl_find_object`.
    pub find_object: Option<DirectCalls>,
    /// Calls of `dl_iterate_phdr`, if some unwinder calls it.
    pub iterate_phdr: Option<DirectCalls>,
}

/// Finds all calls by which unwinders of a static program look up code. `memory` is the process without
/// redirects.
///
/// # Errors
/// Returns why its unwinders cannot be redirected.
pub fn lookup_calls(image: &Image, memory: &dyn ReadMemory) -> Result<LookupCalls, String> {
    let program = image.main();
    if image.modules().iter().any(|m| m.kind == ModuleKind::Library) {
        return Err("it is statically linked and has loaded libraries".to_owned());
    }
    let code: Vec<Code> = image
        .exec_ranges(program)
        .into_iter()
        .map(|range| Ok(Code { start: range.start, bytes: memory.bytes(range)? }))
        .collect::<Result<_, addr::Unreadable>>()
        .map_err(|e| e.to_string())?;
    let function = |name: &str| program.symbols.named(name).map(|s| s.at).next();
    let calls = |name: &str| {
        let function = function(name)?;
        Some(direct_calls(program, memory, &code, function).map_err(|why| format!("{why} {name}")))
    };
    let find_object = calls(FIND_OBJECT).transpose()?.filter(|c| !c.displacements.is_empty());
    // Code that searches program headers for frame tables lists modules. glibc's code for `_dl_find_object`
    // is an exception.
    let of_libc = |at: Avma| program.symbols.name_at(at).is_some_and(|n| n.starts_with(FIND_OBJECT));
    let lists_modules = code.iter().flat_map(Code::numbers).any(|at| !of_libc(at));
    let iterate_phdr = if lists_modules { calls(ITERATE_PHDR).transpose()? } else { None };
    let iterate_phdr = iterate_phdr.filter(|c| !c.displacements.is_empty());
    if find_object.is_none() && iterate_phdr.is_none() || lists_modules && iterate_phdr.is_none() {
        return Err(
            "it is statically linked, and the calls by which its unwinder finds code are unknown".to_owned()
        );
    }
    let calls_found = LookupCalls { find_object, iterate_phdr };
    // LLVM's libunwind has a function of this name too, which calls the lookup through others.
    let is_libgcc = function(STEPS).is_none();
    match function(LOOKUP_CALLER).filter(|at| is_libgcc && !makes_a_call(program, *at, &calls_found)) {
        Some(_) => Err(format!("its {LOOKUP_CALLER} finds code in no known way")),
        None => Ok(calls_found),
    }
}

/// Returns whether the function at `at`, or its cold part, makes one of the calls.
fn makes_a_call(program: &Module, at: Avma, calls_found: &LookupCalls) -> bool {
    let name = program.symbols.name_at(at).unwrap_or_default();
    let all = calls_found.find_object.iter().chain(&calls_found.iterate_phdr).flat_map(|c| &c.displacements);
    let holder = |r: &AvmaRange| program.symbols.name_at(r.start);
    all.filter_map(holder)
        .any(|n| n.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// Executable bytes of the program.
struct Code {
    start: Avma,
    bytes: Vec<u8>,
}

impl Code {
    fn at(&self, offset: usize) -> Avma {
        self.start.add(offset as u64)
    }

    fn part(&self, range: AvmaRange) -> Option<&[u8]> {
        let from = usize::try_from(range.start.since(self.start)?).ok()?;
        self.bytes.get(from..from.checked_add(usize::try_from(range.len()).ok()?)?)
    }

    /// Returns the places that hold the number of `PT_GNU_EH_FRAME`.
    fn numbers(&self) -> impl Iterator<Item = Avma> + '_ {
        memmem::find_iter(&self.bytes, &EH_FRAME_HEADER).map(|i| self.at(i))
    }

    /// Returns the places where four bytes are the distance from their end to `to`.
    fn distances(&self, to: Avma) -> impl Iterator<Item = Avma> + '_ {
        let end = |i: usize| self.at(i + 4);
        let words = self.bytes.windows(4).enumerate();
        words.filter_map(move |(i, w)| {
            let distance = i32::from_le_bytes(*w.first_chunk()?);
            (end(i).offset(i64::from(distance)) == to).then(|| self.at(i))
        })
    }

    /// Returns the places where four bytes may be an address, as in a constant of a program linked to fixed
    /// addresses.
    fn constants(&self, to: Avma) -> Vec<Avma> {
        let Ok(word) = u32::try_from(to.0) else { return Vec::new() };
        memmem::find_iter(&self.bytes, &word.to_le_bytes()).map(|i| self.at(i)).collect()
    }

    /// Returns the places where a jump with a one-byte displacement may lead to `to`.
    fn short_jumps(&self, to: Avma) -> impl Iterator<Item = Avma> + '_ {
        let near = to.since(self.start).and_then(|o| usize::try_from(o).ok()).unwrap_or(usize::MAX / 2);
        let from = near.saturating_sub(130).min(self.bytes.len());
        let until = near.saturating_add(130).min(self.bytes.len());
        (from..until).filter_map(move |i| {
            let &[opcode, distance] = self.bytes.get(i..i + 2)?.first_chunk()?;
            let is_jump = matches!(opcode, 0x70..=0x7f | 0xe0..=0xe3 | 0xeb);
            let leads = self.at(i + 2).offset(i64::from(distance.cast_signed())) == to;
            (is_jump && leads).then(|| self.at(i))
        })
    }
}

/// Returns the direct calls of a function, and jumps to it, if there is no other way to it.
fn direct_calls(
    program: &Module,
    memory: &dyn ReadMemory,
    code: &[Code],
    function: Avma,
) -> Result<DirectCalls, &'static str> {
    const TAKEN: &str = "something else than direct calls may lead to its";
    let own = program.frames.find(function).map(|f| f.range);
    let is_own = |at: &Avma| own.is_some_and(|range| range.contains(*at));
    if is_in_data(program, memory, function) {
        return Err(TAKEN);
    }
    let in_code = code
        .iter()
        .flat_map(|c| c.distances(function).chain(c.short_jumps(function)).chain(c.constants(function)));
    let mut displacements = Vec::new();
    for at in in_code.filter(|at| !is_own(at)) {
        let bytes = |range: AvmaRange| code.iter().find_map(|c| c.part(range));
        let Some(i) = covering::instruction(&program.frames, bytes, at) else { return Err(TAKEN) };
        let field = AvmaRange::new(Avma(i.next_ip().wrapping_sub(4)), Avma(i.next_ip()));
        let is_call = matches!(i.flow_control(), FlowControl::Call | FlowControl::UnconditionalBranch);
        let is_direct = is_call && i.op0_kind() == OpKind::NearBranch64 && i.near_branch64() == function.0;
        if is_direct && field.start == at {
            displacements.push(field);
        } else if mentions(&i, function) && program.symbols.name_at(at) != Some(HANDS_ON) {
            return Err(TAKEN);
        }
    }
    displacements.sort_unstable_by_key(|r| r.start);
    Ok(DirectCalls { function, displacements })
}

/// Returns whether data holds the address of the function.
fn is_in_data(program: &Module, memory: &dyn ReadMemory, function: Avma) -> bool {
    let word = function.0.to_le_bytes();
    let data = program.segments.iter().filter(|s| !s.perms.x);
    // Data that cannot be read may hold the address.
    data.map(|s| memory.bytes(s.range)).any(|b| b.map_or(true, |b| memmem::find(&b, &word).is_some()))
}

/// Returns whether an operand of an instruction is the function's address, or a branch or memory operand
/// leads there.
fn mentions(i: &Instruction, function: Avma) -> bool {
    (0..i.op_count()).any(|op| match i.op_kind(op) {
        OpKind::NearBranch64 => i.near_branch64() == function.0,
        OpKind::Memory => i.memory_displacement64() == function.0,
        _ => i.try_immediate(op).is_ok_and(|value| value == function.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Avma = Avma(0x40_1000);
    const TO: Avma = Avma(0x40_1020);

    fn code(pieces: &[(usize, &[u8])]) -> Code {
        let mut bytes = vec![0xcc; 0x40];
        for (at, piece) in pieces {
            bytes[*at..at + piece.len()].copy_from_slice(piece);
        }
        Code { start: AT, bytes }
    }

    #[test]
    fn all_references_to_a_function_are_found() {
        // call; lea; mov $imm; jmp short; jne short.
        let code = code(&[
            (0, &[0xe8, 0x1b, 0, 0, 0]),
            (5, &[0x48, 0x8d, 0x3d, 0x14, 0, 0, 0]),
            (12, &[0xbf, 0x20, 0x10, 0x40, 0]),
            (17, &[0xeb, 0x0d]),
            (0x30, &[0x75, 0xee]),
        ]);
        let found = |places: Vec<Avma>| places.iter().map(|a| a.since(AT).unwrap()).collect::<Vec<_>>();
        assert_eq!(found(code.distances(TO).collect()), [1, 8]);
        assert_eq!(found(code.constants(TO)), [13]);
        assert_eq!(found(code.short_jumps(TO).collect()), [17, 0x30]);
        assert_eq!(code.part(AvmaRange::with_len(AT.add(17), 2)), Some(&[0xeb, 0x0d][..]));
        assert_eq!(code.part(AvmaRange::with_len(AT.add(0x3f), 2)), None);
    }

    #[test]
    fn a_function_is_mentioned_by_operands_alone() {
        let first = |bytes: &[u8], at: u64| {
            iced_x86::Decoder::with_ip(64, bytes, at, iced_x86::DecoderOptions::NONE).decode()
        };
        assert!(mentions(&first(&[0x75, 0xee], 0x40_1030), TO));
        assert!(mentions(&first(&[0x48, 0x8d, 0x3d, 0x14, 0, 0, 0], 0x40_1005), TO));
        assert!(mentions(&first(&[0xbf, 0x20, 0x10, 0x40, 0], 0x40_100c), TO));
        assert!(!mentions(&first(&[0x48, 0x89, 0xdf], 0x40_1000), TO));
    }
}
