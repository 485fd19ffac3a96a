// Work with many kinds of paths, on request, always the same for the same seed.
//
// A byte on standard input requests the work, a byte on standard output reports that it is done. 's': the
// main thread does the work of all threads, one after the other. 't': each thread does its own. Functions
// named p_* are the work; nothing else calls them, and they make no system call.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

#define THREADS 4
#if defined(__clang__)
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noipa))
#endif

APART static uint64_t p_mix(uint64_t d, uint64_t v) {
    d = (((d << 5) | (d >> 59)) ^ v) * 0xff51afd7ed558ccdu + 0x2545f4914f6cdd1du;
    return d ^ (d >> 29);
}

static inline uint64_t next(uint64_t *s) {
    uint64_t x = *s;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *s = x;
}

// A jump table with a hole, a default and two cases that fall through.
APART static uint64_t p_switch(uint64_t x) {
    switch (x % 13) {
    case 0: return p_mix(x, 1);
    case 1: x ^= 0x55; /* fall through */
    case 2: x += 7; break;
    case 3: return x * 3;
    case 4: x = p_mix(x, x); break;
    case 5: return ~x;
    case 6: x -= 1; /* fall through */
    case 7: x ^= x >> 3; break;
    case 9: return x << 1;
    case 10: for (int i = 0; i < 3; i++) x += i ^ x; break;
    default: x = x * x; break;
    }
    return x ^ 0x77;
}

// A jump table in a loop: a small interpreter.
APART static uint64_t p_machine(const uint8_t *code, int len) {
    uint64_t acc = 1, reg = 2;
    for (int pc = 0; pc < len; pc++) {
        switch (code[pc] & 7) {
        case 0: acc += reg; break;
        case 1: acc ^= reg << 2; break;
        case 2: { uint64_t t = acc; acc = reg; reg = t; break; }
        case 3: if (acc & 4) pc++; break;
        case 4: acc -= 3; break;
        case 5: reg += acc & 1 ? 5 : 9; break;
        case 6: if (reg > 1000) reg >>= 3; else reg *= 3; break;
        case 7: acc = p_mix(acc, reg); break;
        }
    }
    return acc ^ reg;
}

APART static uint64_t p_fib(unsigned n) { return n < 2 ? n : p_fib(n - 1) + p_fib(n - 2); }

APART static int p_odd(unsigned n);
APART static int p_even(unsigned n) { return n == 0 ? 1 : p_odd(n - 1); }
APART static int p_odd(unsigned n) { return n == 0 ? 0 : p_even(n - 1); }

APART static uint64_t p_last(uint64_t a, uint64_t b) { return a > b ? a - b : b * 2 - a; }
// Ends in calls of other functions.
APART static uint64_t p_tail(uint64_t a, uint64_t b) {
    if (a % 3 == 0) return p_last(a, b + 1);
    if (b % 5 == 0) return p_mix(b, a);
    return p_last(b, a);
}

APART static int p_conditions(uint64_t a, uint64_t b, uint64_t c) {
    int n = 0;
    if ((a & 1 && b & 2) || (c & 4 && !(a & 8))) n++;
    if (a > b && b > c && c != 0) n += 2;
    if (!(a & 16) || !(b & 32) || !(c & 64)) n += 4;
    n += (a & 3) == 3 ? (b & 3) == 3 ? 8 : 16 : (c & 3) == 3 ? 32 : 64;
    return n;
}

APART static uint64_t p_loops(uint64_t s, int n) {
    uint64_t d = 0;
    for (int i = 0; i < n; i++) {
        for (int j = i; j > 0; j -= 2) {
            if ((s >> (j & 31)) & 1) continue;
            if (j * i > 60) break;
            d += j;
        }
        int k = i;
        do d ^= d << 1; while (k-- > 4);
        while (d > 1u << 20) d >>= 3;
    }
    return d;
}

typedef uint64_t (*step)(uint64_t, uint64_t);
APART static uint64_t p_add(uint64_t a, uint64_t b) { return a + b; }
APART static uint64_t p_sub(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
APART static uint64_t p_xor(uint64_t a, uint64_t b) { return a ^ b; }
static step const volatile steps[] = {p_add, p_sub, p_xor, p_tail, p_mix};
APART static uint64_t p_pointers(uint64_t s) {
    uint64_t d = s;
    for (int i = 0; i < 12; i++) d = steps[next(&s) % 5](d, s & 0xff);
    return d;
}

APART static int p_compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}
// A library calls its comparison.
APART static uint64_t p_sort(uint64_t s) {
    uint64_t v[12];
    for (int i = 0; i < 12; i++) v[i] = next(&s) % 50;
    qsort(v, 12, sizeof v[0], p_compare);
    uint64_t d = 0;
    for (int i = 0; i < 12; i++) d = d * 3 + v[i];
    return d;
}

// `loop` and `jrcxz`, which have short forms only, and a repeated instruction.
APART static uint64_t p_short(uint64_t n) {
    uint64_t sum = 0, count = n;
    __asm__ volatile(
        "jrcxz 2f\n"
        "1: addq %%rcx, %0\n"
        "loop 1b\n"
        "2:"
        : "+r"(sum), "+c"(count)
        :
        : "cc");
    char a[64], b[64];
    memset(a, 3, sizeof a);
    void *from = a, *to = b;
    count = n & 31;
    __asm__ volatile("rep movsb" : "+S"(from), "+D"(to), "+c"(count) : : "memory");
    return sum + (n & 31 ? b[(n & 31) - 1] : 0);
}

// Flags that stay live across a branch.
APART static uint64_t p_carry(uint64_t a, uint64_t b) {
    uint64_t lo = 0, hi = 0;
    for (int i = 0; i < 5; i++) {
        lo += a;
        hi += b + (lo < a);
        if (__builtin_add_overflow(hi, a, &hi)) hi ^= 1;
        a = p_mix(a, hi);
    }
    return lo ^ hi;
}

// A part that compilers place elsewhere.
__attribute__((cold)) APART static uint64_t p_rare(uint64_t x) { return x / 3 + 1; }
APART static uint64_t p_split(uint64_t x) {
    for (int i = 0; i < 6; i++) {
        if (__builtin_expect((x & 15) == 11, 0)) x = p_rare(x) ^ p_rare(x + 2);
        x = x * 5 + 3;
    }
    return x;
}

APART static double p_float(uint64_t x) {
    double d = (double)(x & 0xffff);
    for (int i = 0; i < 4; i++) d = d > 100.0 ? d / 3.0 : d != d ? 1.0 : d * 2.5 + 1.0;
    return d;
}

APART static uint64_t p_many(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g) {
    uint64_t r = a;
    if (b & 1) r += c;
    if (c & 1) r ^= d; else r ^= e;
    while (f > 3) { f /= 2; r += g & f ? a : b; }
    return r + d * e + f * g;
}

// All of the work for one seed.
__attribute__((noinline)) uint64_t p_work(uint64_t seed) {
    uint64_t s = seed * 2654435761u + 88172645463325252u, d = 0;
    uint8_t code[40];
    for (int i = 0; i < 40; i++) code[i] = (uint8_t)(next(&s) >> 11);
    for (int i = 0; i < 20; i++) {
        uint64_t a = next(&s), b = next(&s), c = next(&s);
        d = p_mix(d, p_switch(a >> 9));
        d += (uint64_t)p_conditions(a, b >> 3, c >> 7);
        d ^= p_tail(a & 0xffff, b & 0xffff);
        d = p_mix(d, p_carry(a, b) ^ p_split(c >> 20));
        d += p_many(a, b >> 1, c >> 2, a >> 3, b >> 4, c & 0xfff, a >> 5);
        d ^= (uint64_t)p_float(b >> 13);
        if (i % 4 == 0) d += p_loops(b, (int)(c & 15)) + p_short(a & 31);
        if (i % 5 == 0) d ^= p_pointers(c) + (uint64_t)p_even(a & 15);
        if (i % 7 == 0) d += p_sort(a) + p_machine(code, 40);
    }
    return d + p_fib(6 + seed % 3);
}

static volatile uint64_t results[THREADS];
static int wake[THREADS][2], done[2];

__attribute__((noinline)) void p_all(void) {
    for (uint64_t i = 0; i < THREADS; i++) results[i] = p_work(i);
}

// All threads wait here while there is nothing to do; they return to a loop.
APART static int waits(int from) {
    char byte;
    long n = read(from, &byte, 1);
    for (volatile int i = 0; i < 16; i++) {}
    return n == 1 ? byte : 0;
}

static void *thread(void *arg) {
    uint64_t i = (uint64_t)(uintptr_t)arg;
    char byte;
    while ((byte = (char)waits(wake[i][0]))) {
        results[i] = p_work(i);
        if (write(done[1], &byte, 1) != 1) abort();
    }
    return NULL;
}

int main(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (pipe(done)) abort();
    for (uintptr_t i = 0; i < THREADS; i++) {
        pthread_t t;
        if (pipe(wake[i]) || pthread_create(&t, NULL, thread, (void *)i)) abort();
    }
    // The compiler cannot know the pointer, so the call reaches the entry, where a test waits for it.
    void (*volatile all)(void) = p_all;
    // Binds the slots before anything is counted.
    all();
    char byte = 'r';
    if (write(1, &byte, 1) != 1) abort();
    while ((byte = (char)waits(0))) {
        char got;
        if (byte == 's') all();
        else {
            for (int i = 0; i < THREADS; i++)
                if (write(wake[i][1], &byte, 1) != 1) abort();
            for (int i = 0; i < THREADS; i++)
                if (read(done[0], &got, 1) != 1) abort();
        }
        if (write(1, &byte, 1) != 1) abort();
    }
    return 0;
}
