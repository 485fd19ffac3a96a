// A shared library of the program: calls both ways through PLT and GOT, by pointer, and to its data.
//#Lang: c
//#Linked: lib/shared.c
//#Link: -rdynamic
#include "guest.h"

uint64_t shared_work(uint64_t x, unsigned n);
uint64_t shared_with(uint64_t (*each)(uint64_t), uint64_t x);
extern uint64_t shared_data;

__attribute__((visibility("default"))) APART uint64_t program_work(uint64_t x) {
    return (x & 1) ? x * 3 + 1 : mix(x, 5);
}

static uint64_t round_once(void) {
    uint64_t x = guest_seed;
    shared_data = 17;
    for (int i = 0; i < 3000; i++) {
        x = shared_work(x, 12);
        x = mix(x, shared_with(program_work, x) + shared_data);
    }
    return x;
}

int main(void) { return guest_run("shared", round_once); }
