// All threads write to pipes much more than these hold; another process reads a little at a time. The second
// counter is the number of short writes. With an argument, one more thread cannot be stopped most of the time: it
// waits in vfork. The argument is the signal that its child sends when it ends.
#include "page.h"
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

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

static void *forker(void *signal) {
    while (!page->stop) {
        long child;
        register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
        __asm__ volatile("syscall"
                         : "=a"(child)
                         : "a"(SYS_clone), "D"(CLONE_VFORK | CLONE_VM | (intptr_t)signal), "S"(0), "d"(0), "r"(r10), "r"(r8)
                         : "rcx", "r11", "memory");
        if (child == 0) {
            struct timespec much = {0, 120000000};
            nanosleep(&much, NULL);
            _exit(0);
        }
        waitpid((pid_t)child, NULL, __WALL);
        usleep(30000);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS], other;
    page_open(argv[1]);
    for (int i = 0; i < THREADS; i++) {
        if (pipe(pipes[i])) abort();
    }
    if (fork() == 0) reader();
    if (argc > 2) pthread_create(&other, NULL, forker, (void *)(intptr_t)atoi(argv[2]));
    for (intptr_t i = 1; i < THREADS; i++) pthread_create(&threads[i], NULL, writer, (void *)i);
    writer((void *)0);
    for (int i = 1; i < THREADS; i++) pthread_join(threads[i], NULL);
    if (argc > 2) pthread_join(other, NULL);
    return 0;
}
