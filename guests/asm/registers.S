#include "function.inc"

    .text

    function hold_leaf
    test %rax, %rax
    js 1f
    test %r15, %r15
    ret
1:  test %r14, %r14
    ret
    end hold_leaf

    // The number of rounds is on the stack. At the end the result is made from all registers.
    function all_hold
    push %rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbx, 0
    push %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbp, 0
    push %r12
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset r12, 0
    push %r13
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset r13, 0
    push %r14
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset r14, 0
    push %r15
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset r15, 0
    push %rsi
    .cfi_adjust_cfa_offset 8
    mov %rdi, %rax
    mov %rdi, %rbx
    mov %rdi, %rcx
    mov %rdi, %rdx
    mov %rdi, %rsi
    mov %rdi, %rbp
    mov %rdi, %r8
    mov %rdi, %r9
    mov %rdi, %r10
    mov %rdi, %r11
    mov %rdi, %r12
    mov %rdi, %r13
    mov %rdi, %r14
    mov %rdi, %r15
1:  call hold_leaf
    decq (%rsp)
    jnz 1b
    rol $7, %rax
    add %rbx, %rax
    rol $7, %rax
    add %rcx, %rax
    rol $7, %rax
    add %rdx, %rax
    rol $7, %rax
    add %rsi, %rax
    rol $7, %rax
    add %rbp, %rax
    rol $7, %rax
    add %r8, %rax
    rol $7, %rax
    add %r9, %rax
    rol $7, %rax
    add %r10, %rax
    rol $7, %rax
    add %r11, %rax
    rol $7, %rax
    add %r12, %rax
    rol $7, %rax
    add %r13, %rax
    rol $7, %rax
    add %r14, %rax
    rol $7, %rax
    add %r15, %rax
    rol $7, %rax
    add %rdi, %rax
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %r15
    .cfi_adjust_cfa_offset -8
    .cfi_restore r15
    pop %r14
    .cfi_adjust_cfa_offset -8
    .cfi_restore r14
    pop %r13
    .cfi_adjust_cfa_offset -8
    .cfi_restore r13
    pop %r12
    .cfi_adjust_cfa_offset -8
    .cfi_restore r12
    pop %rbp
    .cfi_adjust_cfa_offset -8
    .cfi_restore rbp
    pop %rbx
    .cfi_adjust_cfa_offset -8
    .cfi_restore rbx
    ret
    end all_hold

    .section .note.GNU-stack, "", @progbits
