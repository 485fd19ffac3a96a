//! May the first bytes of a function be overwritten with a jump?
//!
//! The jump takes five bytes. Nothing but control that runs through the entry may ever reach them: whatever lands
//! strictly inside would run half of a displacement. Landing exactly on the jump is right, because the clone holds
//! the same state there: at the entry, and, where an `endbr64` is left in place and the jump put after it, also at
//! the instruction after the `endbr64`. So the jump must lead to the clone of the instruction *at*
//! [`EntryWindow::jump_at`].

use crate::{Branches, Refusal};
use addr::{Addr, Avma, AvmaRange};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

/// Size of a `jmp rel32`. Bytes.
const JUMP_LEN: u8 = 5;
/// The indirect-branch landing mark, which must stay the first instruction.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// What [`entry_window`] needs to know.
#[derive(Clone, Copy, Debug)]
pub struct WindowInput<'a> {
    /// Where the function is entered.
    pub entry: Avma,
    /// The fragment that holds the entry.
    pub part: AvmaRange,
    /// Live bytes from the entry on: 24, or up to the end of the part where that comes first. More do no harm.
    pub bytes: &'a [u8],
    /// The file's bytes from the entry on, where the file can be had. They tell a genuine jump, call or `int3` at
    /// the entry from somebody's hook; without them everything that looks like a hook is taken for one.
    pub file_bytes: Option<&'a [u8]>,
    /// The next function, FDE or secondary entry after the entry.
    pub next_start: Option<Avma>,
    /// All direct branches of the module.
    pub branches: &'a Branches,
    /// What else can be jumped to: targets of jump tables, landing pads, code addresses held by data. In any order;
    /// those outside the window do no harm.
    pub targets: &'a [Avma],
}

/// The bytes the entry jump takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryWindow {
    /// Where the jump is written: the entry, or the instruction after its `endbr64`. The jump leads to the clone of
    /// the instruction here.
    pub jump_at: Avma,
    /// Size of the jump in bytes.
    pub len: u8,
    /// Starts of the original's instructions strictly inside the jump: a thread that is stopped at one of these may
    /// not be let go once the jump is written.
    pub interior: Vec<Avma>,
}

impl EntryWindow {
    /// The bytes that are overwritten.
    #[must_use]
    pub fn range(&self) -> AvmaRange {
        AvmaRange::with_len(self.jump_at, u64::from(self.len))
    }
}

/// Finds the place for the entry jump.
///
/// # Errors
/// The reason why there is none: [`Refusal::EntryTooShort`], [`Refusal::EntryWindowTargeted`],
/// [`Refusal::EntryWindowCall`], [`Refusal::EntryAlreadyPatched`], [`Refusal::BadInstruction`].
pub fn entry_window(input: &WindowInput) -> Result<EntryWindow, Refusal> {
    let skip = if input.bytes.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    let jump_at = input.entry.add(skip as u64);
    let window = AvmaRange::with_len(jump_at, u64::from(JUMP_LEN));
    // First, because a foreign jump makes whatever follows meaningless.
    refuse_foreign(input, skip)?;

    // The length is less at the end of the address space.
    let own =
        input.part.contains(input.entry) && input.part.covers(&window) && window.len() == u64::from(JUMP_LEN);
    let next_inside = input.next_start.is_some_and(|n| input.entry < n && n < window.end);
    if !own || next_inside {
        return Err(Refusal::EntryTooShort);
    }
    let interior = interior(input, skip, window)?;
    if is_targeted(input, window) {
        return Err(Refusal::EntryWindowTargeted);
    }
    Ok(EntryWindow { jump_at, len: JUMP_LEN, interior })
}

/// Decodes the instructions that start in the window and checks that control runs through all of it.
fn interior(input: &WindowInput, skip: usize, window: AvmaRange) -> Result<Vec<Avma>, Refusal> {
    let room = usize::try_from(input.part.end.since(input.entry).unwrap_or(0)).unwrap_or(usize::MAX);
    let bytes = input.bytes.get(..room.min(input.bytes.len())).unwrap_or_default();
    let bytes = bytes.get(skip..).unwrap_or_default();
    let mut decoder = Decoder::with_ip(64, bytes, window.start.raw(), DecoderOptions::NONE);
    let mut interior = Vec::new();
    let mut at = window.start;
    while at < window.end {
        let inst = decoder.decode();
        if inst.is_invalid() {
            return Err(Refusal::BadInstruction);
        }
        if at != window.start {
            interior.push(at);
        }
        at = Avma(inst.next_ip());
        let cut_short = at < window.end;
        if is_call(&inst) {
            // A return address at the very end is fine: those bytes stay as they are.
            if cut_short {
                return Err(Refusal::EntryWindowCall);
            }
            continue;
        }
        match inst.flow_control() {
            // The kernel restarts an interrupted system call by stepping back onto its instruction, so that one
            // may not be overwritten even where the address after it is not.
            FlowControl::Call => return Err(Refusal::EntryWindowCall),
            FlowControl::Interrupt if inst.mnemonic() == Mnemonic::Int => {
                return Err(Refusal::EntryWindowCall);
            }
            // What follows is not reached from here; something else may reach it.
            FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Interrupt
            | FlowControl::Exception
                if cut_short =>
            {
                return Err(Refusal::EntryTooShort);
            }
            _ => {}
        }
    }
    Ok(interior)
}

fn is_call(inst: &Instruction) -> bool {
    inst.is_call_near() || inst.is_call_near_indirect() || inst.is_call_far() || inst.is_call_far_indirect()
}

/// Whether anything lands strictly inside.
fn is_targeted(input: &WindowInput, window: AvmaRange) -> bool {
    let inside = AvmaRange::new(window.start.add(1), window.end);
    input.branches.jumps_into(inside).len() > 0
        || input.branches.calls_into(inside).len() > 0
        || input.branches.taken_in(inside).len() > 0
        || input.targets.iter().any(|t| inside.contains(*t))
}

/// Refuses bytes that are somebody else's patch.
fn refuse_foreign(input: &WindowInput, skip: usize) -> Result<(), Refusal> {
    let touched = skip + usize::from(JUMP_LEN);
    if let Some(file) = input.file_bytes {
        let same = input.bytes.iter().zip(file).take(touched).all(|(live, file)| live == file);
        return if same { Ok(()) } else { Err(Refusal::EntryAlreadyPatched) };
    }
    // With no file to compare with: each shape that hooks have, at the entry and after its mark.
    let hooked = [0, skip].into_iter().any(|from| {
        let ip = input.entry.add(from as u64).raw();
        looks_hooked(input.bytes.get(from..).unwrap_or_default(), ip)
    });
    if hooked { Err(Refusal::EntryAlreadyPatched) } else { Ok(()) }
}

/// Whether code starts as hooks do: a breakpoint among the bytes that would be overwritten, `jmp`, `jmp [rip+n]`,
/// `push imm; ret`, or `mov reg, imm64; jmp reg`.
fn looks_hooked(bytes: &[u8], ip: u64) -> bool {
    let mut decoder = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE);
    let first = decoder.decode();
    let second = decoder.decode();
    if is_breakpoint(&first) || first.is_jmp_short_or_near() {
        return true;
    }
    if first.is_jmp_near_indirect() && first.is_ip_rel_memory_operand() {
        return true;
    }
    if first.code() == Code::Pushq_imm32 && second.flow_control() == FlowControl::Return {
        return true;
    }
    if first.code() == Code::Mov_r64_imm64
        && second.is_jmp_near_indirect()
        && second.op0_kind() == OpKind::Register
        && second.op0_register() == first.op0_register()
    {
        return true;
    }
    let window = bytes.get(..bytes.len().min(usize::from(JUMP_LEN) + 15)).unwrap_or_default();
    Decoder::with_ip(64, window, ip, DecoderOptions::NONE)
        .into_iter()
        .take_while(|i| !i.is_invalid() && i.ip().wrapping_sub(ip) < u64::from(JUMP_LEN))
        .any(|i| is_breakpoint(&i))
}

fn is_breakpoint(inst: &Instruction) -> bool {
    matches!(inst.mnemonic(), Mnemonic::Int3 | Mnemonic::Int1)
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
