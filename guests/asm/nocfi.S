    .text
    .p2align 4
    .globl bare
    .type bare, @function
bare:
    push %rbx
    mov %rdi, %rbx
1:  test $1, %bl
    jz 2f
    lea 77(%rbx,%rbx,4), %rbx
    jmp 3f
2:  ror $1, %rbx
3:  dec %rsi
    jnz 1b
    mov %rbx, %rax
    pop %rbx
    ret
    .size bare, . - bare

    .section .note.GNU-stack, "", @progbits
