// All registers hold values that are extreme as numbers, addresses or results of system calls, also while a thread is
// stopped.
//#Lang: c
//#With: asm/registers.S
#include "guest.h"

// Holds `value` in every general register but the stack pointer while a loop runs `count` times.
uint64_t all_hold(uint64_t value, uint64_t count);

static const uint64_t values[] = {
    0x8000000000000000, 0x7fffffffffffffff, 0, -1, 1, 0x80000000, -0x80000000l, 0xffffffff,
    // Errors: EINTR, the kernel's own codes for a restart, the last one and its neighbours.
    -4, -512, -513, -514, -516, -4094, -4095, -4096,
};

static uint64_t round_once(void) {
    uint64_t x = guest_seed;
    for (unsigned i = 0; i < sizeof values / sizeof *values; i++) x = mix(x, all_hold(values[i], 20000));
    return x;
}

int main(void) { return guest_run("registers", round_once); }
