// Sleds as those of XRay: places in functions, listed in a table and patched while the program runs, also
// after whet has run.
//#Lang: c
//#Patches
#include "guest.h"
#include <sys/mman.h>

extern char *const __start_sleds[], *const __stop_sleds[];
static uint64_t seen;

__attribute__((used)) static void tell(void) { seen++; }

// Keeps all registers except the flags, as a sled's trampoline does.
__asm__(".text\n.type trampoline,@function\ntrampoline:\n"
        ".cfi_startproc\n"
        "lock incq seen(%rip)\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size trampoline,.-trampoline\n");
extern char trampoline[];

#define SLED                                  \
    __asm__ volatile(".balign 8\n"            \
                     "1: .byte 0x0f, 0x1f, 0x44, 0, 0\n" \
                     ".pushsection sleds,\"aw\"\n" \
                     ".balign 8\n"            \
                     ".quad 1b\n"             \
                     ".popsection\n" ::: "memory", "cc")

APART uint64_t traced(uint64_t x, unsigned n) {
    char keep[256];
    __asm__ volatile("" ::"r"(keep) : "memory");
    while (n--) {
        SLED;
        x = (x & 1) ? mix(x, n) : x + 0x9876543;
    }
    SLED;
    return x;
}

static void patch(int on) {
    for (char *const *at = __start_sleds; at < __stop_sleds; at++) {
        uint64_t word;
        memcpy(&word, *at, 8);
        uint64_t now = 0x0000441f0fu;
        if (on) now = 0xe8 | ((uint64_t)(uint32_t)(trampoline - (*at + 5)) << 8);
        word = (word & ~0xffffffffffu) | now;
        __atomic_store_n((uint64_t *)*at, word, __ATOMIC_SEQ_CST);
    }
}

static uint64_t round_once(void) {
    uint64_t x = guest_seed;
    for (int i = 0; i < 4; i++) {
        patch(i & 1);
        seen = 0;
        for (int j = 0; j < 300; j++) x = traced(x, 20);
        CHECK(seen == (i & 1 ? 300 * 21 : 0));
    }
    patch(0);
    return x;
}

int main(void) {
    uintptr_t from = (uintptr_t)traced & ~4095ul, to = ((uintptr_t)traced + 4096) & ~4095ul;
    CHECK(mprotect((void *)from, to + 4096 - from, PROT_READ | PROT_WRITE | PROT_EXEC) == 0 ||
          mprotect((void *)from, to - from, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
    return guest_run("sleds", round_once);
}
