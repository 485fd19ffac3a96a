#include "function.inc"

    .text
    .globl switch_stack, start_coroutine

    // void switch_stack(void **save, void *to)
    .p2align 4
    .type switch_stack, @function
switch_stack:
    .cfi_startproc
    save rbx
    save rbp
    save r12
    save r13
    save r14
    save r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    restore r15
    restore r14
    restore r13
    restore r12
    restore rbp
    restore rbx
    ret
    .cfi_endproc
    .size switch_stack, . - switch_stack

    // The first frame of a coroutine: no frame is above it.
    .p2align 4
    .type start_coroutine, @function
start_coroutine:
    .cfi_startproc
    .cfi_undefined rip
    mov %r12d, %edi
    call *%rbx
    ud2
    .cfi_endproc
    .size start_coroutine, . - start_coroutine

    .section .note.GNU-stack, "", @progbits
