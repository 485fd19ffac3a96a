// Loads that may fault. A table has the address of each and the address at which to continue, as in kernels.
// A handler compares the interrupted program counter with the addresses in the table.
//#Lang: c
#include "guest.h"
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

struct entry {
    uint64_t at, go_on;
};
extern const struct entry __start_fault_table[], __stop_fault_table[];

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    for (const struct entry *e = __start_fault_table; e < __stop_fault_table; e++) {
        if (e->at == (uint64_t)regs[REG_RIP]) {
            regs[REG_RIP] = (greg_t)e->go_on;
            regs[REG_RAX] = 1;
            return;
        }
    }
    guest_fail("a fault at an address that is in no table");
}

APART uint64_t peek(const volatile uint64_t *from, uint64_t otherwise) {
    uint64_t value = otherwise, bad = 0;
    __asm__ volatile("1: movq (%2), %0\n"
                     "2:\n"
                     ".pushsection fault_table,\"aw\"\n"
                     ".balign 8\n"
                     ".quad 1b, 2b\n"
                     ".popsection\n"
                     : "+r"(value), "+a"(bad)
                     : "r"(from)
                     : "memory");
    return bad ? mix(otherwise, 77) : mix(value, otherwise);
}

static volatile uint64_t *good, *bad;

static uint64_t round_once(void) {
    uint64_t x = guest_seed;
    for (int i = 0; i < 3000; i++) x = peek(i % 50 ? good : bad, x);
    return x;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    good = (uint64_t *)pages;
    bad = (uint64_t *)(pages + 4096);
    *good = 5;
    mprotect(pages + 4096, 4096, PROT_NONE);
    return guest_run("fault_table", round_once);
}
