// Leaf functions with locals below the stack pointer, under frequent signals.
//#Lang: c
#include "guest.h"
#include <signal.h>
#include <sys/time.h>

static volatile uint64_t signals_seen;

APART uint64_t leaf(uint64_t a, uint64_t b) {
    volatile uint64_t zone[12];
    for (int i = 0; i < 12; i++) zone[i] = a + (uint64_t)i * b;
    uint64_t x = 0;
    for (int i = 0; i < 12; i++) x = mix(x, zone[i] ^ zone[11 - i]);
    return x;
}

APART uint64_t leaf_branchy(uint64_t a, unsigned n) {
    volatile uint64_t odd = 1, even = 2, last = a;
    while (n--) {
        if (last & 1)
            odd = odd * 3 + last;
        else if (last & 2)
            even ^= last << 3;
        else
            even += odd;
        last = (last >> 1) | (a << 63);
        a = (a >> 1) | (a << 63);
    }
    return odd ^ even;
}

static void on_signal(int signal) {
    (void)signal;
    signals_seen += leaf(signals_seen, 3) != 0;
}

static uint64_t round_once(void) {
    uint64_t r = guest_seed, x = 1;
    for (int i = 0; i < 3000; i++) {
        x = mix(x, leaf(next_random(&r), x));
        x = mix(x, leaf_branchy(r, 40));
    }
    return x;
}

int main(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {{0, 300}, {0, 300}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    int status = guest_run("redzone", round_once);
    return status;
}
