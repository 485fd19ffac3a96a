// Every waiting system call. A stop must not end any of them with EINTR, nor shorten it.
//#Lang: c
//#Flags: -pthread
#include "guest.h"
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static volatile int waiting;
static int epoll_fd, quiet[2], semaphores;
static const struct timespec two_ms = {0, 2000000};

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x % 3) ? mix(x, n) : x / 3 + 12345;
    return x;
}

// Makes one call: checks its result and errno, and that it did not end long before its time.
#define WAIT(call, result, error)                                                                      \
    do {                                                                                               \
        double before = guest_now();                                                                   \
        errno = 0;                                                                                     \
        long got = (long)(call);                                                                       \
        int err = errno;                                                                               \
        double took = guest_now() - before;                                                            \
        if (got != (result) || (got == -1 && err != (error)))                                          \
            guest_fail("%s gave %ld, %s", #call, got, strerror(err));                                  \
        if (took < 0.0015) guest_fail("%s was %f s short", #call, 0.002 - took);                       \
    } while (0)

// Waits for two milliseconds from now, until a time of the clock. The time is chosen within the measured call: a
// thread that gets no CPU after the choice would find that its wait was short.
static int semaphore_wait(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += two_ms.tv_nsec;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    sem_t sem;
    sem_init(&sem, 0, 0);
    return sem_timedwait(&sem, &until);
}

static void *waits(void *arg) {
    (void)arg;
    struct epoll_event event;
    struct pollfd fd = {quiet[0], POLLIN, 0};
    struct sembuf take = {0, -1, 0};
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    int word = 0;
    char byte;
    WAIT(epoll_wait(epoll_fd, &event, 1, 2), 0, 0);
    WAIT(poll(&fd, 1, 2), 0, 0);
    WAIT(ppoll(&fd, 1, &two_ms, NULL), 0, 0);
    {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(quiet[0], &set);
        struct timeval t = {0, 2000};
        WAIT(select(quiet[0] + 1, &set, NULL, NULL, &t), 0, 0);
    }
    WAIT(nanosleep(&two_ms, NULL), 0, 0);
    WAIT(clock_nanosleep(CLOCK_MONOTONIC, 0, &two_ms, NULL), 0, 0);
    WAIT(semtimedop(semaphores, &take, 1, &two_ms), -1, EAGAIN);
    WAIT(sigtimedwait(&usr1, NULL, &two_ms), -1, EAGAIN);
    WAIT(recv(quiet[0], &byte, 1, 0), -1, EAGAIN);
    WAIT(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &two_ms, NULL, 0), -1, ETIMEDOUT);
    WAIT(semaphore_wait(), -1, ETIMEDOUT);
    waiting = 0;
    return NULL;
}

static uint64_t round_once(void) {
    pthread_t thread;
    waiting = 1;
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    uint64_t x;
    do x = hot(guest_seed, 5000);
    while (waiting);
    pthread_join(thread, NULL);
    return x;
}

int main(void) {
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    CHECK((epoll_fd = epoll_create1(0)) >= 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, quiet) == 0);
    struct timeval timeout = {0, 2000};
    CHECK(setsockopt(quiet[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
    CHECK((semaphores = semget(IPC_PRIVATE, 1, 0600)) >= 0);
    int status = guest_run("waiting", round_once);
    semctl(semaphores, 0, IPC_RMID);
    return status;
}
