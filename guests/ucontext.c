// Coroutines on heap stacks with swapcontext. Some live as long as the program, suspended deep in hot
// functions.
//#Lang: c
#include "guest.h"
#include <ucontext.h>

#define COROUTINES 8
#define STACK 65536

static struct coroutine {
    ucontext_t here;
    uint64_t in, out;
} all[COROUTINES], fresh;
static ucontext_t scheduler;

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) {
        switch (x & 7) {
        case 0: x += 3; break;
        case 1: x *= 5; break;
        case 2: x ^= x >> 7; break;
        case 3: x = ~x; break;
        case 4: x += x << 3; break;
        case 5: x -= 77; break;
        default: x = mix(x, n);
        }
    }
    return x;
}

APART uint64_t yield_at(struct coroutine *c, unsigned depth, uint64_t x) {
    x = hot(x, 5);
    if (depth == 0) {
        c->out = x;
        swapcontext(&c->here, &scheduler);
        return mix(c->in, x);
    }
    uint64_t below = yield_at(c, depth - 1, x);
    return hot(below ^ x, 5);
}

static void live_long(unsigned i) {
    struct coroutine *c = &all[i];
    for (;;) {
        uint64_t x = yield_at(c, 3 + i, c->in);
        c->out = x;
        swapcontext(&c->here, &scheduler);
    }
}

static void live_once(void) {
    for (unsigned i = 0; i < 4; i++) fresh.in = yield_at(&fresh, i, fresh.in);
    fresh.out = fresh.in;
}

static uint64_t resume(struct coroutine *c, uint64_t value) {
    c->in = value;
    swapcontext(&scheduler, &c->here);
    return c->out;
}

static void make(struct coroutine *c, void (*body)(void), int argc, unsigned i, char *stack) {
    CHECK(getcontext(&c->here) == 0);
    c->here.uc_stack.ss_sp = stack;
    c->here.uc_stack.ss_size = STACK;
    c->here.uc_link = &scheduler;
    makecontext(&c->here, body, argc, i);
}

static uint64_t round_once(void) {
    uint64_t r = guest_seed, x = 1;
    char *stack = malloc(STACK);
    CHECK(stack);
    for (int i = 0; i < 100; i++) {
        // Each is resumed twice: at the yield in the depth, and at the yield in the loop.
        for (int j = 0; j < COROUTINES; j++) x = mix(x, resume(&all[j], next_random(&r)));
        for (int j = COROUTINES; j-- > 0;) x = mix(x, resume(&all[j], next_random(&r)));
        make(&fresh, live_once, 0, 0, stack);
        for (int j = 0; j < 5; j++) x = mix(x, resume(&fresh, x));
    }
    free(stack);
    return x;
}

int main(void) {
    for (unsigned i = 0; i < COROUTINES; i++) {
        char *stack = malloc(STACK);
        CHECK(stack);
        make(&all[i], (void (*)(void))live_long, 1, i, stack);
    }
    return guest_run("ucontext", round_once);
}
