// Calls through function pointers: in registers and in memory, with one callee, with one that is nearly always
// the same, and with callees that change all the time. Some callers and callees pass values in a scratch
// register, in a flag, and through a pointer relative to that register.
//#Lang: c
//#With: asm/callbacks.S
#include "guest.h"

typedef uint64_t (*function)(uint64_t, uint64_t);

struct object {
    uint64_t value;
    function work;
    function spare[4];
};

uint64_t scratch_callee(uint64_t a, uint64_t b);
uint64_t carry_callee(uint64_t a, uint64_t b);
uint64_t call_with_scratch(const struct object *o, uint64_t a, uint64_t b);
uint64_t call_by_scratch(const struct object *o, uint64_t a, uint64_t b);
uint64_t call_with_carry(const struct object *o, uint64_t a, uint64_t b);

APART uint64_t short_one(uint64_t a, uint64_t b) { return a * 3 + b; }
APART uint64_t with_exit(uint64_t a, uint64_t b) {
    if ((a & 63) == 9) return mix(a, short_one(b, a));
    return a ^ b;
}
APART uint64_t with_calls(uint64_t a, uint64_t b) {
    uint64_t x = mix(a, b);
    for (uint64_t i = a & 3; i; i--) x = mix(x, i);
    return x;
}
APART uint64_t other(uint64_t a, uint64_t b) { return mix(b, a) | 1; }

static function const all[4] = {short_one, with_exit, with_calls, other};

APART uint64_t by_register(function f, uint64_t x, int n) {
    while (n--) x = mix(f(x, (uint64_t)n), x);
    return x;
}
APART uint64_t by_memory(struct object *o, uint64_t x, int n) {
    while (n--) x = mix(o->work(x, o->value), x);
    return x;
}
APART uint64_t by_index(struct object *o, uint64_t x, uint64_t k) {
    return mix(o->spare[k & 3](x, k), o->value);
}
// The callee replaces the pointer through which it is called.
static struct object *volatile turning;
APART uint64_t turns(uint64_t a, uint64_t b) {
    turning->work = (a & 1) ? other : short_one;
    return a + b;
}
APART uint64_t once(struct object *o, uint64_t x) { return o->work(x, o->value) ^ 5; }

static uint64_t round_once(void) {
    uint64_t r = guest_seed, x = 1;
    struct object *o = malloc(sizeof *o);
    CHECK(o);
    *o = (struct object){7, short_one, {with_exit, with_exit, with_exit, with_exit}};
    turning = o;
    for (int i = 0; i < 2000; i++) {
        uint64_t k = next_random(&r);
        // Nearly always the same.
        function rare = all[(k >> 8) & 3];
        x = mix(x, by_register(k % 64 ? with_exit : rare, x, 8));
        o->work = k % 64 ? short_one : rare;
        x = mix(x, by_memory(o, x, 8));
        o->spare[k & 3] = k % 97 ? with_exit : other;
        x = mix(x, by_index(o, x, k));
        // Always another.
        o->work = all[k & 3];
        x = mix(x, once(o, x));
        o->work = turns;
        x = mix(x, once(o, x));
        o->work = scratch_callee;
        CHECK(call_with_scratch(o, x, k) == (x ^ (k * 5)));
        o->work = k % 64 ? short_one : other;
        CHECK(call_by_scratch(o, x, k) == o->work(x, k));
        o->work = carry_callee;
        CHECK(call_with_carry(o, x, k) == x + k + (x < k));
    }
    free(o);
    return x;
}

int main(void) { return guest_run("callbacks", round_once); }
