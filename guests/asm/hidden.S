// Places inside functions, close behind their entries, to which control comes in ways that no analysis of the file shows.
// Each function: a number in rdi (1 to 32), a result in rax.
#include "function.inc"

    .text

    // A word of constant data holds the second address.
    function h_pointer
    xor %eax, %eax
h_pointer_inside:
    lea 5(%rdi,%rdi,2), %rax
    add $0x12345678, %rax
    imul $0x1003, %rax, %rax
    ret
    end h_pointer

    // A table of label differences, that another function reads, holds the second address.
    function h_label
    xor %eax, %eax
h_label_inside:
    lea 7(%rdi,%rdi,4), %rax
    sub $0x1234567, %rax
    ret
    end h_label

    // Two bytes behind a trap hide the jump back from whoever decodes one instruction after the other.
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
    .section .rodata
    .p2align 3
    .globl h_label_table
h_label_table:
    .long h_label_inside - h_label_table
    .long h_label_inside - h_label_table

    .section .note.GNU-stack, "", @progbits
