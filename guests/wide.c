// 128-bit arithmetic: carries, wide multiplication and division, atomic exchange of 16 bytes.
//#Lang: c
//#Flags: -mcx16
#include "guest.h"

typedef unsigned __int128 u128;

APART u128 power(u128 base, u128 modulus, unsigned exponent) {
    u128 x = 1;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1) x = (x * base) % modulus;
        base = (base * base) % modulus;
    }
    return x;
}

APART void add_words(uint64_t *a, const uint64_t *b, int n) {
    unsigned char carry = 0;
    for (int i = 0; i < n; i++) {
        u128 sum = (u128)a[i] + b[i] + carry;
        a[i] = (uint64_t)sum;
        carry = (unsigned char)(sum >> 64);
    }
}

APART __int128 compare(__int128 a, __int128 b) {
    if (a < b) return b - a;
    if (a == b) return 7;
    return (a >> 3) - (b << 2);
}

APART int exchange(volatile u128 *at, u128 old, u128 new) {
    uint64_t low = (uint64_t)old, high = (uint64_t)(old >> 64);
    unsigned char done;
    __asm__ volatile("lock cmpxchg16b %1; sete %0"
                     : "=q"(done), "+m"(*at), "+a"(low), "+d"(high)
                     : "b"((uint64_t)new), "c"((uint64_t)(new >> 64))
                     : "cc");
    return done;
}

static uint64_t round_once(void) {
    static u128 cell __attribute__((aligned(16)));
    uint64_t r = guest_seed, x = 1, words[8] = {1, 2, 3, 4, 5, 6, 7, 8}, other[8];
    cell = 5;
    for (int i = 0; i < 800; i++) {
        u128 a = ((u128)next_random(&r) << 64) | r, b = ((u128)r << 40) + 12345;
        u128 p = power(a, (b >> 3) | 1, (unsigned)(r & 0xff));
        x = mix(mix(x, (uint64_t)p), (uint64_t)(p >> 64));
        for (int j = 0; j < 8; j++) other[j] = ~(r << j);
        add_words(words, other, 8);
        x = mix(x, words[i & 7]);
        __int128 c = compare((__int128)a, (__int128)(b << (i & 63)));
        x = mix(mix(x, (uint64_t)c), (uint64_t)(c >> 64));
        x = mix(x, (uint64_t)exchange(&cell, 5, a) + (uint64_t)exchange(&cell, a, 5));
    }
    return x;
}

int main(void) { return guest_run("wide", round_once); }
