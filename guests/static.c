// A statically linked program: no dynamic loader, no libraries.
//#Lang: c
//#Link: -static
//#Pic: no
//#Refused: no_unwind_lookup
#include "guest.h"

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) {
        switch (x % 7) {
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

static uint64_t round_once(void) {
    char text[64];
    uint64_t x = guest_seed;
    for (int i = 0; i < 1000; i++) {
        x = hot(x, 40);
        snprintf(text, sizeof text, "%llx", (unsigned long long)x);
        x ^= strlen(text);
    }
    return x;
}

int main(void) { return guest_run("static", round_once); }
