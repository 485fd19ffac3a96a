// All threads write to pipes much more than these hold; another process reads a little at a time. The second
// counter is the number of short writes. With arguments, more threads cannot be stopped most of the time: they wait in
// vfork. The arguments are the signal that their children send when they end, and the number of these threads. The
// third counter is how often a wait of one more thread was interrupted.
#include "page.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

enum { THREADS = 6, FORKERS = 8, MUCH = 300000, LITTLE = 8192 };
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

static void *waiter(void *arg) {
    struct epoll_event event;
    int none = epoll_create1(0);
    while (!page->stop) {
        if (epoll_wait(none, &event, 1, 1000) < 0 && errno == EINTR) page->work[2]++;
    }
    return arg;
}

static void *forker(void *signal) {
    while (!page->stop) {
        long child;
        // Ends at any moment of the stops.
        struct timespec now, much = {0, 100000000};
        clock_gettime(CLOCK_MONOTONIC, &now);
        much.tv_nsec += now.tv_nsec % 97 * 1000000;
        register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
        __asm__ volatile("syscall"
                         : "=a"(child)
                         : "a"(SYS_clone), "D"(CLONE_VFORK | CLONE_VM | (intptr_t)signal), "S"(0), "d"(0), "r"(r10), "r"(r8)
                         : "rcx", "r11", "memory");
        if (child == 0) {
            nanosleep(&much, NULL);
            _exit(0);
        }
        waitpid((pid_t)child, NULL, __WALL);
        usleep(25000);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS], forkers[FORKERS], waiting;
    page_open(argv[1]);
    int unstoppable = argc > 3 ? atoi(argv[3]) : 0;
    for (int i = 0; i < THREADS; i++) {
        if (pipe(pipes[i])) abort();
    }
    if (fork() == 0) reader();
    for (int i = 0; i < unstoppable; i++) {
        pthread_create(&forkers[i], NULL, forker, (void *)(intptr_t)atoi(argv[2]));
    }
    pthread_create(&waiting, NULL, waiter, NULL);
    for (intptr_t i = 1; i < THREADS; i++) pthread_create(&threads[i], NULL, writer, (void *)i);
    writer((void *)0);
    for (int i = 1; i < THREADS; i++) pthread_join(threads[i], NULL);
    pthread_join(waiting, NULL);
    for (int i = 0; i < unstoppable; i++) pthread_join(forkers[i], NULL);
    return 0;
}
