# A 32-bit program that needs no library.
.globl _start
_start:
1:  jmp 1b
.section .note.GNU-stack,"",@progbits
