// Threads that pass work to each other under locks: mutex, condition, rwlock, barrier, semaphore, spin.
//#Lang: c
//#Flags: -pthread
#include "guest.h"
#include <pthread.h>
#include <stdatomic.h>

#define ITEMS 1200
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER, emptied = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static uint64_t queue[16], table[8];
static unsigned head, tail, count;
static atomic_uint_fast64_t consumed;

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x & 32) ? mix(x, n) : x * 7 + (x >> 60);
    return x;
}

static void *producer(void *arg) {
    uint64_t first = (uint64_t)(uintptr_t)arg;
    pthread_barrier_wait(&barrier);
    for (uint64_t i = first; i < ITEMS; i += 2) {
        uint64_t value = hot(i, 30);
        pthread_mutex_lock(&lock);
        while (count == 16) pthread_cond_wait(&emptied, &lock);
        queue[head++ % 16] = value;
        count++;
        pthread_mutex_unlock(&lock);
        pthread_cond_signal(&filled);
    }
    return NULL;
}

static void *consumer(void *arg) {
    (void)arg;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < ITEMS / 2; i++) {
        pthread_mutex_lock(&lock);
        while (count == 0) pthread_cond_wait(&filled, &lock);
        uint64_t value = queue[tail++ % 16];
        count--;
        pthread_mutex_unlock(&lock);
        pthread_cond_signal(&emptied);
        pthread_rwlock_rdlock(&rwlock);
        uint64_t k = table[value & 7];
        pthread_rwlock_unlock(&rwlock);
        atomic_fetch_add(&consumed, hot(value, 30) + k);
        if (i % 64 == 0) {
            pthread_rwlock_wrlock(&rwlock);
            for (int j = 0; j < 8; j++) table[j] = (uint64_t)j * 3;
            pthread_rwlock_unlock(&rwlock);
        }
    }
    return NULL;
}

static uint64_t round_once(void) {
    pthread_t threads[4];
    atomic_store(&consumed, 0);
    for (int j = 0; j < 8; j++) table[j] = (uint64_t)j * 3;
    pthread_barrier_init(&barrier, NULL, 4);
    for (uintptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, i < 2 ? producer : consumer, (void *)(i & 1)) == 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
    return atomic_load(&consumed);
}

int main(void) { return guest_run("handoff", round_once); }
