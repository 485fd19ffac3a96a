// Code to be fetched, without a library, so that another simulator executes the same instructions at the same
// addresses. The program does its work once for each byte that it reads. WORK selects the work: 1 functions
// at random, more than a cache holds; 2 all of them in turn, again and again; 3 loops, a switch and
// recursion, which fit.
typedef unsigned long u64;

#define APART __attribute__((noinline))

static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

#define BODY(n)                                                            \
    APART u64 f##n(u64 x) {                                                \
        x ^= 0x##n##u;                                                     \
        if (x & (1u << (0x##n % 13))) x = x * (2 * 0x##n##u + 1);          \
        else x = (x << 5 | x >> 59) + 0x##n##u * 0x10001u;                 \
        if (x % 3 == 0) x ^= x >> 29;                                      \
        return x * 0xff51afd7ed558ccdu + 0x##n##u;                         \
    }
#define NAME(n) f##n,
#define SIXTEEN(m, n)                                                                                            \
    m(n##0) m(n##1) m(n##2) m(n##3) m(n##4) m(n##5) m(n##6) m(n##7) m(n##8) m(n##9) m(n##a) m(n##b) m(n##c)       \
        m(n##d) m(n##e) m(n##f)
#define ROW(m, n)                                                                                                \
    SIXTEEN(m, n##0) SIXTEEN(m, n##1) SIXTEEN(m, n##2) SIXTEEN(m, n##3) SIXTEEN(m, n##4) SIXTEEN(m, n##5)        \
        SIXTEEN(m, n##6) SIXTEEN(m, n##7) SIXTEEN(m, n##8) SIXTEEN(m, n##9) SIXTEEN(m, n##a) SIXTEEN(m, n##b)    \
            SIXTEEN(m, n##c) SIXTEEN(m, n##d) SIXTEEN(m, n##e) SIXTEEN(m, n##f)
ROW(BODY, 1) ROW(BODY, 2)
static u64 (*const all[512])(u64) = {ROW(NAME, 1) ROW(NAME, 2)};

APART u64 deep(u64 n) { return n < 2 ? n : deep(n - 1) + deep(n - 2) * 3; }

APART u64 choose(u64 x) {
    switch (x % 9) {
    case 0: return x + 1;
    case 1: return x * 3;
    case 2: return x ^ 5;
    case 3: return x >> 7;
    case 4: return f100(x);
    case 5: return f101(x);
    case 6: return x - 9;
    case 7: return ~x;
    default: return x << 3;
    }
}

volatile u64 result;

APART void work(void) {
    u64 x = 88172645463325252u;
#if WORK == 1
    for (int i = 0; i < 5000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        x ^= all[x >> 55](x) & 0xffff;
    }
#elif WORK == 2
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 512; j++) x = all[j](x);
#else
    for (int i = 0; i < 4000; i++) x += choose(x + (u64)i);
    x += deep(14);
#endif
    result = x;
}

__attribute__((noreturn, used)) void begin(void) {
    char byte;
    while (call(0, 0, (long)&byte, 1) == 1) {
        work();
        call(1, 1, (long)&byte, 1);
    }
    call(231, 0, 0, 0);
    __builtin_unreachable();
}

__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call begin\n");
