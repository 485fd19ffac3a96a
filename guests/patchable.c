// Function entries made for other patchers: endbr64, and then nops.
//#Lang: c
//#Flags: -fcf-protection=full -fpatchable-function-entry=5
#include "guest.h"

APART uint64_t small(uint64_t x) { return x + 1; }
APART uint64_t branchy(uint64_t x) { return (x & 1) ? small(x) * 3 : x >> 1; }
APART uint64_t switched(uint64_t x) {
    switch (x % 7) {
    case 0: return branchy(x) + 1;
    case 1: return x ^ (x >> 5);
    case 2: return small(x);
    case 3: return x * 5;
    case 4: return ~x;
    case 5: return x + (x << 3);
    default: return branchy(x);
    }
}
APART uint64_t through(uint64_t (*const f[])(uint64_t), uint64_t x) {
    return f[x % 3](f[(x >> 3) % 3](x));
}

static uint64_t round_once(void) {
    static uint64_t (*const functions[])(uint64_t) = {small, branchy, switched};
    uint64_t x = guest_seed;
    for (int i = 0; i < 20000; i++) x = mix(switched(x), through(functions, x));
    return x;
}

int main(void) { return guest_run("patchable", round_once); }
