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
    save rbx
    save rbp
    save r12
    save r13
    save r14
    save r15
    push %rsi
    .cfi_adjust_cfa_offset 8
    .irp register, rax, rbx, rcx, rdx, rsi, rbp, r8, r9, r10, r11, r12, r13, r14, r15
    mov %rdi, %\register
    .endr
1:  call hold_leaf
    decq (%rsp)
    jnz 1b
    .irp register, rbx, rcx, rdx, rsi, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rdi
    rol $7, %rax
    add %\register, %rax
    .endr
    pop %rsi
    .cfi_adjust_cfa_offset -8
    restore r15
    restore r14
    restore r13
    restore r12
    restore rbp
    restore rbx
    ret
    end all_hold

    .section .note.GNU-stack, "", @progbits
