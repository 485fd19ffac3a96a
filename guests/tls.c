// Thread-local variables of several models, in several threads.
//#Lang: c
//#Flags: -pthread
#include "guest.h"
#include <errno.h>
#include <pthread.h>

static __thread uint64_t counter = 5;
static __thread uint64_t ring[16];
__thread uint64_t exported_local __attribute__((tls_model("global-dynamic"))) = 9;
static pthread_key_t key;

APART uint64_t *address(unsigned i) { return &ring[i & 15]; }

APART uint64_t step(uint64_t x) {
    counter += x & 7;
    *address((unsigned)counter) ^= x;
    exported_local = exported_local * 3 + ring[counter & 15];
    errno = (int)(x & 63);
    return mix(x, exported_local ^ counter) + (uint64_t)errno;
}

static void *thread(void *arg) {
    uint64_t x = (uint64_t)(uintptr_t)arg;
    counter = x;
    exported_local = 9;
    memset(ring, 0, sizeof ring);
    pthread_setspecific(key, &counter);
    for (int i = 0; i < 6000; i++) x = step(x);
    CHECK(pthread_getspecific(key) == &counter);
    return (void *)(uintptr_t)x;
}

static uint64_t round_once(void) {
    pthread_t threads[4];
    uint64_t digest = 0;
    for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, thread, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        CHECK(pthread_join(threads[i], &result) == 0);
        digest = mix(digest, (uint64_t)(uintptr_t)result);
    }
    return mix(digest, (uint64_t)(uintptr_t)thread((void *)7));
}

int main(void) {
    CHECK(pthread_key_create(&key, NULL) == 0);
    return guest_run("tls", round_once);
}
