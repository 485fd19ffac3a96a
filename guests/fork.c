// fork in the middle of hot work, also in two threads at once. The child continues in the same code.
//#Lang: c
//#Flags: -pthread
#include "guest.h"
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) {
        if (x & 1)
            x = x * 3 + 1;
        else
            x = mix(x, n);
    }
    return x;
}

APART uint64_t fork_at(unsigned depth, uint64_t x) {
    if (depth) {
        x = hot(x, 20);
        uint64_t y = fork_at(depth - 1, x);
        return mix(y, x);
    }
    pid_t child = fork();
    if (child == 0) {
        // The child leaves through the frames of its parent's hot functions.
        return hot(x, 100);
    }
    CHECK(child > 0);
    int status;
    while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
    if (!WIFEXITED(status)) guest_fail("child ended with status %x", (unsigned)status);
    uint64_t same = hot(x, 100);
    if (WEXITSTATUS(status) != 42) guest_fail("child said %d", WEXITSTATUS(status));
    return same;
}

APART uint64_t forking(uint64_t x) {
    pid_t self = getpid();
    uint64_t y = fork_at(5, x);
    if (getpid() != self) {
        // The exit status has 8 bits, the child's digest 64. So the child checks its digest itself.
        uint64_t z = hot(x, 1000);
        _exit(hot(x, 1000) == z ? 42 : 43);
    }
    return y;
}

static void *thread(void *arg) {
    uint64_t x = (uint64_t)(uintptr_t)arg;
    for (int i = 0; i < 2; i++) x = mix(forking(x), hot(x, 2000));
    return (void *)(uintptr_t)x;
}

static uint64_t round_once(void) {
    pthread_t other;
    void *result;
    CHECK(pthread_create(&other, NULL, thread, (void *)3) == 0);
    uint64_t x = (uint64_t)(uintptr_t)thread((void *)5);
    CHECK(pthread_join(other, &result) == 0);
    return mix(hot(x, 20000), (uint64_t)(uintptr_t)result);
}

int main(void) { return guest_run("fork", round_once); }
