// Calls through the function pointer at 8(%rdi), with two numbers in rsi and rdx that become the arguments.
#include "function.inc"

    .text

    // Reads r11, which its caller has set.
    function scratch_callee
    lea (%r11,%r11,4), %rax
    xor %rdi, %rax
    ret
    end scratch_callee

    function call_with_scratch
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    mov %rdi, %rax
    mov %rsi, %rdi
    mov %rdx, %rsi
    mov %rdx, %r11
    call *8(%rax)
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
    ret
    end call_with_scratch

    // The pointer's address is in r11.
    function call_by_scratch
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    mov %rdi, %r11
    mov %rsi, %rdi
    mov %rdx, %rsi
    call *8(%r11)
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
    ret
    end call_by_scratch

    // Reads the carry flag, which its caller has set.
    function carry_callee
    lea (%rdi,%rsi), %rax
    adc $0, %rax
    ret
    end carry_callee

    // Sets the carry flag if the first number is less than the second.
    function call_with_carry
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    mov %rdi, %rax
    mov %rsi, %rdi
    mov %rdx, %rsi
    mov 8(%rax), %rax
    cmp %rsi, %rdi
    call *%rax
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
    ret
    end call_with_carry

    .section .note.GNU-stack,"",@progbits
