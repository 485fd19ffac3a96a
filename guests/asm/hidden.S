// Places inside functions, close behind their entries, that control reaches in ways that no analysis of the
// file shows. One function reads a constant inside an instruction of another. Each function takes a number in
// rdi (1 to 32) and returns a result in rax.
#include "function.inc"

    .text

    // A word of constant data has the second address.
    function h_pointer
    xor %eax, %eax
h_pointer_inside:
    lea 5(%rdi,%rdi,2), %rax
    add $0x12345678, %rax
    imul $0x1003, %rax, %rax
    ret
    end h_pointer

    // A table of label differences, which another function reads, has the second address.
    function h_label
    xor %eax, %eax
h_label_inside:
    lea 7(%rdi,%rdi,4), %rax
    sub $0x1234567, %rax
    ret
    end h_label

    // Two bytes behind a trap hide the jump back from a linear disassembly.
    function h_back
    xor %eax, %eax
1:  add %rdi, %rax
    imul $0x10001, %rax, %rax
    dec %rdi
    jnz 3f
    ret
    ud2
    .byte 0x48, 0xb8
3:  jmp 1b
    .skip 8, 0x90
    end h_back

    // Another function reads the constant in this function's instruction.
    function h_constant
    movabs $0x123456789abcdef, %rax
h_constant_end:
    imul %rdi, %rax
    ret
    end h_constant

    function h_constant_read
    mov h_constant_end-8(%rip), %rax
    imul %rdi, %rax
    ret
    end h_constant_read

    // A word of constant data has the address of the second byte of the first instruction. Without its
    // prefix, the instruction adds only 32 bits.
    function h_prefix
    .byte 0x48, 0x81, 0xc7 // add $0x12345678, %rdi
    .long 0x12345678
    lea (%rdi,%rdi,2), %rax
    ret
    end h_prefix

    .p2align 3
#ifdef __PIC__
    .section .data.rel.ro, "aw", @progbits
#else
    .section .rodata
#endif
    .p2align 3
    .globl h_pointer_word
h_pointer_word:
    .quad h_pointer_inside
    .globl h_prefix_word
h_prefix_word:
    .quad h_prefix + 1
    .section .rodata
    .p2align 3
    .globl h_label_table
h_label_table:
    .long h_label_inside - h_label_table
    .long h_label_inside - h_label_table

    .section .note.GNU-stack, "", @progbits
