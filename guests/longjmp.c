// setjmp and longjmp over hot functions, within one function, and out of a signal handler.
//#Lang: c
#include "guest.h"
#include <setjmp.h>
#include <signal.h>

static jmp_buf outer;
static sigjmp_buf from_signal;

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x & 1) ? x * 3 + 1 : mix(x, n);
    return x;
}

APART void descend(unsigned depth, uint64_t x, jmp_buf to) {
    x = hot(x, 5);
    if (depth == 0) longjmp(to, (int)(x & 0xffff) + 1);
    descend(depth - 1, x, to);
    NO_TAIL;
}

APART uint64_t catching(unsigned depth, uint64_t x) {
    jmp_buf here;
    volatile uint64_t kept = x;
    int code = setjmp(here);
    if (code == 0) {
        kept = hot(x, 7);
        descend(depth, x, here);
    }
    return mix(kept, (uint64_t)code);
}

// A loop whose back edge is a longjmp to its own frame.
APART uint64_t round_and_round(uint64_t x) {
    jmp_buf here;
    volatile uint64_t value = x;
    volatile int left = 20;
    (void)setjmp(here);
    value = hot(value, 4);
    if (left-- > 0) longjmp(here, 1);
    return value;
}

static void on_signal(int signal) {
    (void)signal;
    siglongjmp(from_signal, (int)(hot(77, 9) & 0xff) + 1);
}

static uint64_t round_once(void) {
    static uint64_t r;
    r = guest_seed;
    volatile uint64_t x = 1;
    for (volatile int i = 0; i < 600; i++) {
        x = mix(x, catching((unsigned)i % 12, next_random(&r)));
        x = mix(x, round_and_round(x));
        if (i % 10 == 0) {
            int code = sigsetjmp(from_signal, 1);
            if (code == 0) raise(SIGUSR1);
            x = mix(x, (uint64_t)code);
        }
        int code = setjmp(outer);
        if (code < 3) {
            x = hot(x, 3);
            longjmp(outer, code + 1);
        }
        x = mix(x, (uint64_t)code);
    }
    return x;
}

int main(void) {
    struct sigaction action = {.sa_handler = on_signal};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    return guest_run("longjmp", round_once);
}
