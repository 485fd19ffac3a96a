//! The routine by which unwinders that iterate over modules find the frame tables of clones.
//!
//! Before glibc 2.35, and in LLVM's and the nongnu libunwind on any glibc, an unwinder calls
//! `dl_iterate_phdr` and looks for `PT_GNU_EH_FRAME` among the program headers that it gets. So the calls of
//! libc's `dl_iterate_phdr` are redirected, permanently, to the routine here. It calls the original with a
//! callback of its own in between. This callback reports each region of the anchor as a module (glibc,
//! `elf/link.h`: `struct dl_phdr_info`).
//!
//! The regions come right after the first real module:
//! - libc holds its lock while callbacks run, and unwinders keep caches that rely on it, so nothing may be
//!   reported after the original has returned;
//! - the first module reported is the program by `dl_iterate_phdr(3)`, so nothing may come before it.
//!
//! The counter of loaded modules (`dlpi_adds`) is reported higher by the number of regions, as callers keep
//! their caches while it stays the same. One difference remains. glibc lists the modules of the caller's
//! namespace, which it finds by the return address. Its caller is now the anchor, which counts as in the
//! program's namespace. Each other namespace has a libc of its own, which is not changed.
//!
//! The routine takes no lock and calls nothing but the original and the callback. The anchor's own table has
//! the frame rules of each of its instructions.

use crate::anchor::{COUNT, NAME, PAGE, REGION_LEN, REGIONS, TARGET, TOTAL};
use crate::list::{NEXT, PAGE_COUNT, PAGE_NEXT, PAGE_REGIONS, PAGES};
use addr::{Addr, Avma, AvmaRange};
use unwind::{CfaRule, CloneFrame, Reg, RegRule, Row};

/// The offset of the routine in the anchor's code page.
pub const AT: u64 = 256;
/// The offset of a region's program headers from the start of its journal (for the anchor's own page: from
/// the anchor).
pub const HEADERS: u64 = 256;
/// `sizeof(struct dl_phdr_info)` since glibc 2.4. With a smaller size, only the modules are reported.
const INFO: u8 = 64;
/// Offsets on the stack of the address of the next page, and of the number of pages that may still follow.
const NEXT_PAGE: u8 = INFO;
const PAGES_LEFT: u8 = INFO + 8;
/// The size of all locals. Bytes.
const LOCALS: u8 = INFO + 16;

const _: () = assert!(HEADERS + 112 <= REGIONS);

const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

/// Returns a region's two `Elf64_Phdr`: its code, and its `.eh_frame_hdr`. Addresses are relative to the
/// start of the code.
#[must_use]
pub fn headers(text: AvmaRange, eh_frame_hdr: AvmaRange) -> Vec<u8> {
    let mut b = Vec::with_capacity(112);
    let hdr_at = eh_frame_hdr.start.0.wrapping_sub(text.start.0);
    for (kind, flags, at, len, align) in
        [(PT_LOAD, 5u32, 0, text.len(), PAGE), (PT_GNU_EH_FRAME, 4, hdr_at, eh_frame_hdr.len(), 4)]
    {
        b.extend(kind.to_le_bytes());
        b.extend(flags.to_le_bytes());
        // p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align
        for word in [0, at, at, len, len, align] {
            b.extend(word.to_le_bytes());
        }
    }
    b
}

/// Returns the bytes of the routine, to lie at [`AT`] in the code page, right before the data page.
#[must_use]
pub fn routine() -> Vec<u8> {
    assemble().bytes
}

/// Returns the routine's frame rules, for a code page at `code_at`.
#[must_use]
pub fn frames(code_at: Avma) -> Vec<CloneFrame> {
    let asm = assemble();
    let end = asm.bytes.len() as u64;
    let at = |o: u64| code_at.add(AT + o);
    let mut frames: Vec<CloneFrame> = Vec::new();
    for (i, step) in asm.steps.iter().enumerate() {
        let next = asm.steps.get(i + 1).map_or(end, |s| s.at);
        let row = step.row(AvmaRange::new(at(step.at), at(next)));
        match frames.last_mut() {
            Some(f) if !step.begins => {
                f.range.end = row.range.end;
                f.rows.push(row);
            }
            _ => frames.push(CloneFrame {
                range: row.range,
                rows: vec![row],
                personality: None,
                lsda: None,
                signal_frame: false,
            }),
        }
    }
    frames
}

/// The frame from one instruction on.
struct Step {
    at: u64,
    /// Whether a routine begins here.
    begins: bool,
    /// The distance from the stack pointer to the canonical frame address. Bytes.
    depth: i64,
    /// The saved registers, ascending, each with its offset from the canonical frame address.
    saved: Vec<(Reg, i64)>,
}

impl Step {
    fn row(&self, range: AvmaRange) -> Row {
        let saved = self.saved.iter().chain([&(Reg::RA, -8)]);
        Row {
            range,
            cfa: CfaRule::RegOffset(Reg::RSP, self.depth),
            regs: saved.map(|&(reg, at)| (reg, RegRule::Offset(at))).collect(),
            args_size: 0,
        }
    }
}

const RBX: Reg = Reg(3);
const R12: Reg = Reg(12);

/// Machine code with its frame rules.
#[derive(Default)]
struct Asm {
    bytes: Vec<u8>,
    steps: Vec<Step>,
}

impl Asm {
    fn here(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Sets the frame from here on.
    fn frame(&mut self, begins: bool, depth: i64, saved: &[(Reg, i64)]) {
        self.steps.push(Step { at: self.here(), begins, depth, saved: saved.to_vec() });
    }

    /// Appends an instruction that ends in the distance from its end to a field of the data page.
    fn field(&mut self, opcode: &[u8], field: u64) {
        self.put(opcode);
        let end = AT + self.here() + 4;
        let distance = u32::try_from(PAGE + field - end).unwrap_or(0);
        self.put(&distance.to_le_bytes());
    }

    /// Appends a short forward jump; returns the argument for [`Asm::land`].
    fn jump(&mut self, opcode: u8) -> usize {
        self.put(&[opcode, 0]);
        self.bytes.len()
    }

    /// Appends a forward jump over more than 127 bytes; returns the argument for [`Asm::land_far`].
    fn far_jump(&mut self, opcode: u8) -> usize {
        self.put(&[0x0f, opcode + 0x10, 0, 0, 0, 0]);
        self.bytes.len()
    }

    /// Makes a jump over more than 127 bytes lead here.
    fn land_far(&mut self, jump: usize) {
        let distance = u32::try_from(self.bytes.len() - jump).unwrap_or(0);
        self.bytes[jump - 4..jump].copy_from_slice(&distance.to_le_bytes());
    }

    /// Appends a short backward jump.
    fn back(&mut self, opcode: u8, to: usize) {
        let distance = u8::try_from(self.bytes.len() + 2 - to).unwrap_or(0).wrapping_neg();
        self.put(&[opcode, distance]);
    }

    /// Makes a jump lead here.
    fn land(&mut self, jump: usize) {
        self.bytes[jump - 1] = u8::try_from(self.bytes.len() - jump).unwrap_or(0);
    }
}

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const JB: u8 = 0x72;
const JE: u8 = 0x74;
const JNE: u8 = 0x75;
const JS: u8 = 0x78;
const JMP: u8 = 0xeb;
const RET: u8 = 0xc3;

/// The registers that `each` saves.
const SAVED: [(Reg, i64); 3] = [(RBX, -24), (Reg::RBP, -16), (R12, -32)];

fn assemble() -> Asm {
    let mut a = Asm::default();
    let to_each = iterate(&mut a);
    each(&mut a, to_each);
    a
}

/// `int dl_iterate_phdr(callback, data)`: passes 24 bytes on the stack, { callback, data, whether the regions
/// were reported }, through the original to `each`. Returns the end of the instruction with the distance to
/// `each`.
fn iterate(a: &mut Asm) -> usize {
    a.frame(true, 8, &[]);
    a.put(&ENDBR64);
    a.put(&[0x48, 0x83, 0xec, 40]); // sub rsp, 40
    a.frame(false, 48, &[]);
    a.put(&[0x48, 0x89, 0x3c, 0x24]); // mov [rsp], rdi
    a.put(&[0x48, 0x89, 0x74, 0x24, 8]); // mov [rsp + 8], rsi
    a.put(&[0x48, 0xc7, 0x44, 0x24, 16, 0, 0, 0, 0]); // mov qword [rsp + 16], 0
    a.put(&[0x48, 0x8d, 0x3d, 0, 0, 0, 0]); // lea rdi, each
    let to_each = a.bytes.len();
    a.put(&[0x48, 0x89, 0xe6]); // mov rsi, rsp
    a.field(&[0xff, 0x15], TARGET); // call the original
    a.put(&[0x48, 0x83, 0xc4, 40]); // add rsp, 40
    a.frame(false, 8, &[]);
    a.put(&[RET]);
    a.bytes.resize(a.bytes.len().next_multiple_of(16), 0xcc);
    to_each
}

/// `int each(info, size, note)`: calls the callback for the module, and after the first module for each
/// region.
fn each(a: &mut Asm, to_each: usize) {
    let each = u32::try_from(a.bytes.len() - to_each).unwrap_or(0);
    a.bytes[to_each - 4..to_each].copy_from_slice(&each.to_le_bytes());
    a.frame(true, 8, &[]);
    a.put(&ENDBR64);
    a.put(&[0x48, 0x83, 0xfe, INFO]); // cmp rsi, 64
    let small = a.jump(JB);
    a.field(&[0x48, 0x8b, 0x05], TOTAL); // mov rax, total
    a.put(&[0x48, 0x01, 0x47, 32]); // add [rdi + 32], rax       dlpi_adds; libc sets it again for each module
    a.put(&[0x48, 0x83, 0x7a, 16, 0]); // cmp qword [rdx + 16], 0
    let first = a.jump(JE);
    a.land(small);
    a.put(&[0x48, 0x8b, 0x02]); // mov rax, [rdx]
    a.put(&[0x48, 0x8b, 0x52, 8]); // mov rdx, [rdx + 8]
    a.put(&[0xff, 0xe0]); // jmp rax

    a.land(first);
    save(a);
    call_back(a);
    let found = a.far_jump(JNE);
    a.put(&[0x48, 0x89, 0x44, 0x24, 48]); // mov [rsp + 48], rax  dlpi_tls_modid: 0, the result (see below)
    a.put(&[0x48, 0x89, 0x44, 0x24, 56]); // mov [rsp + 56], rax  dlpi_tls_data
    let ends = report_regions(a);
    a.land_far(found);
    ends.into_iter().for_each(|jump| a.land(jump));
    restore(a);
}

/// Makes the frame: saves the registers that the loop over regions uses, and begins a `dl_phdr_info`.
fn save(a: &mut Asm) {
    a.put(&[0x55]); // push rbp
    a.frame(false, 16, &[(Reg::RBP, -16)]);
    a.put(&[0x53]); // push rbx
    a.frame(false, 24, &[(RBX, -24), (Reg::RBP, -16)]);
    a.put(&[0x41, 0x54]); // push r12
    a.frame(false, 32, &SAVED);
    // sub rsp, 80: a dl_phdr_info, the next page, how many pages to follow
    a.put(&[0x48, 0x83, 0xec, LOCALS]);
    a.frame(false, 32 + i64::from(LOCALS), &SAVED);
    a.put(&[0x49, 0x89, 0xd4]); // mov r12, rdx
    a.put(&[0x49, 0xc7, 0x44, 0x24, 16, 1, 0, 0, 0]); // mov qword [r12 + 16], 1
    a.put(&[0x48, 0x8b, 0x47, 32]); // mov rax, [rdi + 32]
    a.put(&[0x48, 0x89, 0x44, 0x24, 32]); // mov [rsp + 32], rax  dlpi_adds
    a.put(&[0x48, 0x8b, 0x47, 40]); // mov rax, [rdi + 40]
    a.put(&[0x48, 0x89, 0x44, 0x24, 40]); // mov [rsp + 40], rax  dlpi_subs
}

/// Calls the callback for each region, page by page. Returns the jumps that are taken at the end of the list
/// and when the callback wants no more.
fn report_regions(a: &mut Asm) -> [usize; 3] {
    a.put(&[0x48, 0xc7, 0x44, 0x24, PAGES_LEFT]); // mov qword [rsp + 72], PAGES
    a.put(&u32::try_from(PAGES).unwrap_or(0).to_le_bytes());
    a.field(&[0x48, 0x8b, 0x2d], COUNT); // mov rbp, count       regions of this page
    a.field(&[0x48, 0x8b, 0x05], NEXT); // mov rax, next
    a.field(&[0x48, 0x8d, 0x1d], REGIONS); // lea rbx, regions
    let page = a.bytes.len();
    a.put(&[0x48, 0x89, 0x44, 0x24, NEXT_PAGE]); // mov [rsp + 64], rax
    a.put(&[0x48, 0x85, 0xed]); // test rbp, rbp
    let empty = a.jump(JE);
    let top = a.bytes.len();
    a.put(&[0x48, 0x8b, 0x03]); // mov rax, [rbx]
    a.put(&[0x48, 0x89, 0x04, 0x24]); // mov [rsp], rax          dlpi_addr
    a.field(&[0x48, 0x8d, 0x05], NAME); // lea rax, name
    a.put(&[0x48, 0x89, 0x44, 0x24, 8]); // mov [rsp + 8], rax   dlpi_name
    a.put(&[0x48, 0x8b, 0x43, 24]); // mov rax, [rbx + 24]       the journal
    a.put(&[0x48, 0x05]); // add rax, HEADERS
    a.put(&u32::try_from(HEADERS).unwrap_or(0).to_le_bytes());
    a.put(&[0x48, 0x89, 0x44, 0x24, 16]); // mov [rsp + 16], rax  dlpi_phdr
    a.put(&[0x48, 0xc7, 0x44, 0x24, 24, 2, 0, 0, 0]); // mov qword [rsp + 24], 2   dlpi_phnum
    a.put(&[0x48, 0x89, 0xe7]); // mov rdi, rsp
    a.put(&[0xbe, INFO, 0, 0, 0]); // mov esi, 64
    call_back(a);
    let found_here = a.jump(JNE);
    a.put(&[0x48, 0x83, 0xc3, byte(REGION_LEN)]); // add rbx, 32
    a.put(&[0x48, 0xff, 0xcd]); // dec rbp
    a.back(JNE, top);
    a.land(empty);
    a.put(&[0x48, 0x8b, 0x4c, 0x24, NEXT_PAGE]); // mov rcx, [rsp + 64]
    a.put(&[0x31, 0xc0]); // xor eax, eax                        the result, if no page is left
    a.put(&[0x48, 0x85, 0xc9]); // test rcx, rcx
    let last = a.jump(JE);
    a.put(&[0x48, 0xff, 0x4c, 0x24, PAGES_LEFT]); // dec qword [rsp + 72]
    let ring = a.jump(JS);
    a.put(&[0x48, 0x8b, 0x69, byte(PAGE_COUNT)]); // mov rbp, [rcx + PAGE_COUNT]
    a.put(&[0x48, 0x8b, 0x41, byte(PAGE_NEXT)]); // mov rax, [rcx + PAGE_NEXT]
    a.put(&[0x48, 0x8d, 0x59, byte(PAGE_REGIONS)]); // lea rbx, [rcx + PAGE_REGIONS]
    a.back(JMP, page);
    [found_here, last, ring]
}

/// Restores the registers and returns.
fn restore(a: &mut Asm) {
    a.put(&[0x48, 0x83, 0xc4, LOCALS]); // add rsp, 80
    a.frame(false, 32, &SAVED);
    a.put(&[0x41, 0x5c]); // pop r12
    a.frame(false, 24, &[(RBX, -24), (Reg::RBP, -16)]);
    a.put(&[0x5b]); // pop rbx
    a.frame(false, 16, &[(Reg::RBP, -16)]);
    a.put(&[0x5d]); // pop rbp
    a.frame(false, 8, &[]);
    a.put(&[RET]);
}

/// Converts an offset that fits a byte.
fn byte(offset: u64) -> u8 {
    u8::try_from(offset).unwrap_or(0)
}

/// Calls the stored callback with its data, with `rdi` and `rsi` already set, and compares the result, an
/// `int`, with 0. The result is zero-extended, so that a result of 0 clears all of `rax`.
fn call_back(a: &mut Asm) {
    a.put(&[0x49, 0x8b, 0x54, 0x24, 8]); // mov rdx, [r12 + 8]
    a.put(&[0x41, 0xff, 0x14, 0x24]); // call [r12]
    a.put(&[0x89, 0xc0]); // mov eax, eax
    a.put(&[0x85, 0xc0]); // test eax, eax
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

    const CODE: Avma = Avma(0x7f00_0000_0000);

    fn instructions() -> Vec<Instruction> {
        let bytes = routine();
        let mut decoder = Decoder::with_ip(64, &bytes, CODE.add(AT).0, DecoderOptions::NONE);
        decoder.iter().collect()
    }

    /// Every instruction has exactly the rule that follows from earlier pushes, pops and changes of the stack
    /// pointer.
    #[test]
    fn frame_rules_are_exact() {
        let rows: Vec<Row> = frames(CODE).into_iter().flat_map(|f| f.rows).collect();
        let (mut depth, mut saved) = (8i64, Vec::new());
        for i in instructions() {
            let at = Avma(i.ip());
            let row = rows.iter().find(|r| r.range.contains(at)).unwrap();
            assert_eq!(row.cfa, CfaRule::RegOffset(Reg::RSP, depth), "{at} {i}");
            let mut wanted: Vec<(Reg, RegRule)> = saved.clone();
            wanted.push((Reg::RA, RegRule::Offset(-8)));
            wanted.sort_by_key(|(r, _)| *r);
            assert_eq!(row.regs, wanted, "{at} {i}");
            let number = |r| match r {
                Register::RBX => RBX,
                Register::RBP => Reg::RBP,
                Register::R12 => R12,
                other => panic!("{other:?}"),
            };
            match i.mnemonic() {
                Mnemonic::Push => {
                    depth += 8;
                    saved.push((number(i.op0_register()), RegRule::Offset(-depth)));
                }
                Mnemonic::Pop => {
                    depth -= 8;
                    assert_eq!(saved.pop().unwrap().0, number(i.op0_register()));
                }
                Mnemonic::Sub if i.op0_register() == Register::RSP => depth += i64::from(i.immediate8()),
                Mnemonic::Add if i.op0_register() == Register::RSP => depth -= i64::from(i.immediate8()),
                // The ABI requires a stack pointer that is a multiple of 16 at calls: one word below its
                // value at entry.
                Mnemonic::Call => assert_eq!(depth % 16, 0, "{at} {i}"),
                Mnemonic::Ret => assert_eq!((depth, saved.len()), (8, 0)),
                Mnemonic::Jmp if i.op0_kind() == OpKind::Register => {
                    assert_eq!((depth, saved.len()), (8, 0), "a tail call");
                }
                _ => {}
            }
            // A jump keeps the frame.
            if i.op0_kind() == OpKind::NearBranch64 {
                let to = rows.iter().find(|r| r.range.contains(Avma(i.near_branch64()))).unwrap();
                assert!(to.same_rule(row), "{at} {i}");
            }
        }
    }

    #[test]
    fn jumps_land_on_instructions_and_operands_are_fields() {
        let all = instructions();
        assert!(all.iter().all(|i| !i.is_invalid()));
        let end = CODE.add(AT + routine().len() as u64);
        let data = CODE.add(PAGE);
        let mut fields = Vec::new();
        for i in &all {
            if i.op_count() > 0 && i.op0_kind() == OpKind::NearBranch64 {
                assert!(all.iter().any(|j| j.ip() == i.near_branch64()), "{i}");
            }
            if i.is_ip_rel_memory_operand() {
                let at = Avma(i.ip_rel_memory_address());
                match at.since(data) {
                    Some(field) => fields.push(field),
                    // The routine's own callback.
                    None => assert!(frames(CODE).iter().any(|f| f.range.start == at), "{i}"),
                }
            }
        }
        assert_eq!(fields, vec![TARGET, TOTAL, COUNT, NEXT, REGIONS, NAME]);
        assert!(end < data);
        for f in frames(CODE) {
            let first = all.iter().find(|i| i.ip() == f.range.start.0).unwrap();
            assert_eq!(first.mnemonic(), Mnemonic::Endbr64);
        }
    }

    #[test]
    fn headers_have_the_form_of_a_module() {
        let text = AvmaRange::with_len(Avma(0x5555_0020_0000), 0x20_0000);
        let b = headers(text, AvmaRange::with_len(Avma(0x5555_0040_1230), 44));
        assert_eq!(b.len(), 2 * 56);
        let word = |o: usize| u64::from_le_bytes(b[o..o + 8].try_into().unwrap());
        assert_eq!((word(0), word(16), word(40)), (u64::from(PT_LOAD) | 5 << 32, 0, 0x20_0000));
        assert_eq!((word(56), word(72), word(96)), (u64::from(PT_GNU_EH_FRAME) | 4 << 32, 0x20_1230, 44));
    }
}
