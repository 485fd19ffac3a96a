// Four threads walk their stacks all the time by an unwinder that is not libgcc's. On request, a fifth
// descends a stack of frames, stays there until the end is requested, and then walks up. Each walk must see
// as many frames as were called.
//
// With LATER, the fifth thread loads the unwinder when it is requested to descend, and no thread walks before
// the end.
#include "../support/page.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#ifdef LATER
static int (*unw_backtrace)(void **frames, int size);

static void load(void) {
    void *library = dlopen("libunwind.so.8", RTLD_NOW);
    if (library) unw_backtrace = (int (*)(void **, int))dlsym(library, "unw_backtrace");
    if (!unw_backtrace) _exit(4);
}

static int may_walk(void) { return page->stop != 0; }
#else
extern int unw_backtrace(void **frames, int size);

static void load(void) {}

static int may_walk(void) { return 1; }
#endif

static APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x & 2) ? x * 5 + 1 : mix(x, n);
    return x;
}

static APART int depth_here(void) {
    void *frames[64];
    if (!may_walk()) return 0;
    return unw_backtrace(frames, 64);
}

static APART void wait_for(volatile uint64_t *word) {
    while (!*word) usleep(1000);
}

static APART int descend(unsigned depth, uint64_t x, int wait) {
    x = hot(x, 3);
    if (depth == 0) {
        if (wait) {
            page->tid = (uint64_t)gettid();
            wait_for(&page->stop);
        }
        int n = depth_here();
        __asm__ volatile("");
        return n;
    }
    int n = descend(depth - 1, x, wait);
    __asm__ volatile("");
    return n;
}

// The depth while no thread could walk.
enum { UNKNOWN = -1000 };

static APART void must_be(int depth, int base, unsigned calls) {
    if (depth == base + (int)calls || base == UNKNOWN) return;
    printf("mismatch: %d, not %d + %u\n", depth, base, calls);
    fflush(stdout);
    _exit(1);
}

static APART void one_round(int base) {
    for (unsigned d = 0; d < 20; d++) must_be(descend(d, d, 0), base, d);
}

static void *work(void *argument) {
    volatile uint64_t *counter = argument;
    int base = may_walk() ? descend(0, 1, 0) + 1 : UNKNOWN;
    do {
        one_round(base);
        page_count(counter);
    } while (!page->stop);
    one_round(descend(0, 1, 0) + 1);
    return NULL;
}

static void *stay(void *argument) {
    (void)argument;
    wait_for(&page->go);
    load();
    int depth = descend(12, 1, 1);
    must_be(depth, descend(0, 1, 0), 12);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    page_open(argv[1]);
    pthread_t threads[5];
    for (unsigned i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)&page->work[i])) return 3;
    if (pthread_create(&threads[4], NULL, stay, NULL)) return 3;
    for (unsigned i = 0; i < 5; i++) pthread_join(threads[i], NULL);
    puts("walked");
    return 0;
}
