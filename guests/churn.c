// Threads start and end all the time, joined and detached. Some of them start threads themselves.
//#Lang: c
//#Flags: -pthread
#include "guest.h"
#include <pthread.h>
#include <stdatomic.h>

static atomic_uint_fast64_t total;
static atomic_int detached;

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x & 16) ? mix(x, n) : (x >> 3) + x * 5;
    return x;
}

static void *leaf(void *arg) {
    atomic_fetch_add(&total, hot((uint64_t)(uintptr_t)arg, 20000));
    return NULL;
}

static void *leaf_detached(void *arg) {
    leaf(arg);
    atomic_fetch_sub(&detached, 1);
    return NULL;
}

static void *parent(void *arg) {
    uintptr_t n = (uintptr_t)arg;
    pthread_t children[2];
    for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&children[i], NULL, leaf, (void *)(n * 4 + i)) == 0);
    leaf(arg);
    for (int i = 0; i < 2; i++) pthread_join(children[i], NULL);
    return NULL;
}

static uint64_t round_once(void) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    atomic_store(&total, 0);
    for (uintptr_t i = 0; i < 10; i++) {
        pthread_t a, b, c;
        CHECK(pthread_create(&a, NULL, parent, (void *)(i + 100)) == 0);
        atomic_fetch_add(&detached, 1);
        CHECK(pthread_create(&b, &attr, leaf_detached, (void *)(i + 200)) == 0);
        CHECK(pthread_create(&c, NULL, leaf, (void *)(i + 300)) == 0);
        leaf((void *)i);
        pthread_join(a, NULL);
        pthread_join(c, NULL);
    }
    while (atomic_load(&detached)) usleep(50);
    return atomic_load(&total);
}

int main(void) { return guest_run("churn", round_once); }
