// Control reaches places close behind the entry of a function in ways that no analysis of the file shows.
// Some code is read as data by other code.
//#Lang: c
//#With: asm/hidden.S
#include "guest.h"

uint64_t h_pointer(uint64_t x);
uint64_t h_label(uint64_t x);
uint64_t h_back(uint64_t x);
uint64_t h_constant(uint64_t x);
uint64_t h_constant_read(uint64_t x);
uint64_t h_prefix(uint64_t x);

typedef uint64_t (*function)(uint64_t);
extern const function h_pointer_word, h_prefix_word;
extern const int32_t h_label_table[2];

static uint64_t by_pointer(uint64_t x) {
    const function *volatile word = &h_pointer_word;
    return (*word)(x);
}

static uint64_t without_prefix(uint64_t x) {
    const function *volatile word = &h_prefix_word;
    return (*word)(x);
}

static uint64_t by_label(uint64_t x) {
    const int32_t *volatile table = h_label_table;
    const int32_t *base = table;
    return ((function)((uintptr_t)base + (uintptr_t)(intptr_t)base[x & 1]))(x);
}

static uint64_t back(uint64_t x) {
    uint64_t sum = 0;
    for (; x > 0; x--) sum = (sum + x) * 0x10001;
    return sum;
}

static uint64_t round_once(void) {
    uint64_t r = guest_seed, x = 1;
    for (int i = 0; i < 20000; i++) {
        uint64_t k = (next_random(&r) & 31) + 1;
        CHECK(h_pointer(k) == (3 * k + 5 + 0x12345678) * 0x1003);
        CHECK(by_pointer(k) == (3 * k + 5 + 0x12345678) * 0x1003);
        CHECK(h_label(k) == 5 * k + 7 - 0x1234567);
        CHECK(by_label(k) == 5 * k + 7 - 0x1234567);
        CHECK(h_back(k) == back(k));
        CHECK(h_constant(k) == 0x123456789abcdef * k);
        CHECK(h_constant_read(k) == 0x123456789abcdef * k);
        uint64_t high = k << 32 | 0xf0000000;
        CHECK(h_prefix(high) == (high + 0x12345678) * 3);
        CHECK(without_prefix(high) == (uint64_t)(uint32_t)(high + 0x12345678) * 3);
        x = mix(x, by_pointer(k) ^ by_label(k) ^ h_back(k));
    }
    return x;
}

int main(void) { return guest_run("hidden", round_once); }
