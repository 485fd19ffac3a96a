// A load of many kinds. Each kind runs functions of its own, and takes other paths through the functions that
// all kinds share. The test selects the kind by `go`. Each kind's first digest must come back whenever the
// kind does.
#include "page.h"
#include <stdio.h>

#define KINDS 32

APART static uint64_t shared(uint64_t x, unsigned kind) {
    for (unsigned i = 0; i < 40; i++) {
        if (x >> (kind & 31) & 1) x = mix(x, i);
        else if (kind & 1) x = x * 3 + i;
        else x ^= x >> 7 | i;
    }
    return x;
}

#define KIND(k) \
    APART static uint64_t inner_##k(uint64_t x) { \
        for (unsigned i = 0; i < 60; i++) x = (x & (k + 3)) ? mix(x, k) : x * (2 * k + 3) + i; \
        return x; \
    } \
    APART static uint64_t outer_##k(uint64_t x) { \
        for (unsigned i = 0; i < 30; i++) x = mix(inner_##k(x), i) ^ (i % 8 ? 0 : shared(x, k)); \
        return x; \
    }
#define ALL(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) \
    X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
ALL(KIND)
#define NAME(k) outer_##k,
static uint64_t (*const kinds[KINDS])(uint64_t) = {ALL(NAME)};

int main(int argc, char **argv) {
    static uint64_t digests[KINDS];
    page_open(argv[1]);
    while (!page->stop) {
        unsigned kind = page->go % KINDS;
        uint64_t digest = kind;
        for (unsigned i = 0; i < 200; i++) digest = kinds[kind](digest);
        if (digests[kind] && digests[kind] != digest) {
            puts("mismatch");
            fflush(stdout);
            _exit(1);
        }
        digests[kind] = digest;
        page_count(&page->work[0]);
    }
    return 0;
}
