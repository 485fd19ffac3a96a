// What a stop must not be felt by: transfers that block half done are whole, waits end by their time with their own result, and
// a thread cancelled inside of either unwinds.
//#Lang: c++
//#Flags: -pthread
#include "guest.h"
#include <atomic>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

enum { MUCH = 150000, LITTLE = 7000 };
static char pattern[MUCH];
static std::atomic<int> busy;

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x % 3) ? mix(x, n) : x / 3 + 12345;
    return x;
}

struct Pair {
    int in, out;
    explicit Pair(bool pipes) {
        int fd[2];
        CHECK((pipes ? pipe(fd) : socketpair(AF_UNIX, SOCK_STREAM, 0, fd)) == 0);
        in = fd[0], out = fd[1];
    }
    ~Pair() { close(in), close(out); }
};

// The other end: takes or gives little at a time.
static void *nibble(void *arg) {
    Pair &pair = *static_cast<Pair *>(arg);
    char got[LITTLE];
    for (long at = 0, r; at < MUCH; at += r) {
        r = read(pair.in, got, sizeof got);
        CHECK(r > 0 && memcmp(got, pattern + at, r) == 0);
        usleep(300);
    }
    return nullptr;
}

static void *give(void *arg) {
    Pair &pair = *static_cast<Pair *>(arg);
    for (long at = 0, r; at < MUCH; at += r) {
        r = write(pair.in, pattern + at, MUCH - at < LITTLE ? MUCH - at : LITTLE);
        CHECK(r > 0);
        usleep(300);
    }
    return nullptr;
}

static void *transfers(void *) {
    Pair pipes(true), sockets(false);
    pthread_t other;
    CHECK(pthread_create(&other, nullptr, nibble, &pipes) == 0);
    CHECK(write(pipes.out, pattern, MUCH) == MUCH);
    pthread_join(other, nullptr);
    CHECK(pthread_create(&other, nullptr, nibble, &pipes) == 0);
    struct iovec pieces[20];
    for (int i = 0; i < 20; i++) pieces[i] = {pattern + MUCH / 20 * i, MUCH / 20};
    CHECK(writev(pipes.out, pieces, 20) == MUCH);
    pthread_join(other, nullptr);
    CHECK(pthread_create(&other, nullptr, nibble, &sockets) == 0);
    CHECK(send(sockets.out, pattern, MUCH, 0) == MUCH);
    pthread_join(other, nullptr);
    CHECK(pthread_create(&other, nullptr, give, &sockets) == 0);
    static thread_local char got[MUCH];
    CHECK(recv(sockets.out, got, MUCH, MSG_WAITALL) == MUCH && memcmp(got, pattern, MUCH) == 0);
    pthread_join(other, nullptr);
    busy--;
    return nullptr;
}

static void *waits(void *) {
    Pair sockets(false);
    int epoll = epoll_create1(0);
    struct epoll_event event;
    struct timeval time = {0, 20000};
    char byte;
    CHECK(setsockopt(sockets.in, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    double before = guest_now();
    CHECK(epoll_wait(epoll, &event, 1, 20) == 0);
    CHECK(guest_now() - before >= 0.0199);
    CHECK(recv(sockets.in, &byte, 1, 0) == -1 && errno == EAGAIN);
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    struct timespec nanos = {0, 20000000};
    CHECK(sigtimedwait(&usr1, nullptr, &nanos) == -1 && errno == EAGAIN);
    close(epoll);
    busy--;
    return nullptr;
}

struct Guard {
    std::atomic<int> &unwound;
    ~Guard() { unwound++; }
};

struct Job {
    int kind;
    std::atomic<int> unwound{0};
};

static void *cancelled(void *arg) {
    Job &job = *static_cast<Job *>(arg);
    Guard outer{job.unwound};
    Pair full(true);
    try {
        Guard inner{job.unwound};
        struct epoll_event event;
        int epoll = epoll_create1(0);
        if (job.kind) CHECK(write(full.out, pattern, MUCH) < 0);
        for (;;) epoll_wait(epoll, &event, 1, 100000);
    } catch (...) {
        job.unwound++;
        throw;
    }
}

static uint64_t round_once() {
    pthread_t a, b, c[2];
    Job jobs[2];
    busy = 2;
    for (int i = 0; i < 2; i++) {
        jobs[i].kind = i;
        CHECK(pthread_create(&c[i], nullptr, cancelled, &jobs[i]) == 0);
    }
    CHECK(pthread_create(&a, nullptr, transfers, nullptr) == 0);
    CHECK(pthread_create(&b, nullptr, waits, nullptr) == 0);
    uint64_t x;
    do x = hot(guest_seed, 5000);
    while (busy);
    pthread_join(a, nullptr);
    pthread_join(b, nullptr);
    for (int i = 0; i < 2; i++) {
        void *result;
        CHECK(pthread_cancel(c[i]) == 0);
        CHECK(pthread_join(c[i], &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
        CHECK(jobs[i].unwound == 3);
    }
    return x;
}

int main() {
    for (int i = 0; i < MUCH; i++) pattern[i] = static_cast<char>(i * 131 >> 3);
    return guest_run("unfelt", round_once);
}
