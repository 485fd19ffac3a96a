#include "function.inc"

    .text

    function loop_sum
    mov %rsi, %rcx
    xor %eax, %eax
1:  add -8(%rdi,%rcx,8), %rax
    rol $1, %rax
    loop 1b
    ret
    end loop_sum

    // loopne ends at the first match.
    function loop_until
    mov %rsi, %rcx
    lea -1(%rdi), %rax
1:  inc %rax
    cmp %dl, (%rax)
    loopne 1b
    jne 2f
    sub %rdi, %rax
    ret
2:  mov $-1, %rax
    ret
    end loop_until

    function loop_while
    mov %rsi, %rcx
    lea -1(%rdi), %rax
1:  inc %rax
    cmp %dl, (%rax)
    loope 1b
    sub %rdi, %rax
    lea (%rax,%rcx), %rax
    ret
    end loop_while

    function count_rcx
    mov %rdi, %rcx
    xor %eax, %eax
1:  jrcxz 2f
    lea 3(%rax,%rax), %rax
    dec %rcx
    jmp 1b
2:  ret
    end count_rcx

    // jecxz tests only 32 bits.
    function count_ecx
    mov $0x700000000, %rcx
    add %rdi, %rcx
    xor %eax, %eax
1:  jecxz 2f
    lea 5(%rax,%rax,2), %rax
    dec %rcx
    jmp 1b
2:  ret
    end count_ecx

    function rep_all
    mov %rdi, %r8
    mov %rdx, %r9
    mov %rdx, %rcx
    mov $0x5a, %al
    rep stosb
    mov %r8, %rdi
    mov %r9, %rcx
    shr $3, %rcx
    rep movsq
    mov %r8, %rsi
    xor %edx, %edx
    mov %r9, %rcx
    shr $3, %rcx
1:  lodsq
    add %rax, %rdx
    adc $0, %rdx
    loop 1b
    mov %rdx, %rax
    ret
    end rep_all

    function scan
    mov %rdx, %rcx
    mov %esi, %eax
    repne scasb
    jne 1f
    mov %rcx, %rax
    ret
1:  mov $-2, %rax
    ret
    end scan

    function same
    mov %rdx, %rcx
    cmp %ecx, %ecx
    repe cmpsb
    sete %al
    movzbl %al, %eax
    ret
    end same

    function backwards
    mov %rdx, %rcx
    lea -1(%rdi,%rdx), %rdi
    lea -1(%rsi,%rdx), %rsi
    std
    rep movsb
    cld
    ret
    end backwards

    // The carry is live across the loop's back edge: dec and lea do not change it.
    function carry_chain
    mov %rdx, %rcx
    xor %eax, %eax
    clc
1:  mov (%rsi), %r8
    adc %r8, (%rdi)
    lea 8(%rsi), %rsi
    lea 8(%rdi), %rdi
    dec %rcx
    jnz 1b
    adc $0, %rax
    ret
    end carry_chain

    // One compare and four conditional jumps over blocks that keep the flags.
    function flags_kept
    xor %eax, %eax
    cmp %rsi, %rdi
    jo 1f
    lea 1(%rax), %rax
1:  jb 2f
    lea 16(%rax), %rax
    jmp 3f
2:  lea 256(%rax), %rax
3:  jz 4f
    lea 4096(%rax), %rax
4:  setg %cl
    jp 5f
    lea 65536(%rax), %rax
5:  pushfq
    .cfi_adjust_cfa_offset 8
    pop %rdx
    .cfi_adjust_cfa_offset -8
    and $0x8d5, %edx
    movzbl %cl, %ecx
    shl $4, %rdx
    xor %rdx, %rax
    add %rcx, %rax
    ret
    end flags_kept

    function translate
    save rbx
    mov %rdi, %rbx
    mov %esi, %eax
    mov $9, %ecx
1:  xlatb
    sahf
    jc 2f
    add $3, %al
2:  lahf
    xor %ah, %al
    loop 1b
    movzwl %ax, %eax
    restore rbx
    ret
    end translate

    function swap_loop
    mov (%rdi), %rax
1:  lea (%rax,%rsi,2), %rdx
    lock cmpxchg %rdx, (%rdi)
    jne 1b
    lock xadd %rsi, (%rdi)
    lock btsq $5, (%rdi)
    setc %cl
    movzbl %cl, %ecx
    add %rcx, %rax
    ret
    end swap_loop

    // `enter` makes the frame; x87 and a division are in it.
    function entered
    enter $32, $0
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    .cfi_def_cfa_register rbp
    shr $16, %rdi
    mov %rdi, -8(%rbp)
    fildll -8(%rbp)
    fld1
    faddp
    fistpll -16(%rbp)
    mov -16(%rbp), %rax
    cqto
    mov $1000003, %ecx
    idiv %rcx
    shld $7, %rax, %rdx
    mov %rdx, %rax
    leave
    .cfi_def_cfa rsp, 8
    .cfi_restore rbp
    ret
    end entered

    function parity
    xor %eax, %eax
    test %dil, %dil
    jp 1f
    bt $40, %rdi
    jc 2f
    cmovz %rdi, %rax
    jmp 3f
1:  mov $11, %eax
    jmp 3f
2:  mov $13, %eax
3:  bsf %rdi, %rcx
    jz 4f
    add %rcx, %rax
4:  rep ret
    end parity

    .section .note.GNU-stack, "", @progbits
