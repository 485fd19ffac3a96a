// Instructions with branches of their own (loop, jrcxz, rep), and flags that are live across edges.
//#Lang: c
//#With: asm/loops.S
#include "guest.h"

uint64_t loop_sum(const uint64_t *v, uint64_t n);
uint64_t loop_until(const uint8_t *v, uint64_t n, uint64_t byte);
uint64_t loop_while(const uint8_t *v, uint64_t n, uint64_t byte);
uint64_t count_rcx(uint64_t n);
uint64_t count_ecx(uint64_t n);
uint64_t rep_all(uint8_t *to, const uint8_t *from, uint64_t n);
uint64_t scan(const uint8_t *at, uint64_t byte, uint64_t n);
uint64_t same(const uint8_t *a, const uint8_t *b, uint64_t n);
void backwards(uint8_t *to, const uint8_t *from, uint64_t n);
uint64_t carry_chain(uint64_t *a, const uint64_t *b, uint64_t n);
uint64_t flags_kept(uint64_t a, uint64_t b);
uint64_t translate(const uint8_t *table, uint64_t value);
uint64_t swap_loop(volatile uint64_t *at, uint64_t value);
uint64_t entered(uint64_t value);
uint64_t parity(uint64_t value);

static uint64_t round_once(void) {
    static uint64_t words[33], more[33], cell;
    static uint8_t bytes[264], copy[264], table[256];
    uint64_t r = guest_seed, x = 1;
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(i * 7 + 3);
    for (int i = 0; i < 400; i++) {
        for (int j = 0; j < 33; j++) words[j] = next_random(&r), more[j] = ~r << (j & 7);
        memcpy(bytes, words, sizeof bytes);
        uint64_t n = 1 + r % 32;
        x = mix(x, loop_sum(words, n));
        x = mix(x, loop_until(bytes, n * 8, bytes[r % 200]));
        x = mix(x, loop_while(bytes, n * 8, bytes[0]));
        x = mix(x, count_rcx(n) + count_ecx(n) + count_rcx(0) + count_ecx(0));
        x = mix(x, rep_all(copy, bytes, n * 8));
        CHECK(memcmp(copy, bytes, n * 8) == 0);
        x = mix(x, scan(bytes, bytes[r % 260], 260));
        x = mix(x, same(bytes, copy, n * 8));
        backwards(copy, bytes, n * 8);
        for (uint64_t j = 0; j < n * 8; j++) CHECK(copy[j] == bytes[j]);
        x = mix(x, carry_chain(words, more, n));
        x = mix(x, words[n - 1]);
        x = mix(x, flags_kept(r, x) + flags_kept(x, x));
        x = mix(x, translate(table, r & 255));
        cell = r;
        x = mix(x, swap_loop(&cell, x) + cell);
        x = mix(x, entered(r) + parity(r));
    }
    return x;
}

int main(void) { return guest_run("loops", round_once); }
