// Three threads that compute, throw, run destructors and walk their own stacks. Each round must give the
// digest of the first; in the end that digest is printed.
#include "page.h"
#include <execinfo.h>
#include <pthread.h>
#include <stdexcept>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct Guard {
    uint64_t &at;
    uint64_t value;
    ~Guard() { at = mix(at, value); }
};

extern "C" {
APART uint64_t choose(uint64_t x) {
    switch (x % 11) {
    case 0: return x * 3;
    case 1: return x ^ 0x55;
    case 2: return x + 17;
    case 3: return mix(x, 4);
    case 4: return x >> 3;
    case 5: return x * x;
    case 6: return ~x;
    case 7: return x - 99;
    case 8: return mix(x, x);
    default: return x << 1;
    }
}

APART uint64_t loop(uint64_t x, unsigned n) {
    while (n--) x = (x & 2) ? choose(x) + 1 : mix(x, n);
    return x;
}

APART uint64_t frames(unsigned extra) {
    void *at[64];
    return (uint64_t)backtrace(at, 64) + extra;
}

APART uint64_t descend(unsigned depth, uint64_t x, uint64_t *digest) {
    Guard guard{*digest, depth};
    x = loop(x, 9);
    if (depth == 0) {
        if (x & 1) throw std::runtime_error("thrown");
        if (x & 2) throw x;
        return mix(x, frames(1));
    }
    return mix(descend(depth - 1, x, digest), x);
}

APART uint64_t attempt(unsigned depth, uint64_t digest) {
    try {
        uint64_t x = descend(depth, digest, &digest);
        return mix(digest, x);
    } catch (const std::exception &e) {
        return mix(digest, strlen(e.what()));
    } catch (uint64_t x) {
        return mix(digest, x);
    }
}

APART uint64_t rounds(uint64_t seed) {
    uint64_t digest = seed;
    for (unsigned i = 0; i < 20; i++) digest = attempt(i % 9, digest);
    return digest;
}
}

static uint64_t digests[3];

static void *thread(void *arg) {
    unsigned me = (unsigned)(uintptr_t)arg;
    uint64_t first = rounds(me + 1);
    digests[me] = first;
    while (!page->stop) {
        if (rounds(me + 1) != first) {
            puts("mismatch");
            fflush(stdout);
            _exit(1);
        }
        page_count(&page->work[me]);
    }
    return NULL;
}

int main(int argc, char **argv) {
    page_open(argv[1]);
    // As servers do that keep their heaps on small pages.
    if (argc > 2 && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)) abort();
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, thread, (void *)i);
    for (pthread_t t : threads) pthread_join(t, NULL);
    printf("%016llx\n", (unsigned long long)(digests[0] ^ digests[1] * 3 ^ digests[2] * 5));
    return 0;
}
