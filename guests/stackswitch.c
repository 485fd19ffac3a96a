// Coroutines with a hand-written stack switch.
//#Lang: c
//#With: asm/stackswitch.S
#include "guest.h"

#define COROUTINES 6
#define STACK 32768

void switch_stack(void **save, void *to);
void start_coroutine(void);

static void *main_stack, *stacks[COROUTINES];
static uint64_t in, out;

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x & 4) ? mix(x, n) : (x << 1) + 0x1111;
    return x;
}

APART uint64_t deep(unsigned i, unsigned depth, uint64_t x) {
    uint64_t y = hot(x, 6);
    if (depth) {
        uint64_t z = deep(i, depth - 1, y);
        return mix(z, x);
    }
    out = y;
    switch_stack(&stacks[i], main_stack);
    return hot(y ^ in, 6);
}

void body(unsigned i) {
    for (;;) {
        out = deep(i, i * 2, in);
        switch_stack(&stacks[i], main_stack);
    }
}

static uint64_t resume(unsigned i, uint64_t value) {
    in = value;
    switch_stack(&main_stack, stacks[i]);
    return out;
}

static uint64_t round_once(void) {
    uint64_t r = guest_seed, x = 1;
    for (int i = 0; i < 1500; i++)
        for (unsigned j = 0; j < 2 * COROUTINES; j++) x = mix(x, resume(j % COROUTINES, next_random(&r)));
    return x;
}

int main(void) {
    for (uintptr_t i = 0; i < COROUTINES; i++) {
        char *stack = aligned_alloc(64, STACK);
        CHECK(stack);
        void **top = (void **)(stack + STACK);
        *--top = NULL;
        *--top = (void *)start_coroutine;
        *--top = (void *)body; // rbx
        *--top = NULL;         // rbp
        *--top = (void *)i;    // r12
        *--top = NULL, *--top = NULL, *--top = NULL;
        stacks[i] = top;
    }
    return guest_run("stackswitch", round_once);
}
