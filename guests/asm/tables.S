// Jump tables in forms that no single compiler has all of. In each function, rdi selects, rsi is the value,
// and the result is in rax.
#include "function.inc"

    .text

    // Four-byte entries relative to the table.
    function table_relative
    mov %rsi, %rax
    cmp $4, %rdi
    ja 9f
    lea .Lrelative(%rip), %rdx
    movslq (%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
.Lrel0: lea 1(%rsi), %rax
    ret
.Lrel1: lea (%rsi,%rsi,2), %rax
    ret
.Lrel2: mov %rsi, %rax
    not %rax
    ret
.Lrel3: mov %rsi, %rax
    bswap %rax
9:  ret
    end table_relative

    // Eight-byte absolute entries (relocated in a position-independent program).
    function table_absolute
    mov %rsi, %rax
    cmp $5, %edi
    jae 9f
    mov %edi, %edi
#ifdef __PIC__
    lea .Labsolute(%rip), %rdx
    jmp *(%rdx,%rdi,8)
#else
    jmp *.Labsolute(,%rdi,8)
#endif
.Labs0: add $7, %rax
    ret
.Labs1: sub $9, %rax
    ret
.Labs2: rol $5, %rax
9:  ret
    end table_absolute

    // A byte table gives the index into the table of jumps.
    function table_bytes
    mov %rsi, %rax
    cmp $15, %rdi
    ja 9f
    lea .Lbytes(%rip), %rdx
    movzbl (%rdx,%rdi), %ecx
    lea .Lbytes_jumps(%rip), %rdx
    movslq (%rdx,%rcx,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
.Lb0: add $21, %rax
    ret
.Lb1: xor $22, %rax
    ret
.Lb2: imul $23, %rax, %rax
9:  ret
    end table_bytes

    // One table for two functions: the second jumps into the middle of the first.
    function table_shared_a
    cmp $3, %rdi
    ja .Lshared_default
    lea .Lshared(%rip), %rdx
    movslq (%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
.Ls0: lea 31(%rsi), %rax
    ret
.Ls1: lea (%rsi,%rsi,4), %rax
    ret
.Ls2: mov %rsi, %rax
    ror $7, %rax
    ret
.Lshared_default:
    xor %eax, %eax
    ret
    end table_shared_a

    function table_shared_b
    add $1, %rsi
    cmp $3, %rdi
    ja .Lshared_default
    lea .Lshared(%rip), %rdx
    movslq (%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
    end table_shared_b

    // Two switches of one function over one table base, which stays in one register; two jumps over the same
    // table.
    function table_twice
    cmp $3, %rdi
    ja 9f
    lea .Ltwice(%rip), %rdx
    movslq (%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
.Lt0: add $41, %rsi
    movslq 16(%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
.Lt1: imul $43, %rsi, %rsi
    movslq 16(%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
.Lt2: lea 1(%rsi), %rax
    ret
.Lt3: lea -1(%rsi), %rax
    ret
9:  mov %rsi, %rax
    ret
    end table_twice

    // A table of one entry.
    function table_one
    mov %rsi, %rax
    cmp $0, %rdi
    ja 9f
    lea .Lone(%rip), %rdx
    movslq (%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
    ud2
.Lo0: xor $51, %rax
9:  ret
    end table_one

    function table_notrack
    endbr64
    mov %rsi, %rax
    cmp $3, %rdi
    ja 9f
    lea .Lnotrack(%rip), %rdx
    movslq (%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    notrack jmp *%rcx
.Ln0: add $61, %rax
    ret
.Ln1: xor $62, %rax
    ret
.Ln2: neg %rax
9:  ret
    end table_notrack

    // An entry that is never used points to the first byte behind the function.
    function table_end
    mov %rsi, %rax
    cmp $4, %rdi
    ja 9f
    lea .Lend(%rip), %rdx
    movslq (%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
.Le0: add $71, %rax
    ret
.Le1: xor $72, %rax
9:  ret
    end table_end
.Lafter_end:

    // No bound is compared: the caller keeps to the bound.
    function table_unbounded
    lea .Lunbounded(%rip), %rdx
    movslq (%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
.Lu0: lea 81(%rsi), %rax
    ret
.Lu1: lea 82(%rsi,%rsi), %rax
    ret
.Lu2: mov %rsi, %rax
    ret
    end table_unbounded

    // A table in writable data, which the function itself changes. So its entries must not be taken as
    // constant.
    function table_writable
    mov %rsi, %rax
    cmp $3, %rdi
    ja 9f
    lea .Lwritable(%rip), %rdx
    mov (%rdx), %r8
    mov 8(%rdx), %r9
    mov %r9, (%rdx)
    mov %r8, 8(%rdx)
    mov (%rdx,%rdi,8), %rcx
    mov %r8, (%rdx)
    mov %r9, 8(%rdx)
    jmp *%rcx
.Lw0: add $91, %rax
    ret
.Lw1: xor $92, %rax
    ret
.Lw2: not %rax
9:  ret
    end table_writable

    // A jump by push and ret.
    function table_ret
    mov %rsi, %rax
    cmp $2, %rdi
    ja 9f
    lea .Lret(%rip), %rdx
    movslq (%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    push %rcx
    .cfi_adjust_cfa_offset 8
    ret
    .cfi_adjust_cfa_offset -8
.Lr0: add $101, %rax
    ret
.Lr1: xor $102, %rax
9:  ret
    end table_ret

    .section .rodata
    .p2align 4
.Lrelative: .long .Lrel0 - .Lrelative, .Lrel1 - .Lrelative, .Lrel2 - .Lrelative, .Lrel3 - .Lrelative, .Lrel0 - .Lrelative
.Lbytes: .byte 0, 1, 2, 0, 0, 1, 2, 2, 1, 0, 2, 1, 0, 0, 1, 2
.Lbytes_jumps: .long .Lb0 - .Lbytes_jumps, .Lb1 - .Lbytes_jumps, .Lb2 - .Lbytes_jumps
.Lshared: .long .Ls0 - .Lshared, .Ls1 - .Lshared, .Ls2 - .Lshared, .Lshared_default - .Lshared
.Ltwice: .long .Lt0 - .Ltwice, .Lt1 - .Ltwice, .Lt0 - .Ltwice, .Lt1 - .Ltwice
    .long .Lt2 - .Ltwice, .Lt3 - .Ltwice, .Lt3 - .Ltwice, .Lt2 - .Ltwice
.Lone: .long .Lo0 - .Lone
.Lnotrack: .long .Ln0 - .Lnotrack, .Ln1 - .Lnotrack, .Ln2 - .Lnotrack, .Ln0 - .Lnotrack
.Lend: .long .Le0 - .Lend, .Le1 - .Lend, .Le0 - .Lend, .Le1 - .Lend, .Lafter_end - .Lend
.Lunbounded: .long .Lu0 - .Lunbounded, .Lu1 - .Lunbounded, .Lu2 - .Lunbounded, .Lu0 - .Lunbounded
.Lret: .long .Lr0 - .Lret, .Lr1 - .Lret, .Lr0 - .Lret

    .section .data.rel.ro, "aw", @progbits
    .p2align 3
.Labsolute: .quad .Labs0, .Labs1, .Labs2, .Labs0, .Labs1

    .data
    .p2align 3
.Lwritable: .quad .Lw0, .Lw1, .Lw2, .Lw0

    .section .note.GNU-stack, "", @progbits
