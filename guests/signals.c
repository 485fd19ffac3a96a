// Signal handlers on an alternate stack at some kHz, also nested; SA_RESTART across a blocking read.
//#Lang: c
//#Flags: -pthread
#include "guest.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

static volatile uint64_t seen, nested_seen;
static int to_main[2];
static char alternate[65536] __attribute__((aligned(64)));

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) {
        switch (x % 5) {
        case 0: x = x * 3 + 1; break;
        case 1: x ^= x << 7; break;
        case 2: x += 0x1357; break;
        case 3: x = mix(x, n); break;
        default: x = ~x;
        }
        x ^= x >> 9;
    }
    return x;
}

static void on_nested(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    char here;
    if (&here < alternate || &here >= alternate + sizeof alternate) guest_fail("nested handler not on its stack");
    nested_seen += hot(nested_seen, 3) != 0;
}

static void on_alarm(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    int saved = errno;
    char here;
    if (&here < alternate || &here >= alternate + sizeof alternate) guest_fail("handler not on its stack");
    static uint64_t expected;
    uint64_t got = hot(99, 20);
    if (!expected) expected = got;
    if (got != expected) guest_fail("handler computed %llx", (unsigned long long)got);
    if (seen++ % 4 == 0) raise(SIGUSR2);
    errno = saved;
}

static void *writer(void *arg) {
    (void)arg;
    for (uint8_t i = 0; i < 4; i++) {
        usleep(400);
        CHECK(write(to_main[1], &i, 1) == 1);
    }
    return NULL;
}

static uint64_t round_once(void) {
    pthread_t thread;
    sigset_t all, old;
    // The writer has no alternate stack, so it blocks all signals.
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    CHECK(pthread_create(&thread, NULL, writer, NULL) == 0);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    uint64_t x = 1;
    for (int i = 0; i < 4; i++) {
        uint8_t byte;
        // With SA_RESTART, a read never fails with EINTR.
        if (read(to_main[0], &byte, 1) != 1) guest_fail("read: %s", strerror(errno));
        x = mix(x, hot(byte, 4000));
    }
    pthread_join(thread, NULL);
    for (int i = 0; i < 20; i++) x = hot(x, 2000);
    return x;
}

int main(void) {
    CHECK(pipe(to_main) == 0);
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    CHECK(sigaltstack(&stack, NULL) == 0);
    struct sigaction alarm = {.sa_sigaction = on_alarm, .sa_flags = SA_RESTART | SA_ONSTACK | SA_SIGINFO};
    struct sigaction usr2 = {.sa_sigaction = on_nested, .sa_flags = SA_RESTART | SA_ONSTACK | SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(SIGALRM, &alarm, NULL) == 0 && sigaction(SIGUSR2, &usr2, NULL) == 0);
    struct itimerval every = {{0, 250}, {0, 250}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    int status = guest_run("signals", round_once);
    CHECK(seen > 0 && nested_seen > 0);
    return status;
}
