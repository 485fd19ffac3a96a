// Mutual recursion by tail calls, direct and through a table of functions.
//#Lang: c
#include "guest.h"

APART uint64_t odd(unsigned n, uint64_t x);
APART uint64_t even(unsigned n, uint64_t x) {
    if (n == 0) return x;
    return odd(n - 1, x * 3 + 1);
}
APART uint64_t odd(unsigned n, uint64_t x) {
    if (n == 0) return ~x;
    return even(n - 1, x ^ (x >> 9));
}

typedef uint64_t (*state)(const uint8_t *input, uint64_t x);
static state const states[4];

APART uint64_t state_a(const uint8_t *input, uint64_t x) {
    return states[*input & 3](input + 1, x + 5);
}
APART uint64_t state_b(const uint8_t *input, uint64_t x) {
    if (x & 4) return states[*input & 3](input + 1, x * 7);
    return states[(*input >> 2) & 3](input + 1, x ^ 0x99);
}
APART uint64_t state_c(const uint8_t *input, uint64_t x) {
    x = mix(x, *input);
    return states[(*input >> 4) & 3](input + 1, x);
}
APART uint64_t state_end(const uint8_t *input, uint64_t x) {
    return *input == 0xff ? x : states[(*input >> 1) & 1](input + 1, x - 1);
}
static state const states[4] = {state_a, state_b, state_c, state_end};

// A tail call with arguments on the stack.
APART uint64_t many(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
    if (a == 0) return mix(b, c) + mix(d, e) + mix(f, g) + h;
    return many(a - 1, c, d, e, f, g, h, b + a);
}

static uint64_t round_once(void) {
    uint64_t r = guest_seed, x = 1;
    uint8_t input[300];
    for (int i = 0; i < 300; i++) {
        x = mix(x, even((unsigned)(next_random(&r) % 60), x));
        for (int j = 0; j < 200; j++) input[j] = (uint8_t)(next_random(&r) & 0x7f);
        memset(input + 200, 0xff, 100);
        x = mix(x, state_a(input, x));
        x = mix(x, many(r % 40, x, r, 3, 4, 5, 6, 7));
    }
    return x;
}

int main(void) { return guest_run("tailcalls", round_once); }
