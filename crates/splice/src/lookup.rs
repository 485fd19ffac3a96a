//! The lookup by which the unwinder finds the frame tables of clones.
//!
//! libgcc (from GCC 12 on glibc 2.35) calls `_dl_find_object`. In libc this function only loads the address
//! of `_rtld_global_ro` and jumps through one pointer in it: `GLRO (dl_find_object)` in
//! `elf/dl-find_object.c` and `sysdeps/generic/ldsodefs.h` of glibc 2.35. The pointer is redirected to a
//! routine in the anchor. Exceptions, `backtrace` and thread cancellation then find clones, with no code
//! patched and nothing called in the target.

use crate::anchor::{COUNT, REGION_LEN, REGIONS};
use crate::list::{NEXT, PAGE_COUNT, PAGE_NEXT, PAGE_REGIONS, PAGES};
use addr::{Addr, Avma, ReadMemory};

/// The unwinder's lookup, as found in a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FindObject {
    /// The pointer in the dynamic loader's data. `None` in a static program, whose unwinder calls the
    /// function itself.
    pub slot: Option<Avma>,
    /// The value of the pointer: the address of the function.
    pub value: u64,
}

/// Reads libc's exported stub and finds the pointer that it jumps through; `None` if the stub has another
/// shape.
///
/// The shape: an optional `endbr64`, `mov rax, [rip + d]`, `jmp [rax + d]`.
#[must_use]
pub fn decode_stub(mem: &dyn ReadMemory, stub: Avma) -> Option<FindObject> {
    let mut code = [0u8; 32];
    mem.read(stub, &mut code).ok()?;
    let skip = if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) { 4usize } else { 0 };
    let body = &code[skip..];
    if !body.starts_with(&[0x48, 0x8b, 0x05]) {
        return None;
    }
    let disp32 = |o: usize| body.get(o..o + 4).and_then(|b| b.try_into().ok()).map(i32::from_le_bytes);
    let got = stub.add(skip as u64 + 7).offset(i64::from(disp32(3)?));
    let jump = body.get(7..)?;
    let offset = match jump {
        [0xff, 0x60, d, ..] => i64::from(d.cast_signed()),
        [0xff, 0xa0, ..] => i64::from(disp32(9)?),
        _ => return None,
    };
    let global = Avma(mem.u64(got).ok()?);
    let slot = global.offset(offset);
    let value = mem.u64(slot).ok()?;
    (slot.0 % 8 == 0).then_some(FindObject { slot: Some(slot), value })
}

/// Returns the routine that replaces `_dl_find_object`, for the anchor whose data page is at `anchor`.
///
/// For a program counter inside a region of the list it fills `struct dl_find_object` (glibc 2.35,
/// `dlfcn/dlfcn.h`) and returns 0. For any other it jumps to `original` with all argument registers
/// unchanged. It takes no lock, calls nothing, uses no stack, and follows at most [`PAGES`] pages. A region
/// becomes visible by the one store that increases the count of its page, after the region's words are in
/// place.
#[must_use]
pub fn routine(anchor: Avma, original: u64) -> Vec<u8> {
    let byte = |offset: u64| u8::try_from(offset).unwrap_or(0);
    let word = |offset: u64| u32::try_from(offset).unwrap_or(0).to_le_bytes();
    let mut b: Vec<u8> = Vec::with_capacity(192);
    b.extend([0xf3, 0x0f, 0x1e, 0xfa]); // endbr64
    b.extend([0x48, 0xb8]); // mov rax, anchor
    b.extend(anchor.0.to_le_bytes());
    b.extend([0x48, 0x8b, 0x48, byte(COUNT)]); // mov rcx, [rax + COUNT]     regions of this page
    b.extend([0x4c, 0x8b, 0x80]); // mov r8, [rax + NEXT]      the next page
    b.extend(word(NEXT));
    b.extend([0x48, 0x05]); // add rax, REGIONS
    b.extend(word(REGIONS));
    b.extend([0x41, 0xb9]); // mov r9d, PAGES            pages to follow
    b.extend(word(PAGES as u64));
    let page = b.len();
    b.extend([0x48, 0x85, 0xc9]); // test rcx, rcx
    b.extend([0x74, 0]); // jz after
    let empty = b.len();
    let top = b.len();
    b.extend([0x48, 0x8b, 0x10]); // mov rdx, [rax]
    b.extend([0x48, 0x39, 0xd7]); // cmp rdi, rdx
    b.extend([0x72, 0]); // jb next
    let below = b.len();
    b.extend([0x48, 0x3b, 0x78, 0x08]); // cmp rdi, [rax + 8]
    b.extend([0x73, 0]); // jae next
    let above = b.len();
    b.extend([0x48, 0xc7, 0x06, 0, 0, 0, 0]); // mov qword [rsi], 0          dlfo_flags
    b.extend([0x48, 0x89, 0x56, 0x08]); // mov [rsi + 8], rdx                dlfo_map_start
    b.extend([0x48, 0x8b, 0x50, 0x08]); // mov rdx, [rax + 8]
    b.extend([0x48, 0x89, 0x56, 0x10]); // mov [rsi + 16], rdx               dlfo_map_end
    b.extend([0x48, 0xc7, 0x46, 0x18, 0, 0, 0, 0]); // mov qword [rsi + 24], 0   dlfo_link_map
    b.extend([0x48, 0x8b, 0x50, 0x10]); // mov rdx, [rax + 16]
    b.extend([0x48, 0x89, 0x56, 0x20]); // mov [rsi + 32], rdx               dlfo_eh_frame
    b.extend([0x31, 0xc0, 0xc3]); // xor eax, eax; ret
    land(&mut b, below);
    land(&mut b, above);
    b.extend([0x48, 0x83, 0xc0, byte(REGION_LEN)]); // next: add rax, 32
    b.extend([0x48, 0xff, 0xc9]); // dec rcx
    back(&mut b, 0x75, top); // jnz top
    land(&mut b, empty);
    b.extend([0x4d, 0x85, 0xc0]); // after: test r8, r8
    b.extend([0x74, 0]); // jz original
    let last = b.len();
    b.extend([0x41, 0xff, 0xc9]); // dec r9d
    b.extend([0x78, 0]); // js original
    let ring = b.len();
    b.extend([0x49, 0x8b, 0x48, byte(PAGE_COUNT)]); // mov rcx, [r8 + PAGE_COUNT]
    b.extend([0x49, 0x8d, 0x40, byte(PAGE_REGIONS)]); // lea rax, [r8 + PAGE_REGIONS]
    b.extend([0x4d, 0x8b, 0x40, byte(PAGE_NEXT)]); // mov r8, [r8 + PAGE_NEXT]
    back(&mut b, 0xeb, page); // jmp page
    land(&mut b, last);
    land(&mut b, ring);
    b.extend([0x48, 0xb8]); // original: mov rax, original
    b.extend(original.to_le_bytes());
    b.extend([0xff, 0xe0]); // jmp rax
    b
}

/// Makes the short jump that ends at `jump` lead to the current end of the code.
fn land(code: &mut [u8], jump: usize) {
    code[jump - 1] = u8::try_from(code.len() - jump).unwrap_or(0);
}

/// Appends a short jump back to `to`.
fn back(code: &mut Vec<u8>, opcode: u8, to: usize) {
    let distance = u8::try_from(code.len() + 2 - to).unwrap_or(0).wrapping_neg();
    code.extend([opcode, distance]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};

    #[test]
    fn stub_of_glibc_2_36() {
        // As in Debian 12's libc: mov rax,[rip+0x100]; jmp [rax+0x360].
        let mut mem = vec![0u8; 0x1000];
        mem[..7].copy_from_slice(&[0x48, 0x8b, 0x05, 0xf9, 0, 0, 0]);
        mem[7..13].copy_from_slice(&[0xff, 0xa0, 0x60, 3, 0, 0]);
        mem[0x100..0x108].copy_from_slice(&0x1_0400u64.to_le_bytes());
        mem[0x760..0x768].copy_from_slice(&0xabcdu64.to_le_bytes());
        let m = (Avma(0x1_0000), &mem[..]);
        assert_eq!(
            decode_stub(&m, Avma(0x1_0000)),
            Some(FindObject { slot: Some(Avma(0x1_0760)), value: 0xabcd })
        );
        assert_eq!(decode_stub(&m, Avma(0x1_0007)), None);
        assert_eq!(decode_stub(&m, Avma(0)), None);
    }

    #[test]
    fn stub_with_endbr64_and_short_displacement() {
        let mut mem = vec![0u8; 0x200];
        mem[..4].copy_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa]);
        mem[4..11].copy_from_slice(&[0x48, 0x8b, 0x05, 0xf5, 0, 0, 0]);
        mem[11..14].copy_from_slice(&[0xff, 0x60, 0x10]);
        mem[0x100..0x108].copy_from_slice(&0x1_0140u64.to_le_bytes());
        mem[0x150..0x158].copy_from_slice(&7u64.to_le_bytes());
        let m = (Avma(0x1_0000), &mem[..]);
        assert_eq!(
            decode_stub(&m, Avma(0x1_0000)),
            Some(FindObject { slot: Some(Avma(0x1_0150)), value: 7 })
        );
    }

    #[test]
    fn branches_of_the_routine_land_on_instructions() {
        let code = routine(Avma(0x1000), 0x7777_7777);
        let all: Vec<_> = Decoder::with_ip(64, &code, 0x5000, DecoderOptions::NONE).iter().collect();
        assert!(all.iter().all(|i| !i.is_invalid()));
        let jumps: Vec<_> = all.iter().filter(|i| i.op0_kind() == OpKind::NearBranch64).collect();
        assert_eq!(jumps.len(), 7);
        for jump in jumps {
            let to = all.iter().find(|i| i.ip() == jump.near_branch64()).unwrap();
            let wanted = match jump.mnemonic() {
                Mnemonic::Jb | Mnemonic::Jae => Mnemonic::Add,
                Mnemonic::Jne => Mnemonic::Mov,
                Mnemonic::Jmp => Mnemonic::Test,
                Mnemonic::Js => Mnemonic::Mov,
                // The jumps of an empty page, and of the last page.
                _ => to.mnemonic(),
            };
            assert_eq!(to.mnemonic(), wanted, "{jump}");
        }
        let leaves = &all[all.len() - 2];
        assert_eq!((leaves.mnemonic(), leaves.immediate64()), (Mnemonic::Mov, 0x7777_7777));
    }
}
