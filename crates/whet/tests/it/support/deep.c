// Threads that are always deep in calls, at work or asleep: deep PAGE.
#include "page.h"
#include <alloca.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { THREADS = 5, DEPTH = 20 };

static __thread unsigned self;

APART uint64_t at_the_bottom(uint64_t x) {
    if (self & 1) {
        struct timespec tick = {0, 2000000};
        nanosleep(&tick, NULL);
    }
    for (unsigned i = 0; i < 20000; i++) x = mix(x, i);
    return x;
}

uint64_t dive_plain(unsigned depth, uint64_t x);

// A frame without a fixed size.
APART uint64_t dive_alloca(unsigned depth, uint64_t x) {
    volatile char *room = alloca(16 + (x & 255));
    room[x & 15] = (char)x;
    return dive_plain(depth - 1, x + (uint64_t)room[x & 15]) + (uint64_t)room[0] * 0;
}

// Keeps many registers across the call.
APART uint64_t dive_saving(unsigned depth, uint64_t x) {
    uint64_t a = mix(x, 1), b = mix(x, 2), c = mix(x, 3), d = mix(x, 4), e = mix(x, 5);
    uint64_t r = depth % 3 ? dive_plain(depth - 1, x) : dive_alloca(depth - 1, x);
    return r ^ a ^ b ^ c ^ d ^ e;
}

static int by_dive(const void *a, const void *b) {
    (void)a, (void)b;
    return dive_saving(4, 1) == 0;
}

APART uint64_t dive_plain(unsigned depth, uint64_t x) {
    if (depth < 2) return at_the_bottom(x);
    if (depth == 10) {
        // Through the C library.
        int two[2] = {2, 1};
        qsort(two, 2, sizeof *two, by_dive);
    }
    return mix(dive_saving(depth - 1, x), x);
}

static void *work(void *n) {
    self = (unsigned)(uintptr_t)n;
    while (!page->stop) {
        dive_plain(DEPTH, 1);
        page->work[self] = page->work[self] + 1;
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t t[THREADS];
    if (argc < 2) return 2;
    page_open(argv[1]);
    for (unsigned i = 1; i < THREADS; i++) pthread_create(&t[i], NULL, work, (void *)(uintptr_t)i);
    work(NULL);
    for (unsigned i = 1; i < THREADS; i++) pthread_join(t[i], NULL);
    puts("done");
    return 0;
}
