// Hand-written jump tables: absolute and relative entries, tables of byte indices, shared and odd tables.
//#Lang: c
//#With: asm/tables.S
#include "guest.h"

uint64_t table_relative(uint64_t k, uint64_t x);
uint64_t table_absolute(uint64_t k, uint64_t x);
uint64_t table_bytes(uint64_t k, uint64_t x);
uint64_t table_shared_a(uint64_t k, uint64_t x);
uint64_t table_shared_b(uint64_t k, uint64_t x);
uint64_t table_twice(uint64_t k, uint64_t x);
uint64_t table_one(uint64_t k, uint64_t x);
uint64_t table_notrack(uint64_t k, uint64_t x);
uint64_t table_end(uint64_t k, uint64_t x);
uint64_t table_unbounded(uint64_t k, uint64_t x);
uint64_t table_writable(uint64_t k, uint64_t x);
uint64_t table_ret(uint64_t k, uint64_t x);

static uint64_t round_once(void) {
    uint64_t r = guest_seed, x = 1;
    for (int i = 0; i < 8000; i++) {
        uint64_t k = next_random(&r);
        x = mix(x, table_relative(k % 6, x));
        x = mix(x, table_absolute((k >> 3) % 6, x));
        x = mix(x, table_bytes((k >> 5) % 18, x));
        x = mix(x, table_shared_a((k >> 7) % 6, x));
        x = mix(x, table_shared_b((k >> 9) % 6, x));
        x = mix(x, table_twice((k >> 11) % 6, x));
        x = mix(x, table_one((k >> 13) % 3, x));
        x = mix(x, table_notrack((k >> 15) % 6, x));
        x = mix(x, table_end((k >> 17) % 4, x));
        x = mix(x, table_unbounded((k >> 19) % 4, x));
        x = mix(x, table_writable((k >> 21) % 5, x));
        x = mix(x, table_ret((k >> 23) % 4, x));
    }
    return x;
}

int main(void) { return guest_run("tables", round_once); }
