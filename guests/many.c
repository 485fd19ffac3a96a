// A thousand hot functions, each calling others: many redirects at once.
//#Lang: c
#include "guest.h"

typedef uint64_t function(uint64_t x, unsigned depth);
static function *const all[1024];

#define BODY(n)                                                           \
    APART uint64_t f##n(uint64_t x, unsigned depth) {                     \
        x ^= 0x##n##u;                                                    \
        if (x & (1u << (0x##n % 13))) x = x * (2 * 0x##n##u + 1) + depth;  \
        else x = mix(x, 0x##n##u);                                        \
        if (depth == 0) return x;                                         \
        if (x & 1) return all[(x >> 7) & 1023](x, depth - 1);             \
        return all[(x >> 9) & 1023](x, depth - 1) + 0x##n##u;             \
    }
#define NAME(n) f##n,
#define SIXTEEN(m, n)                                                                                            \
    m(n##0) m(n##1) m(n##2) m(n##3) m(n##4) m(n##5) m(n##6) m(n##7) m(n##8) m(n##9) m(n##a) m(n##b) m(n##c)       \
        m(n##d) m(n##e) m(n##f)
#define ROW(m, n)                                                                                                \
    SIXTEEN(m, n##0) SIXTEEN(m, n##1) SIXTEEN(m, n##2) SIXTEEN(m, n##3) SIXTEEN(m, n##4) SIXTEEN(m, n##5)        \
        SIXTEEN(m, n##6) SIXTEEN(m, n##7) SIXTEEN(m, n##8) SIXTEEN(m, n##9) SIXTEEN(m, n##a) SIXTEEN(m, n##b)    \
            SIXTEEN(m, n##c) SIXTEEN(m, n##d) SIXTEEN(m, n##e) SIXTEEN(m, n##f)
ROW(BODY, 1) ROW(BODY, 2) ROW(BODY, 3) ROW(BODY, 4)
static function *const all[1024] = {ROW(NAME, 1) ROW(NAME, 2) ROW(NAME, 3) ROW(NAME, 4)};

static uint64_t round_once(void) {
    uint64_t x = guest_seed;
    for (unsigned i = 0; i < 4096; i++) x = all[i & 1023](x, 8);
    return x;
}

int main(void) { return guest_run("many", round_once); }
