//! Proofs that a jump table may be cloned, and near misses: pieces of compiler output, one function each.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use crate::support::Program;
use code::{Cfg, Term};
use std::fmt::Write;

/// The jump by the index in rax. Behind it, rax holds the destination and rdx the table's address.
const JUMP: &str = "lea T(%rip), %rdx; movslq (%rdx,%rax,4), %rax; add %rdx, %rax; jmp *%rax";
/// A case that needs no earlier value.
const PLAIN: &str = "mov $5, %eax; ret";

/// A function: its name, whether its table of six may be cloned, the code before the jump, the jump, and its
/// last case. Its other cases return; for any other index it returns at `out`.
struct Case {
    name: &'static str,
    proven: bool,
    code: &'static str,
    jump: &'static str,
    case: &'static str,
}

const fn case(name: &'static str, proven: bool, code: &'static str) -> Case {
    Case { name, proven, code, jump: JUMP, case: PLAIN }
}

const CHECKED: &str = "mov %edi, %eax; cmp $5, %eax; ja out;";

const CASES: &[Case] = &[
    case("plain", true, CHECKED),
    case("one_too_wide", false, "mov %edi, %eax; cmp $5, %ax; ja out;"),
    case("other_way_round", false, "mov %edi, %eax; cmp $5, %eax; jb out;"),
    // Upper halves of registers.
    case("from_vector", true, "movd %xmm0, %eax; cmp $5, %eax; ja out;"),
    case("from_vector_in_whole", false, "movq %xmm0, %rax; cmp $5, %eax; ja out;"),
    case("or_in_32_bits", true, "or %edi, %eax; cmp $5, %eax; ja out;"),
    case("or_in_64_bits", false, "or %rdi, %rax; cmp $5, %eax; ja out;"),
    case("bit_scan_may_leave_it", false, "bsf %edi, %eax; cmp $5, %eax; ja out;"),
    case("bit_scan_in_whole", true, "bsf %edi, %eax; mov %eax, %eax; cmp $5, %eax; ja out;"),
    // One of two values.
    case(
        "either",
        true,
        "mov %edi, %eax; and $15, %eax; and $7, %esi; test $16, %edi; cmovne %rsi, %rax; cmp $5, %eax; ja out;",
    ),
    case(
        "either_may_be_wide",
        false,
        "mov %edi, %eax; and $15, %eax; test $16, %edi; cmovne %rsi, %rax; cmp $5, %eax; ja out;",
    ),
    case("clamped", true, "mov %edi, %eax; mov $5, %ecx; cmp $5, %eax; cmova %ecx, %eax;"),
    case("clamped_from_below", false, "mov %edi, %eax; mov $5, %ecx; cmp $5, %eax; cmovb %ecx, %eax;"),
    case("clamped_another", false, "mov %edi, %eax; mov $5, %ecx; cmp $5, %esi; cmova %ecx, %eax;"),
    // Signed compares.
    case("of_bytes", true, "movzbl (%rdi), %eax; cmp $5, %eax; jg out;"),
    case("of_signed_bytes", false, "movsbl (%rdi), %eax; cmp $5, %eax; jg out; mov %eax, %eax;"),
    case("not_negative", true, "test %edi, %edi; js out; cmp $5, %edi; jg out; mov %edi, %eax;"),
    case("not_less_than_zero", true, "mov %edi, %eax; cmp $0, %eax; jl out; cmp $6, %eax; jge out;"),
    case("maybe_negative", false, "mov %edi, %eax; cmp $-1, %eax; jl out; cmp $5, %eax; jg out;"),
    case("negative", false, "test %edi, %edi; jns out; cmp $5, %edi; jg out; mov %edi, %eax;"),
    // A word of memory that is read again.
    case("again", true, "cmpl $5, 8(%rsi); ja out; mov 8(%rsi), %eax;"),
    case("zeros_between", true, "cmpl $5, 8(%rsi); movb $0, (%rdi); ja out; mov 8(%rsi), %eax;"),
    case("zeros_over_it", true, "cmpl $5, 8(%rsi); movb $0, 9(%rsi); ja out; mov 8(%rsi), %eax;"),
    case("ones_between", false, "cmpl $5, 8(%rsi); movb $1, (%rdi); ja out; mov 8(%rsi), %eax;"),
    case(
        "zeros_then_a_register",
        false,
        "cmpl $5, 8(%rsi); movq $0, (%rdi); mov %cl, (%rdi); ja out; mov 8(%rsi), %eax;",
    ),
    case(
        "a_call_between",
        false,
        "push %rsi; .cfi_def_cfa_offset 16; cmpl $5, 8(%rsi); setbe %bl; call plain; pop %rsi; .cfi_def_cfa_offset 8; test %bl, %bl; je out; mov 8(%rsi), %eax;",
    ),
    // A constant on one of the paths.
    Case {
        case: "jmp 1b",
        ..case(
            "first_a_constant",
            true,
            "mov $5, %eax; jmp 2f; 1: mov (%rdi), %eax; cmp $5, %eax; ja out; 2:",
        )
    },
    Case {
        case: "jmp 1b",
        ..case(
            "first_anything",
            false,
            "mov (%rsi), %eax; jmp 2f; 1: mov (%rdi), %eax; cmp $5, %eax; ja out; 2:",
        )
    },
    // The bound is checked before a loop.
    case(
        "before_a_loop",
        true,
        "mov %edi, %ecx; cmp $5, %ecx; ja out; 1: sub $1, %rsi; je out; mov (%r8,%rsi), %r9; test %r9, %r9; je 1b; mov %rcx, %rax;",
    ),
    case(
        "changed_in_the_loop",
        false,
        "mov %edi, %ecx; cmp $5, %ecx; ja out; 1: add $1, %ecx; sub $1, %rsi; je out; mov (%r8,%rsi), %r9; test %r9, %r9; je 1b; mov %rcx, %rax;",
    ),
    // Registers that the cases read.
    Case { case: "cmp $1, %esi; sete %al; test %al, %al; je out; ret", ..case("lowest_byte", true, CHECKED) },
    Case { case: "cmp $1, %esi; sete %al; test %ax, %ax; je out; ret", ..case("two_bytes", false, CHECKED) },
    Case { case: "cmp $1, %esi; sete %ah; test %al, %al; je out; ret", ..case("other_byte", false, CHECKED) },
    Case { case: "cmp $1, %esi; sete %al; test %ah, %ah; je out; ret", ..case("byte_above", false, CHECKED) },
    Case { case: "or $-1, %rax; test %rax, %rax; je out; ret", ..case("minus_one", true, CHECKED) },
    Case { case: "or $-1, %al; test %eax, %eax; je out; ret", ..case("minus_one_in_a_byte", false, CHECKED) },
    Case { case: "or $1, %rax; test %rax, %rax; je out; ret", ..case("some_bits", false, CHECKED) },
    Case { case: "test %rax, %rax; je out; ret", ..case("destination", false, CHECKED) },
    // The way in which clang reads an absolute table.
    Case { jump: "jmp *A(,%rax,8)", ..case("absolute", true, CHECKED) },
    Case {
        jump: "jmp *A(,%rax,8)",
        ..case("absolute_from_vector_in_whole", false, "movq %xmm0, %rax; cmp $5, %eax; ja out;")
    },
];

/// Returns the assembler text of all cases.
fn text() -> String {
    let mut out = String::from(".globl main\nmain: jmp plain\n");
    for c in CASES {
        let own = |s: &str| {
            let s = s.replace("out", &format!("out_{}", c.name)).replace(" T(", &format!(" T_{}(", c.name));
            s.replace("*A(", &format!("*A_{}(", c.name))
        };
        let n = c.name;
        write!(
            out,
            ".text\n.p2align 4\n.globl {n}\n.type {n}, @function\n{n}: .cfi_startproc\n{}\n{}\n",
            own(c.code),
            own(c.jump)
        )
        .unwrap();
        for i in 0..5 {
            writeln!(out, "c{i}_{n}: mov ${i}, %eax; ret").unwrap();
        }
        writeln!(
            out,
            "c5_{n}: {}\nout_{n}: xor %eax, %eax; ret\n.cfi_endproc\n.size {n}, .-{n}",
            own(c.case)
        )
        .unwrap();
        writeln!(out, ".section .rodata\n.p2align 3\nT_{n}:").unwrap();
        for i in 0..6 {
            writeln!(out, ".long c{i}_{n} - T_{n}").unwrap();
        }
        writeln!(out, ".long 0\n.p2align 3\nA_{n}:").unwrap();
        for i in 0..6 {
            writeln!(out, ".quad c{i}_{n}").unwrap();
        }
        writeln!(out, ".quad 0").unwrap();
    }
    out
}

fn entries(cfg: &Cfg) -> Option<(usize, bool)> {
    let of = |b: &code::Block| match b.term {
        Term::Switch { table } => Some(&cfg.tables[table.index()]),
        _ => None,
    };
    let table = cfg.blocks.iter().find_map(of)?;
    Some((table.targets.len(), table.cloneable.is_some()))
}

#[test]
fn bounds_are_proven_only_where_they_hold() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["-nostartfiles", "-no-pie", "-Wl,-e,main"];
    let p = Program::load(&testkit::build_source("gcc", &flags, dir.path(), "a.s", &text()));
    let mut wrong = Vec::new();
    for c in CASES {
        let cfg = p.analyse(p.function(c.name)).unwrap_or_else(|e| panic!("{}: {e:?}", c.name));
        let got = entries(&cfg);
        let right =
            if c.proven { got == Some((6, true)) } else { got.is_none_or(|(_, cloneable)| !cloneable) };
        if !right {
            wrong.push(format!("{}: {got:?}", c.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
