// All threads write to pipes much more than these hold; another process reads a little at a time. The second
// counter is the number of short writes.
#include "page.h"
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 6, MUCH = 300000, LITTLE = 8192 };
static int pipes[THREADS][2];
static char big[MUCH];

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = x % 3 ? mix(x, n) : x / 3 + 12345;
    return x;
}

static void reader(void) {
    static char taken[LITTLE];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        for (int i = 0; i < THREADS; i++) {
            struct pollfd one = {pipes[i][0], POLLIN, 0};
            if (poll(&one, 1, 0) == 1 && read(pipes[i][0], taken, LITTLE) <= 0) _exit(0);
        }
        usleep(500);
    }
}

static void *writer(void *arg) {
    intptr_t i = (intptr_t)arg;
    uint64_t x = 1;
    while (!page->stop) {
        x = hot(x, 2000);
        if (write(pipes[i][1], big, MUCH) != MUCH) __sync_fetch_and_add(&page->work[1], 1);
        if (i == 0) page->work[0]++;
    }
    return (void *)(uintptr_t)x;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    page_open(argv[1]);
    for (int i = 0; i < THREADS; i++) {
        if (pipe(pipes[i])) abort();
    }
    if (fork() == 0) reader();
    for (intptr_t i = 1; i < THREADS; i++) pthread_create(&threads[i], NULL, writer, (void *)i);
    writer((void *)0);
    for (int i = 1; i < THREADS; i++) pthread_join(threads[i], NULL);
    return 0;
}
