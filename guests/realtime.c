// Real-time signals: none may be lost or doubled, and they come in order with their values.
//#Lang: c
//#Flags: -pthread
#include "guest.h"
#include <pthread.h>
#include <signal.h>

static volatile uint64_t digest_low, digest_high;
static volatile int received;

APART uint64_t fold(uint64_t x, uint64_t v) {
    for (int i = 0; i < 50; i++) x = (x & 1) ? mix(x, v) : x + v;
    return x;
}

static void on_realtime(int signal, siginfo_t *info, void *context) {
    (void)context;
    uint64_t value = (uint64_t)info->si_value.sival_int;
    if (signal == SIGRTMIN + 3)
        digest_low = fold(digest_low, value);
    else
        digest_high = fold(digest_high, value);
    received++;
}

static void *waiter(void *arg) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 5);
    uint64_t x = 3;
    (void)arg;
    for (int i = 0; i < 32; i++) {
        siginfo_t info;
        int got;
        // POSIX lets sigwaitinfo fail with EINTR if a handler runs. This thread blocks all signals.
        got = sigwaitinfo(&set, &info);
        if (got != SIGRTMIN + 5) guest_fail("sigwaitinfo gave %d", got);
        x = fold(x, (uint64_t)info.si_value.sival_int);
    }
    return (void *)(uintptr_t)x;
}

static uint64_t round_once(void) {
    pthread_t thread;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    CHECK(pthread_create(&thread, NULL, waiter, NULL) == 0);
    digest_low = digest_high = 1;
    received = 0;
    for (int i = 0; i < 32; i++) {
        union sigval value = {.sival_int = i};
        CHECK(sigqueue(getpid(), SIGRTMIN + 3, value) == 0);
        CHECK(sigqueue(getpid(), SIGRTMIN + 4, value) == 0);
        CHECK(pthread_sigqueue(thread, SIGRTMIN + 5, value) == 0);
    }
    sigset_t mine = old;
    pthread_sigmask(SIG_SETMASK, &mine, NULL);
    uint64_t x = 1;
    for (int i = 0; i < 400; i++) x = fold(x, (uint64_t)i);
    if (received != 64) guest_fail("%d signals of 64", received);
    void *result;
    CHECK(pthread_join(thread, &result) == 0);
    return mix(mix(x, digest_low), mix(digest_high, (uint64_t)(uintptr_t)result));
}

int main(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 5);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    struct sigaction action = {.sa_sigaction = on_realtime, .sa_flags = SA_SIGINFO | SA_RESTART};
    CHECK(sigaction(SIGRTMIN + 3, &action, NULL) == 0 && sigaction(SIGRTMIN + 4, &action, NULL) == 0);
    return guest_run("realtime", round_once);
}
