// Rare paths in a separate part (.cold) of the function. They are entered by jumps now and then, and jump
// back.
//#Lang: c
#include "guest.h"

__attribute__((cold, noinline)) static uint64_t repair(uint64_t x, unsigned why) {
    for (unsigned i = 0; i < why; i++) x = mix(x, i);
    return x;
}

APART uint64_t check(const uint64_t *v, unsigned n, uint64_t x) {
    uint64_t a = x, b = ~x, c = 1;
    for (unsigned i = 0; i < n; i++) {
        if (__builtin_expect(v[i] % 61 == 0, 0)) {
            a = repair(a, 3);
            b ^= repair(c, 5);
            if (v[i] & 1) goto out;
            c = a * b;
        }
        if (__builtin_expect((a ^ b) % 127 == 5, 0)) {
            c += repair(b, 2);
            continue;
        }
        a += v[i];
        b = (b << 3) | (b >> 61);
        c = (c & 2) ? c * 3 : c + v[i];
    }
out:
    if (__builtin_expect(c % 97 == 1, 0)) {
        a = repair(a ^ b, 4);
        return repair(a, 1) - c;
    }
    return a ^ b ^ c;
}

static uint64_t round_once(void) {
    uint64_t v[64], r = guest_seed, x = 1;
    for (int i = 0; i < 3000; i++) {
        for (int j = 0; j < 64; j += 4) v[j] = next_random(&r), v[j + 1] = r >> 7, v[j + 2] = r >> 9, v[j + 3] = ~r;
        x = mix(x, check(v, 64, x));
    }
    return x;
}

int main(void) { return guest_run("cold", round_once); }
