// Frames of unknown size (alloca, arrays of variable length), large frames, and over-aligned frames.
//#Lang: c
#include "guest.h"

APART uint64_t fold(const volatile uint8_t *at, unsigned n, uint64_t x) {
    for (unsigned i = 0; i < n; i++) x = (at[i] & 1) ? mix(x, at[i]) : x + at[i];
    return x;
}

APART uint64_t with_alloca(unsigned n, uint64_t x) {
    uint8_t *total[4];
    for (int i = 0; i < 4; i++) {
        total[i] = __builtin_alloca(n + (unsigned)i * 3 + 1);
        memset(total[i], (int)(x >> (i * 8)), n + 1);
        if (n & 1) x += 5;
    }
    for (int i = 0; i < 4; i++) x = fold(total[i], n, x);
    return x;
}

APART uint64_t with_array(unsigned n, uint64_t x) {
    uint8_t array[n + 1];
    for (unsigned i = 0; i <= n; i++) array[i] = (uint8_t)(x >> (i % 56));
    x = fold(array, n + 1, x);
    return n > 4 ? mix(with_array(n / 2, x), array[n / 2]) : x;
}

APART uint64_t large(uint64_t x) {
    volatile uint8_t room[20000];
    for (unsigned i = 0; i < 20000; i += 61) room[i] = (uint8_t)(x + i);
    for (unsigned i = 0; i < 20000; i += 61) x = mix(x, room[i]);
    return x;
}

APART uint64_t aligned(unsigned n, uint64_t x) {
    volatile uint8_t room[64] __attribute__((aligned(256)));
    uint8_t *more = __builtin_alloca(n + 8);
    CHECK(((uintptr_t)room & 255) == 0);
    for (unsigned i = 0; i < 64; i++) room[i] = (uint8_t)(x >> (i & 31));
    memset(more, (int)n, n + 8);
    return fold(room, 64, fold(more, n, x));
}

// A structure passed and returned by value on the stack.
struct block {
    uint64_t words[9];
};
APART struct block by_value(struct block a, struct block b, uint64_t x) {
    for (int i = 0; i < 9; i++) a.words[i] = (b.words[8 - i] & 1) ? a.words[i] + x : b.words[i] ^ x;
    return a;
}

static uint64_t round_once(void) {
    uint64_t r = guest_seed, x = 1;
    struct block a = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, b = {{9, 8, 7, 6, 5, 4, 3, 2, 1}};
    for (int i = 0; i < 200; i++) {
        unsigned n = (unsigned)(next_random(&r) % 200);
        x = mix(x, with_alloca(n, x));
        x = mix(x, with_array(n, x));
        x = mix(x, large(x));
        x = mix(x, aligned(n, x));
        a = by_value(a, b, x);
        b = by_value(b, a, r);
        x = mix(x, a.words[i % 9] ^ b.words[(i + 4) % 9]);
    }
    return x;
}

int main(void) { return guest_run("frames", round_once); }
