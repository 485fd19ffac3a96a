//! The prologue matrix: each shape that the first bytes of a function can have.

use super::*;
use crate::{Piece, sweep};

const ENTRY: Avma = Avma(0x1000);

/// A function of these bytes at the entry, and code elsewhere that may branch to it.
struct Case<'a> {
    code: &'a [u8],
    entry: Avma,
    elsewhere: (Avma, &'a [u8]),
    file: Option<&'a [u8]>,
    next: Option<u64>,
    targets: &'a [Avma],
}

impl<'a> Case<'a> {
    fn of(code: &'a [u8]) -> Self {
        Case { code, entry: ENTRY, elsewhere: (Avma(0), &[]), file: None, next: None, targets: &[] }
    }

    fn window(&self) -> Result<EntryWindow, Refusal> {
        let part = AvmaRange::with_len(self.entry, self.code.len() as u64);
        let other = AvmaRange::with_len(self.elsewhere.0, self.elsewhere.1.len() as u64);
        let branches = sweep(&[
            Piece { range: part, bytes: self.code },
            Piece { range: other, bytes: self.elsewhere.1 },
        ]);
        entry_window(&WindowInput {
            entry: self.entry,
            part,
            bytes: self.code,
            file_bytes: self.file,
            next_start: self.next.map(|n| self.entry.add(n)),
            branches: &branches,
            targets: self.targets,
        })
    }
}

fn window(code: &[u8]) -> Result<EntryWindow, Refusal> {
    Case::of(code).window()
}

fn at(jump_at: u64, interior: &[u64]) -> Result<EntryWindow, Refusal> {
    let interior = interior.iter().map(|i| ENTRY.add(*i)).collect();
    Ok(EntryWindow { jump_at: ENTRY.add(jump_at), len: 5, interior })
}

const PROLOGUE: [u8; 9] = [0x55, 0x48, 0x89, 0xe5, 0x53, 0x31, 0xc0, 0x5b, 0xc3];

#[test]
fn plain() {
    assert_eq!(window(&PROLOGUE), at(0, &[1, 4]));
    assert_eq!(window(&PROLOGUE).unwrap().range(), AvmaRange::with_len(ENTRY, 5));
    // The last instruction of the window may reach beyond it.
    assert_eq!(window(&[0x90, 0x48, 0x81, 0xec, 0, 1, 0, 0, 0xc3]), at(0, &[1]));
    assert_eq!(window(&[0xb8, 1, 0, 0, 0, 0xc3]), at(0, &[]));
}

#[test]
fn too_short() {
    assert_eq!(window(&[0x31, 0xc0, 0x90, 0xc3]), Err(Refusal::EntryTooShort));
    assert_eq!(window(&[0x31, 0xc0, 0x90, 0x90, 0xc3]), at(0, &[2, 3, 4]));
    // It returns at once; what the rest is, nothing here says.
    assert_eq!(window(&[0x31, 0xc0, 0xc3, 0x90, 0x90]), Err(Refusal::EntryTooShort));
    assert_eq!(window(&[0x0f, 0x0b, 0x90, 0x90, 0x90]), Err(Refusal::EntryTooShort));
    assert_eq!(window(&[0xff, 0xe0, 0x90, 0x90, 0x90]), Err(Refusal::EntryTooShort));
    // Another function begins inside.
    for next in 1..5 {
        let case = Case { next: Some(next), ..Case::of(&PROLOGUE) };
        assert_eq!(case.window(), Err(Refusal::EntryTooShort), "+{next}");
    }
    assert!(Case { next: Some(5), ..Case::of(&PROLOGUE) }.window().is_ok());
    assert!(Case { next: Some(0), ..Case::of(&PROLOGUE) }.window().is_ok());
    assert_eq!(window(&[]), Err(Refusal::EntryTooShort));
}

#[test]
fn targeted_by_a_branch_from_anywhere() {
    let code = [0x90; 16];
    let far = Avma(0x2000);
    for inside in 0..=6u8 {
        let want =
            if (1..5).contains(&inside) { Err(Refusal::EntryWindowTargeted) } else { at(0, &[1, 2, 3, 4]) };
        // From its own end: jne, loop.
        for op in [0x75, 0xe2] {
            let mut own = code;
            own[14..].copy_from_slice(&[op, inside.wrapping_sub(16)]);
            assert_eq!(window(&own), want, "{op:x} +{inside}");
        }
        // From another function: jmp, call, and an address that is computed.
        let target = i32::from(inside) + 0x1000;
        let jmp = [&[0xe9][..], &(target - 0x2005).to_le_bytes()].concat();
        let call = [&[0xe8][..], &(target - 0x2005).to_le_bytes()].concat();
        let lea = [&[0x48, 0x8d, 0x05][..], &(target - 0x2007).to_le_bytes()].concat();
        for from in [&jmp, &call, &lea] {
            let case = Case { elsewhere: (far, from), ..Case::of(&code) };
            assert_eq!(case.window(), want, "{from:x?} +{inside}");
        }
        // From a jump table.
        let targets = [far, ENTRY.add(inside.into())];
        assert_eq!(Case { targets: &targets, ..Case::of(&code) }.window(), want, "table +{inside}");
    }
}

#[test]
fn loop_at_the_entry() {
    // dec edi; jne entry: the branch lands on the jump itself.
    assert_eq!(window(&[0xff, 0xcf, 0x75, 0xfc, 0x90, 0xc3]), at(0, &[2, 4]));
    // nop; dec edi; jne the dec.
    assert_eq!(window(&[0x90, 0xff, 0xcf, 0x75, 0xfc, 0x90, 0xc3]), Err(Refusal::EntryWindowTargeted));
}

#[test]
fn call_at_the_entry() {
    // Its return address is the end of the window.
    assert_eq!(window(&[0xe8, 0, 1, 0, 0, 0xc3]), at(0, &[]));
    // Beyond the end.
    assert_eq!(window(&[0x50, 0xe8, 0, 1, 0, 0, 0xc3]), at(0, &[1]));
    // Inside: call *%rax, call *8(%rax), and after an endbr64.
    assert_eq!(window(&[0xff, 0xd0, 0x90, 0x90, 0x90, 0xc3]), Err(Refusal::EntryWindowCall));
    assert_eq!(window(&[0x90, 0xff, 0x50, 8, 0x90, 0x90, 0xc3]), Err(Refusal::EntryWindowCall));
    let marked = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0xd0, 0x90, 0x90, 0x90, 0xc3];
    assert_eq!(window(&marked), Err(Refusal::EntryWindowCall));
    // call *rip+n is six bytes.
    assert_eq!(window(&[0xff, 0x15, 0, 1, 0, 0, 0xc3]), at(0, &[]));
}

#[test]
fn system_call_in_the_window() {
    // mov al,1; syscall: even where it ends with the window the kernel may step back onto it.
    assert_eq!(window(&[0xb0, 1, 0x0f, 0x05, 0x90, 0xc3]), Err(Refusal::EntryWindowCall));
    assert_eq!(window(&[0x90, 0xb0, 1, 0x0f, 0x05, 0xc3]), Err(Refusal::EntryWindowCall));
    assert_eq!(window(&[0x90, 0xb0, 1, 0xcd, 0x80, 0xc3]), Err(Refusal::EntryWindowCall));
    // mov eax,1; syscall: the common wrapper is fine.
    assert_eq!(window(&[0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xc3]), at(0, &[]));
}

#[test]
fn rip_relative_at_the_entry() {
    assert_eq!(window(&[0x48, 0x8b, 0x05, 0, 1, 0, 0, 0xc3]), at(0, &[]));
    // A computed address that is its own entry.
    assert_eq!(window(&[0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff, 0xc3]), at(0, &[]));
}

#[test]
fn endbr64_stays() {
    let mut code = [&ENDBR64[..], &PROLOGUE].concat();
    assert_eq!(window(&code), at(4, &[5, 8]));
    // Landing on the jump after the mark is fine, in the mark harmless, in the jump not.
    let branch = |code: &mut Vec<u8>, to: u8| {
        let len = code.len();
        code.splice(len - 2.., [0x74, to.wrapping_sub(u8::try_from(len).unwrap())]);
    };
    for to in 0..10 {
        branch(&mut code, to);
        let want = if (5..9).contains(&to) { Err(Refusal::EntryWindowTargeted) } else { at(4, &[5, 8]) };
        assert_eq!(window(&code), want, "+{to}");
    }
    assert_eq!(window(&[&ENDBR64[..], &[0x31, 0xc0, 0xc3]].concat()), Err(Refusal::EntryTooShort));
    assert_eq!(Case { next: Some(8), ..Case::of(&code) }.window(), Err(Refusal::EntryTooShort));
}

#[test]
fn room_left_for_patching() {
    let nops = [&[0x90; 5][..], &PROLOGUE].concat();
    assert_eq!(window(&nops), at(0, &[1, 2, 3, 4]));
    let long_nop = [&[0x0f, 0x1f, 0x44, 0, 0][..], &PROLOGUE].concat();
    assert_eq!(window(&long_nop), at(0, &[]));
    let marked = [&ENDBR64[..], &long_nop].concat();
    assert_eq!(window(&marked), at(4, &[]));
}

#[test]
fn foreign_hooks() {
    let patched = Err(Refusal::EntryAlreadyPatched);
    let hooks: [&[u8]; 8] = [
        &[0xe9, 0, 1, 0, 0],
        &[0xeb, 0x10],
        &[0xff, 0x25, 0, 0, 0, 0],
        &[0x68, 0, 0, 1, 0, 0xc3],
        &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xe0],
        &[0x49, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8, 0x41, 0xff, 0xe3],
        &[0xcc],
        &[0xf1],
    ];
    for hook in hooks {
        let mut live = [0x90; 24].to_vec();
        live.splice(..hook.len(), hook.iter().copied());
        let marked = [&ENDBR64[..], &live].concat();
        assert_eq!(window(&live), patched, "{hook:x?}");
        assert_eq!(window(&marked), patched, "after the mark: {hook:x?}");
        // The file tells: another's, or the function's own.
        assert_eq!(Case { file: Some(&[0x90; 24]), ..Case::of(&live) }.window(), patched, "{hook:x?}");
        assert_ne!(Case { file: Some(&live), ..Case::of(&live) }.window(), patched, "{hook:x?}");
    }
    // A genuine tail call at the entry has room for ours.
    let thunk = [0xe9, 0, 1, 0, 0];
    assert_eq!(Case { file: Some(&thunk), ..Case::of(&thunk) }.window(), at(0, &[]));
    // A genuine short one has not.
    let short = [0xeb, 3, 0x90, 0x90, 0x90, 0xc3];
    assert_eq!(Case { file: Some(&short), ..Case::of(&short) }.window(), Err(Refusal::EntryTooShort));
    // A constant that happens to look like a hook's start does no harm.
    assert_eq!(window(&[0x68, 0, 0, 1, 0, 0x58, 0xc3]), at(0, &[]));
    assert!(window(&[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xe1]).is_ok());
}

#[test]
fn a_change_later_in_the_window() {
    for i in 0..PROLOGUE.len() {
        let mut live = PROLOGUE;
        live[i] ^= 0x20;
        let got = Case { file: Some(&PROLOGUE), ..Case::of(&live) }.window();
        assert_eq!(got == Err(Refusal::EntryAlreadyPatched), i < 5, "+{i}");
    }
    // A probe's int3 on an inner instruction, with no file to tell.
    assert_eq!(window(&[0x55, 0xcc, 0x89, 0xe5, 0x53, 0x5b, 0xc3]), Err(Refusal::EntryAlreadyPatched));
    // The first breakpoint after the window is none of ours.
    assert_eq!(window(&[0x55, 0x48, 0x89, 0xe5, 0x53, 0xcc, 0xc3]), at(0, &[1, 4]));
}

#[test]
fn across_a_page_and_at_the_end_of_memory() {
    let case = Case { entry: Avma(0x1ffe), ..Case::of(&PROLOGUE) };
    assert_eq!(case.window().unwrap().range(), AvmaRange::new(Avma(0x1ffe), Avma(0x2003)));
    let case = Case { entry: Avma(u64::MAX - 2), ..Case::of(&PROLOGUE) };
    assert_eq!(case.window(), Err(Refusal::EntryTooShort));
}

#[test]
fn no_instruction() {
    assert_eq!(window(&[0x90, 0x06, 0x90, 0x90, 0x90, 0x90]), Err(Refusal::BadInstruction));
    // The last instruction is cut off by the end of the function.
    assert_eq!(window(&[0x90, 0x90, 0x48, 0x81, 0xec]), Err(Refusal::BadInstruction));
}

#[test]
fn any_bytes_give_an_answer() {
    arbtest::arbtest(|u| {
        let entry = Avma(u.arbitrary()?);
        let file: Option<Vec<u8>> = u.arbitrary()?;
        let code: Vec<u8> = u.arbitrary()?;
        let case = Case { entry, file: file.as_deref(), next: u.arbitrary()?, ..Case::of(&code) };
        if let Ok(w) = case.window() {
            assert!(w.interior.iter().all(|i| w.range().contains(*i) && *i != w.jump_at));
        }
        Ok(())
    })
    .budget_ms(1000);
}
