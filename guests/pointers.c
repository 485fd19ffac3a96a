// Function pointers keep their identity: they are compared, stored in data, and taken by code before and
// after.
//#Lang: c
#include "guest.h"

typedef uint64_t (*function)(uint64_t);

APART uint64_t one(uint64_t x) { return x * 3 + 1; }
APART uint64_t two(uint64_t x) { return x ^ (x >> 13); }
APART uint64_t three(uint64_t x) { return (x & 1) ? ~x : x + 99; }
APART uint64_t four(uint64_t x) { return mix(x, 4); }

static function const constant[] = {one, two, three, four};
static function kept[4];

APART function choose(uint64_t k) {
    switch (k & 3) {
    case 0: return one;
    case 1: return two;
    case 2: return three;
    default: return four;
    }
}

APART unsigned which(function f) {
    if (f == one) return 1;
    if (f == two) return 2;
    if (f == three) return 3;
    if (f == four) return 4;
    guest_fail("a pointer to no function");
}

static uint64_t round_once(void) {
    uint64_t r = guest_seed, x = 1;
    if (!kept[0]) memcpy(kept, constant, sizeof kept);
    for (int i = 0; i < 20000; i++) {
        uint64_t k = next_random(&r);
        function f = choose(k), g = constant[k & 3], h = kept[k & 3];
        if (f != g || g != h) guest_fail("pointers to one function differ");
        x = mix(f(x), which(h));
        // The difference of two functions' addresses does not change either.
        static intptr_t distance;
        if (!distance) distance = (intptr_t)two - (intptr_t)one;
        if ((intptr_t)kept[1] - (intptr_t)constant[0] != distance) guest_fail("functions moved");
    }
    return x;
}

int main(void) { return guest_run("pointers", round_once); }
