// Threads that stay in one loop for as long as they live, and report from which address its job makes a call.
#include "page.h"
#include <pthread.h>
#include <sys/syscall.h>

enum { STEPS = 1000 };

// In a job or in a clone of it.
APART static void where(uint64_t *from) { *from = (uint64_t)__builtin_return_address(0); }

// Called through a pointer: a function that is seen to call it directly is left alone.
static void (*volatile ask)(uint64_t *) = where;

APART static uint64_t step(uint64_t digest, uint64_t n) { return mix(digest, n); }

// Returns the digest after all steps.
static inline uint64_t wanted(uint64_t digest) {
    for (uint64_t n = 0; n < STEPS; n++) digest = mix(digest, n);
    return digest;
}

// Makes the steps and checks their result, so that each function has its part of the work.
APART static uint64_t job(uint64_t digest, uint64_t *from) {
    uint64_t end = wanted(digest);
    ask(from);
    for (uint64_t n = 0; n < STEPS; n++) digest = step(digest, n);
    if (digest != end) abort();
    return digest;
}

// As a server's, this loop makes few of all calls. The results of the two threads are behind their counters.
APART static void serve(int which, uint64_t rounds) {
    uint64_t digest = (uint64_t)which, from = 0;
    do {
        for (int n = 0; n < 200; n++) {
            uint64_t end = wanted(digest);
            digest = job(digest, &from);
            if (digest != end) abort();
        }
        page->work[2 + which] = from;
        page_count(&page->work[which]);
    } while (--rounds && !page->stop);
}

// Enters and leaves the loop, until it is requested to stay.
static void *second(void *unused) {
    while (!page->go && !page->stop) serve(1, 3);
    page->tid = (uint64_t)syscall(SYS_gettid);
    serve(1, UINT64_MAX);
    return unused;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    page_open(argv[1]);
    pthread_t thread;
    if (pthread_create(&thread, NULL, second, NULL)) abort();
    serve(0, UINT64_MAX);
    return pthread_join(thread, NULL);
}
