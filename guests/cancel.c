// pthread_cancel, deferred and asynchronous, and pthread_exit: forced unwinding through hot frames, with
// cleanups.
//#Lang: c
//#Flags: -pthread -fexceptions
#include "guest.h"
#include <pthread.h>
#include <semaphore.h>

struct job {
    sem_t started;
    uint64_t digest;
    int depth;
};

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x & 2) ? mix(x, n) : x * 9 + 5;
    return x;
}

static void cleanup(void *arg) {
    struct job *job = arg;
    job->digest = mix(job->digest, (uint64_t)job->depth--);
}

// Leaves from its depth. Each frame has a cleanup.
APART uint64_t exit_at(struct job *job, unsigned depth, uint64_t x) {
    pthread_cleanup_push(cleanup, job);
    x = hot(x, 10);
    job->depth++;
    if (depth == 0) pthread_exit((void *)(uintptr_t)x);
    x = exit_at(job, depth - 1, x);
    pthread_cleanup_pop(0);
    return x;
}

APART uint64_t wait_at(struct job *job, unsigned depth, uint64_t x) {
    pthread_cleanup_push(cleanup, job);
    x = hot(x, 10);
    job->depth++;
    if (depth == 0) {
        sem_post(&job->started);
        for (;;) {
            x = hot(x, 50);
            pthread_testcancel();
        }
    }
    x = wait_at(job, depth - 1, x);
    pthread_cleanup_pop(0);
    return x;
}

APART uint64_t endless(uint64_t x) {
    for (;;) x = hot(x, 100);
}

static void *exiting(void *arg) {
    exit_at(arg, 8, 5);
    guest_fail("pthread_exit came back");
}

static void *waiting(void *arg) {
    wait_at(arg, 8, 7);
    guest_fail("a cancelled thread came back");
}

// This thread may be cancelled at any instruction.
static void *computing(void *arg) {
    struct job *job = arg;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    sem_post(&job->started);
    endless(9);
    return NULL;
}

static void *sleeping(void *arg) {
    struct job *job = arg;
    pthread_cleanup_push(cleanup, job);
    sem_post(&job->started);
    for (;;) pause();
    pthread_cleanup_pop(0);
    return NULL;
}

static uint64_t round_once(void) {
    static void *(*const bodies[])(void *) = {exiting, waiting, computing, sleeping};
    uint64_t x = 1;
    for (int i = 0; i < 8; i++) {
        struct job job = {.digest = 1};
        pthread_t thread;
        void *result;
        sem_init(&job.started, 0, 0);
        CHECK(pthread_create(&thread, NULL, bodies[i % 4], &job) == 0);
        x = hot(x, 3000);
        if (i % 4) {
            while (sem_wait(&job.started) != 0) {
            }
            CHECK(pthread_cancel(thread) == 0);
        }
        CHECK(pthread_join(thread, &result) == 0);
        if (i % 4)
            CHECK(result == PTHREAD_CANCELED);
        else
            x = mix(x, (uint64_t)(uintptr_t)result);
        if (i % 4 < 2 && job.depth != 0) guest_fail("%d cleanups left", job.depth);
        x = mix(x, job.digest);
    }
    return x;
}

int main(void) { return guest_run("cancel", round_once); }
