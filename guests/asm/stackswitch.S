    .text
    .globl switch_stack, start_coroutine

    // void switch_stack(void **save, void *to)
    .p2align 4
    .type switch_stack, @function
switch_stack:
    .cfi_startproc
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
    mov %rsp, (%rdi)
    mov %rsi, %rsp
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
