// Puts inline hooks on two functions while it runs, as hooking libraries do, when the test's word `go` is
// odd, and removes them when it is even. Each round checks what the functions compute; a wrong result ends
// the program with 3.
//
// Counters: rounds, calls that reached the hook of `own`, calls that reached the hook of `strtoul`, and how
// often hooks were put on or taken off.
#include "page.h"
#include <stdio.h>
#include <string.h>

// Its second instruction, of seven bytes behind a first of one byte, can carry a redirect. A hook of five
// bytes covers a part of the redirect.
__asm__(".text\n.globl own\n.type own,@function\nown:\n"
        ".cfi_startproc\n"
        "push %rbx\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbx,-16\n"
        "own_second:\n"
        "sub $0x110,%rsp\n"
        ".cfi_adjust_cfa_offset 0x110\n"
        "own_third:\n"
        "mov %rdi,%rbx\n"
        "1: lea 3(%rbx,%rbx,4),%rbx\n"
        "dec %esi\n"
        "jg 1b\n"
        "mov %rbx,%rax\n"
        "add $0x110,%rsp\n"
        ".cfi_adjust_cfa_offset -0x110\n"
        "pop %rbx\n"
        ".cfi_def_cfa_offset 8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size own,.-own\n"
        // The displaced instructions and the jump back, as hooking libraries make them.
        ".type trampoline,@function\ntrampoline:\n"
        "push %rbx\n"
        "sub $0x110,%rsp\n"
        "jmp own_third\n"
        ".size trampoline,.-trampoline\n");
extern uint64_t own(uint64_t x, int rounds);
extern uint64_t trampoline(uint64_t x, int rounds);

static uint64_t (*const volatile by_pointer)(uint64_t, int) = own;

// Only the hooks call it.
static uint64_t hook_of_own(uint64_t x, int rounds) {
    page->work[1] = page->work[1] + 1;
    return trampoline(x, rounds);
}

static unsigned long hook_of_strtoul(const char *text, char **end, int base) {
    (void)end, (void)base;
    unsigned long value = 0;
    page->work[2] = page->work[2] + 1;
    while (*text) value = value * 10 + (unsigned long)(*text++ - '0');
    return value;
}

struct hook {
    unsigned char *at;
    unsigned char saved[14], bytes[14];
    size_t len;
};

static void write_code(unsigned char *at, const unsigned char *bytes, size_t len) {
    unsigned char *from = (unsigned char *)((uintptr_t)at & ~4095ul), *to = at + len;
    if (mprotect(from, (size_t)(to - from), PROT_READ | PROT_WRITE | PROT_EXEC)) _exit(4);
    memcpy(at, bytes, len);
    if (mprotect(from, (size_t)(to - from), PROT_READ | PROT_EXEC)) _exit(4);
}

static void put_on(struct hook *hook) {
    memcpy(hook->saved, hook->at, hook->len);
    write_code(hook->at, hook->bytes, hook->len);
}

static void take_off(struct hook *hook) { write_code(hook->at, hook->saved, hook->len); }

static struct hook make_near(void *at, void *to) {
    struct hook hook = {.at = at, .len = 5, .bytes = {0xe9}};
    int32_t distance = (int32_t)((intptr_t)to - (intptr_t)at - 5);
    memcpy(hook.bytes + 1, &distance, 4);
    return hook;
}

// jmp *0(%rip), and the address.
static struct hook make_far(void *at, void *to) {
    struct hook hook = {.at = at, .len = 14, .bytes = {0xff, 0x25}};
    memcpy(hook.bytes + 6, &to, 8);
    return hook;
}

// A large frame, whose `sub` can carry a redirect, and enough work of its own to be hot.
APART static uint64_t round_of(uint64_t seed) {
    uint64_t sum = 0;
    char words[256];
    for (uint64_t i = 0; i < 50; i++) {
        snprintf(words, sizeof words, "%llu", (unsigned long long)(seed * 77 + i));
        sum = sum * 31 + own(seed + i, (int)i) + by_pointer(i, 7) + strtoul(words, NULL, 10);
        for (int k = 0; k < 400; k++) sum = (sum ^ sum >> 7) * 0x10001;
    }
    return sum;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    page_open(argv[1]);
    uint64_t wanted[4];
    for (uint64_t i = 0; i < 4; i++) wanted[i] = round_of(i);
    struct hook hooks[] = {make_near(own, hook_of_own), make_far(strtoul, hook_of_strtoul)};
    int on = 0;
    for (uint64_t n = 0; !page->stop; n++) {
        if (on != (int)(page->go & 1)) {
            for (int i = 0; i < 2; i++) (on ? take_off : put_on)(&hooks[i]);
            on = !on;
            page->work[3] = page->work[3] + 1;
        }
        if (round_of(n & 3) != wanted[n & 3]) {
            printf("wrong in round %llu\n", (unsigned long long)n);
            return 3;
        }
        page_count(&page->work[0]);
    }
    return 0;
}
