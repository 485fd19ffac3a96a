// Functions for probes and breakpoints. Each round checks what it computes; a wrong result ends the program
// with 3.
#include "page.h"
#include <stdio.h>
#include <string.h>

static uint64_t table[64];

// Has instructions of all lengths, branches and a loop.
APART uint64_t mixed(uint64_t a, uint64_t b) {
    uint64_t sum = a * 0x9e3779b97f4a7c15u;
    char words[320];
    snprintf(words, sizeof words, "%llu %llu", (unsigned long long)a, (unsigned long long)b);
    sum += strtoul(words, NULL, 10) + strlen(words);
    for (uint64_t i = 0; i < (b & 7); i++) {
        table[(a + i) & 63] += sum ^ (b << 3);
        if (table[(a + i) & 63] & 0x100000) sum += 0x12345678;
        else sum ^= table[(b + i) & 63] & 1;
    }
    table[0] = 0;
    memset(table + 1, 0, sizeof table - sizeof *table);
    return sum;
}

// Is entered only through a pointer.
APART uint64_t pointed(uint64_t a) {
    uint64_t big[40];
    memset(big, (int)(a & 0xff), sizeof big);
    return big[a % 40] + 0x123456789abcdef + mixed(a, a >> 3);
}

// A function that returns 2 * a + 3.
#define FORM(name, code)                                                                                           \
    uint64_t name(uint64_t a);                                                                                     \
    asm(".text\n.p2align 4\n.globl " #name "\n.type " #name ", @function\n" #name ":\n.cfi_startproc\n" code         \
        "\nret\n.cfi_endproc\n.size " #name ", . - " #name "\n")

// Each of these has one instruction that can carry a redirect: behind a segment override, behind f2, behind
// an operand-size prefix, behind the opcode of indirect jumps, and in the displacements of jumps to another
// function.
FORM(behind_segment, "mov %edi, %eax\nadd $3, %eax\nmov %fs:0x28, %rdx\nadd %rdi, %rax\nxor %edx, %edx");
FORM(behind_repeat, "mov %rdi, -8(%rsp)\nmovsd -8(%rsp), %xmm0\nmovq %xmm0, %rax\nadd $3, %rax\nadd %rdi, %rax");
FORM(behind_size, "mov %edi, %edx\nmovdqa form_three(%rip), %xmm0\nmovq %xmm0, %rax\nadd %rdx, %rax\nadd %rdi, %rax");
FORM(behind_opcode, "mov %edi, %edx\npush form_three(%rip)\n.cfi_adjust_cfa_offset 8\npop %rax\n.cfi_adjust_cfa_offset -8\n"
                    "add %rdx, %rax\nadd %rdi, %rax");
FORM(jumps_on, "mov %edi, %edi\nnop\nnop\nnop\n.byte 0xe9\n.long behind_segment - . - 4");
FORM(jumps_perhaps, "mov $3, %eax\nnop\nnop\ntest %edi, %edi\n.byte 0x0f, 0x85\n.long behind_segment - . - 4");
asm(".section .rodata\n.p2align 4\nform_three: .quad 3, 0\n.text\n");

static uint64_t (*const volatile forms[])(uint64_t) = {
    behind_segment, behind_repeat, behind_size, behind_opcode, jumps_on, jumps_perhaps,
};

static int forms_are_right(void) {
    for (uint64_t a = 0; a < 20; a++)
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
            if (forms[i](a) != 2 * a + 3) return 0;
    return 1;
}

static uint64_t (*const volatile by_pointer)(uint64_t) = pointed;
static uint64_t (*const volatile by_pointer_too)(uint64_t, uint64_t) = mixed;

APART static uint64_t round_of(uint64_t seed) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 50; i++) sum = sum * 31 + mixed(seed + i, i) + by_pointer(i) + by_pointer_too(i, seed);
    return sum;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    page_open(argv[1]);
    uint64_t wanted[4];
    for (uint64_t i = 0; i < 4; i++) wanted[i] = round_of(i);
    for (uint64_t n = 0; !page->stop; n++) {
        if (round_of(n & 3) != wanted[n & 3] || !forms_are_right()) {
            printf("wrong in round %llu\n", (unsigned long long)n);
            return 3;
        }
        page_count(&page->work[0]);
    }
    return 0;
}
