// The protocol of a guest program: it repeats rounds, and each round must give the digest of the first.
//
// GUEST_SECONDS (default 1.5) is how long it runs. GUEST_STOP, if set, names a file: the guest also ends soon
// after this file appears, so a test need not guess how long its own work takes. The first round runs before
// "ready" is printed on stderr, so its digest comes from unchanged code. The printed output never depends on
// the number of rounds. With GUEST_REST set, the guest sleeps after each round for as long as the round took,
// 20 ms at most.
#ifndef GUEST_H
#define GUEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Keeps a function separate and called by the rules of the ABI.
#if defined(__clang__)
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noipa))
#endif

// Keeps a call from becoming a tail call.
#define NO_TAIL __asm__ volatile("")

// The seed of all pseudo-random input. It is volatile, so that no compiler computes a round at compile time.
static volatile uint64_t guest_seed = 0x9e3779b97f4a7c15u;

__attribute__((unused)) static inline uint64_t mix(uint64_t digest, uint64_t value) {
    // The rotation and the sum prevent that a state absorbs later values, even if the value is the digest
    // itself.
    digest = (((digest << 5) | (digest >> 59)) ^ value) * 0xff51afd7ed558ccdu + 0x2545f4914f6cdd1du;
    return digest ^ (digest >> 29);
}

__attribute__((unused)) static inline uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

__attribute__((unused, noreturn, format(printf, 1, 2))) static void guest_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("mismatch: ", stdout);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
    fflush(stdout);
    _exit(1);
}

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) guest_fail("%s:%d: %s", __FILE__, __LINE__, #condition);    \
    } while (0)

__attribute__((unused)) static double guest_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Sleeps for some seconds (20 ms at most), also if signals interrupt the sleep.
__attribute__((unused)) static void guest_rest(double seconds) {
    struct timespec left = {0, (long)((seconds < 0.02 ? seconds : 0.02) * 1e9)};
    while (nanosleep(&left, &left) && left.tv_nsec > 0) {
    }
}

// Runs rounds, then prints the digest. Returns the exit status of the guest.
__attribute__((unused)) static int guest_run(const char *name, uint64_t (*round)(void)) {
    uint64_t (*volatile again)(void) = round;
    const char *seconds = getenv("GUEST_SECONDS");
    const char *stop = getenv("GUEST_STOP");
    int rests = getenv("GUEST_REST") != NULL;
    uint64_t first = again();
    fputs("ready\n", stderr);
    double end = guest_now() + (seconds ? strtod(seconds, NULL) : 1.5);
    do {
        double begin = guest_now();
        uint64_t digest = again();
        if (digest != first)
            guest_fail("%s: digest %016llx, first was %016llx", name, (unsigned long long)digest,
                       (unsigned long long)first);
        if (rests) guest_rest(guest_now() - begin);
    } while (guest_now() < end && !(stop && access(stop, F_OK) == 0));
    printf("%s %016llx\n", name, (unsigned long long)first);
    fflush(stdout);
    return 0;
}

#endif
