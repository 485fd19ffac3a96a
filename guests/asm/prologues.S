// Each function takes a number in rdi (1 to 32) and returns a result in rax. Functions that call others align
// the stack themselves.
#include "function.inc"

    .text

    // Three bytes, and the next function follows directly.
    function p_short
    push %rdi
    .cfi_adjust_cfa_offset 8
    pop %rax
    .cfi_adjust_cfa_offset -8
    ret
    end p_short
    begin p_short_next
    lea 9(%rdi,%rdi,4), %rax
    ret
    end p_short_next
    begin p_two
    xchg %edi, %eax
    ret
    end p_two
    // Five bytes are just enough.
    begin p_five
    lea 1(%rdi), %rax
    ret
    end p_five
    begin p_six
    lea (%rdi,%rdi,2), %eax
    cltq
    ret
    end p_six

    // Loops back to one, two, three, four and five bytes after the entry.
    function p_plus1
    nop
1:  lea 3(%rdi,%rdi,2), %rdi
    test $0x10000, %edi
    jz 1b
    mov %rdi, %rax
    ret
    end p_plus1

    function p_plus2
    xor %eax, %eax
1:  add %rdi, %rax
    dec %rdi
    jnz 1b
    ret
    end p_plus2

    function p_plus3
    mov %rdi, %rax
1:  lea 1(%rax,%rax,4), %rax
    dec %rdi
    jnz 1b
    ret
    end p_plus3

    function p_plus4
    lea 7(%rdi), %rax
1:  imul $3, %rax, %rax
    dec %rdi
    jnz 1b
    ret
    end p_plus4

    function p_plus5
    mov $5, %eax
1:  lea 2(%rax,%rax,8), %rax
    dec %rdi
    jnz 1b
    ret
    end p_plus5

    // Another function jumps three bytes into this one.
    function p_other3
    mov %rdi, %rax
.Lother3:
    not %rax
    lea 5(%rax,%rdi), %rax
    ret
    end p_other3
    function p_into3
    lea 100(%rdi,%rdi), %rax
    test $1, %dil
    jnz .Lother3
    jmp .Lother3
    end p_into3

    // The entry is the head of the loop.
    function p_loop
    lea 1(%rdi,%rdi,2), %rdi
    bt $20, %rdi
    jnc p_loop
    mov %rdi, %rax
    ret
    end p_loop
    function p_loop_endbr
    endbr64
    lea 7(%rdi,%rdi,2), %rdi
    bt $21, %rdi
    jnc p_loop_endbr
    mov %rdi, %rax
    ret
    end p_loop_endbr

    // A call in the first bytes.
    .p2align 4
    .type leaf, @function
leaf:
    .cfi_startproc
    lea 11(%rdi,%rdi,8), %rax
    ret
    .cfi_endproc
    .size leaf, . - leaf
    function p_call
    call leaf
    add %rdi, %rax
    ret
    end p_call
    function p_push_call
    push %rdi
    .cfi_adjust_cfa_offset 8
    call p_helper@PLT
    pop %rdi
    .cfi_adjust_cfa_offset -8
    xor %rdi, %rax
    ret
    end p_push_call
    function p_indirect_call
    lea leaf(%rip), %rax
    save rbx
    mov %rdi, %rbx
    call *%rax
    add %rbx, %rax
    restore rbx
    ret
    end p_indirect_call

    // Addresses relative to rip in the first bytes, also with an immediate after the displacement.
    function p_rip
    mov constant(%rip), %rax
    add %rdi, %rax
    ret
    end p_rip
    function p_rip_lea
    lea constant(%rip), %rax
    mov (%rax), %rax
    xor %rdi, %rax
    ret
    end p_rip_lea
    function p_rip_compare
    cmpl $0x12345678, constant(%rip)
    je 1f
    mov $1, %eax
    ret
1:  lea 2(%rdi), %rax
    ret
    end p_rip_compare
    function p_rip_store
    movl $0x7654, variable(%rip)
    movb $0x11, variable+2(%rip)
    mov variable(%rip), %eax
    add %rdi, %rax
    ret
    end p_rip_store

    function p_endbr
    endbr64
    lea 21(%rdi,%rdi,2), %rax
    ret
    end p_endbr
    function p_endbr_plus
    endbr64
    xor %eax, %eax
1:  lea 3(%rax,%rdi), %rax
    dec %rdi
    jnz 1b
    ret
    end p_endbr_plus
    function p_endbr_rip
    endbr64
    add constant(%rip), %rdi
    mov %rdi, %rax
    ret
    end p_endbr_rip

    function p_nops
    nop
    nop
    nop
    nop
    nop
    lea 31(%rdi), %rax
    ret
    end p_nops
    function p_nop5
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    lea 32(%rdi,%rdi), %rax
    ret
    end p_nop5

    // The first bytes cross a page, or a cache line.
    .p2align 12
    .skip 4096 - 3, 0x90
    begin p_page
    mov %rdi, %rax
    lea 41(%rax,%rax,4), %rax
    ret
    end p_page
    .p2align 12
    .skip 4096 - 1, 0x90
    begin p_page1
    lea 43(%rdi), %rax
    bswap %rax
    ret
    end p_page1
    .p2align 6
    .skip 64 - 2, 0x90
    begin p_line
    xor %eax, %eax
    sub %rdi, %rax
    ret
    end p_line

    // The first instruction is a jump.
    function p_jump
    jmp 1f
    ud2
1:  lea 51(%rdi), %rax
    ret
    end p_jump
    function p_jump_far
    .byte 0xe9
    .long 1f - . - 4
    .skip 140, 0xcc
1:  lea 52(%rdi), %rax
    ret
    end p_jump_far
    function p_tail
    jmp p_five
    end p_tail
    function p_condition
    test $1, %dil
    jz p_five
    lea 53(%rdi), %rax
    ret
    end p_condition
    function p_condition_first
    bt $2, %edi
    jc 1f
    mov $54, %eax
    ret
1:  mov %rdi, %rax
    ret
    end p_condition_first

    // Control falls through into the next function.
    function p_falls
    add $61, %rdi
    rol $3, %rdi
    .cfi_endproc
    .size p_falls, . - p_falls
    begin p_two_entries
    lea 62(%rdi), %rdi
    xor $0x55, %rdi
    .globl p_second_entry
    .type p_second_entry, @function
p_second_entry:
    lea (%rdi,%rdi,2), %rax
    not %rax
    ret
    end p_two_entries

    function p_rep_ret
    lea 71(%rdi), %rax
    rep ret
    end p_rep_ret
    // Pops an argument from the stack on return.
    .p2align 4
    .type ret_imm, @function
ret_imm:
    .cfi_startproc
    mov 8(%rsp), %rax
    add %rdi, %rax
    ret $8
    .cfi_endproc
    .size ret_imm, . - ret_imm
    function p_ret_imm
    push $72
    .cfi_adjust_cfa_offset 8
    call ret_imm
    .cfi_adjust_cfa_offset -8
    ret
    end p_ret_imm

    // Reads its own address by call and pop. The distance must be that of the original.
    function p_own_address
    call 1f
1:  pop %rax
    lea p_own_address(%rip), %rdx
    sub %rdx, %rax
    add %rdi, %rax
    ret
    end p_own_address
    function p_own_label
    lea 1f(%rip), %rax
    lea p_own_label(%rip), %rdx
    sub %rdx, %rax
1:  add %rdi, %rax
    ret
    end p_own_label

    // A jump table leads back into the first five bytes.
    function p_table5
    xor %eax, %eax
    nop
.Lback:
    add $81, %rax
    and $3, %edi
    lea .Ltable(%rip), %rdx
    movslq (%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    dec %edi
    jmp *%rcx
1:  add %rdi, %rax
    ret
    .section .rodata
    .p2align 2
.Ltable: .long 1b - .Ltable, 1b - .Ltable, .Lback - .Ltable, .Lback - .Ltable
    .text
    end p_table5

    function p_prefixed
    .byte 0x66, 0x66, 0x66, 0x90
    .byte 0x3e
    mov %rdi, %rax
    .byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00
    add $91, %rax
    ret
    end p_prefixed
    function p_long
    movabs $0x123456789abcdef0, %rax
    add %rdi, %rax
    ret
    end p_long
    function p_jrcxz
    mov %rdi, %rcx
    jrcxz 1f
    and $3, %ecx
    jrcxz 1f
    lea 93(%rdi), %rax
    ret
1:  mov $94, %eax
    ret
    end p_jrcxz
    // Jumps to its own entry as a tail call.
    function p_self_tail
    sub $1, %rdi
    js 1f
    jnz p_self_tail
1:  lea 95(%rdi), %rax
    ret
    end p_self_tail

    .section .rodata
    .p2align 3
constant: .quad 0x12345678

    .bss
    .p2align 3
variable: .skip 8

    .section .note.GNU-stack, "", @progbits
