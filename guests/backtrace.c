// backtrace() through hot functions: the depth must be that of the calls. From a signal, it must end in the
// outermost frame.
//#Lang: c
#include "guest.h"
#include <execinfo.h>
#include <signal.h>
#include <sys/time.h>

static void *outermost;
static volatile int working;
static volatile unsigned unwound;

APART uint64_t hot(uint64_t x, unsigned n) {
    uint64_t kept[3] = {x, n, x ^ n};
    while (n--) {
        if (x & 1)
            x = mix(x, kept[n % 3]);
        else
            x = x * 3 + kept[2];
    }
    return x;
}

APART int depth_here(void **last) {
    void *frames[128];
    int n = backtrace(frames, 128);
    if (last && n > 0) *last = frames[n - 1];
    return n;
}

APART int at_depth(unsigned depth, uint64_t x) {
    x = hot(x, 3);
    int n = depth ? at_depth(depth - 1, x) : depth_here(NULL);
    NO_TAIL;
    return n;
}

// Through a frame whose size the compiler does not know.
APART int at_depth_alloca(unsigned depth, uint64_t x) {
    volatile char *room = __builtin_alloca(16 + (x & 255));
    room[0] = (char)x;
    int n = depth ? at_depth_alloca(depth - 1, hot(x, 3)) : at_depth(2, x);
    room[1] = (char)n;
    return n;
}

static void on_alarm(int signal) {
    (void)signal;
    if (!working) return;
    void *last = NULL;
    depth_here(&last);
    if (last != outermost) guest_fail("unwinding from a signal ended elsewhere");
    unwound++;
}

static uint64_t round_once(void) {
    uint64_t x = guest_seed;
    int base = at_depth(0, x);
    for (unsigned d = 1; d < 40; d++) {
        int n = at_depth(d, x);
        if (n != base + (int)d) guest_fail("depth %d, not %d", n, base + (int)d);
        int m = at_depth_alloca(d, x);
        if (m != base + 3 + (int)d) guest_fail("depth %d, not %d", m, base + 3 + (int)d);
        x = mix(x, (uint64_t)(n - base));
    }
    working = 1;
    for (int i = 0; i < 2000; i++) x = hot(x, 60);
    working = 0;
    return x;
}

int main(void) {
    depth_here(&outermost);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {{0, 500}, {0, 500}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    int status = guest_run("backtrace", round_once);
    CHECK(unwound > 0);
    return status;
}
