// A thread is cancelled in C++ frames: destructors run, and catch (...) catches the cancellation and must
// rethrow it.
//#Lang: c++
//#Flags: -pthread
#include "guest.h"
#include <atomic>
#include <pthread.h>

struct Job {
    std::atomic<bool> started{false};
    uint64_t digest = 1;
};

struct Guard {
    Job &job;
    uint64_t value;
    ~Guard() { job.digest = mix(job.digest, value); }
};

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x & 8) ? x * 3 + 1 : mix(x, n);
    return x;
}

APART uint64_t descend(Job &job, unsigned depth, uint64_t x) {
    Guard guard{job, depth};
    if (depth == 0) {
        job.started = true;
        for (;;) {
            x = hot(x, 100);
            pthread_testcancel();
        }
    }
    try {
        return hot(descend(job, depth - 1, x), 2);
    } catch (...) {
        job.digest = mix(job.digest, 1000 + depth);
        throw;
    }
}

static void *body(void *arg) {
    descend(*static_cast<Job *>(arg), 6, 3);
    return nullptr;
}

static uint64_t round_once() {
    uint64_t x = 1;
    for (int i = 0; i < 8; i++) {
        Job job;
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, nullptr, body, &job) == 0);
        while (!job.started) usleep(20);
        uint64_t y = hot(5, 3000);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
        x = mix(mix(x, y), job.digest);
    }
    return x;
}

int main() { return guest_run("cancel_unwind", round_once); }
