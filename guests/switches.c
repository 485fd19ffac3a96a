// Switches of every shape for which compilers make a jump table.
//#Lang: c
#include "guest.h"

// Each case does different work, so that no compiler turns the switch into a table of values.
#define CASE(n, work) \
    case n:           \
        work;         \
        break;

APART uint64_t dense(uint64_t k, uint64_t x) {
    switch (k) {
        CASE(0, x += 3)
        CASE(1, x *= 5)
        CASE(2, x ^= x >> 7)
        CASE(3, x = (x << 9) | (x >> 55))
        CASE(4, x -= 0x1234567)
        CASE(5, x = ~x)
        CASE(6, x ^= 0xabcdef)
        CASE(7, x += x << 2)
        CASE(8, x = __builtin_bswap64(x))
    default:
        x += k;
    }
    return x;
}

APART uint64_t gaps(int k, uint64_t x) {
    switch (k) {
        CASE(1, x += 11)
        CASE(3, x ^= x << 3)
        CASE(4, x *= 7)
        CASE(9, x -= 77)
        CASE(10, x = ~x)
        CASE(14, x ^= x >> 11)
        CASE(17, x += 0x55)
        CASE(21, x *= 13)
    default:
        return x - 1;
    }
    return x + 1;
}

APART uint64_t nested(unsigned a, unsigned b, uint64_t x) {
    switch (a) {
        CASE(0, x += 1)
        CASE(1, x *= 3)
    case 2:
        switch (b) {
            CASE(0, x ^= 5)
            CASE(1, x += x >> 3)
            CASE(2, x *= 9)
            CASE(3, x -= 31)
            CASE(4, x = ~x)
            CASE(5, x ^= x << 5)
        default:
            return x;
        }
        break;
        CASE(3, x -= 4)
        CASE(4, x ^= x >> 9)
        CASE(5, x = (x << 1) | (x >> 63))
    default:
        x = 0x77 - x;
    }
    return x * 3;
}

// Two switches over the same values, one after the other. Some compilers use one base for both tables.
APART uint64_t two(unsigned a, uint64_t x) {
    switch (a) {
        CASE(0, x += 17)
        CASE(1, x *= 19)
        CASE(2, x ^= x >> 5)
        CASE(3, x -= 23)
        CASE(4, x = ~x)
        CASE(5, x += x << 4)
    }
    x = mix(x, a);
    switch (a) {
        CASE(0, x ^= x >> 13)
        CASE(1, x += 29)
        CASE(2, x *= 31)
        CASE(3, x = __builtin_bswap64(x))
        CASE(4, x -= 37)
        CASE(5, x ^= 0xf0f0)
    }
    return x;
}

APART uint64_t byte_index(uint8_t k, uint64_t x) {
    switch (k) {
        CASE('a', x += 3)
        CASE('b', x *= 3)
        CASE('c', x ^= x >> 3)
        CASE('d', x -= 3)
        CASE('e', x = ~x)
        CASE('f', x += x << 3)
        CASE('g', x ^= 0x333)
        CASE('h', x *= 33)
    default:
        x ^= k;
    }
    return x;
}

#define EIGHT(base, op)                                                                                              \
    CASE(base, x op 1) CASE(base + 1, x op 3) CASE(base + 2, x op 5) CASE(base + 3, x op 7) CASE(base + 4, x op 9)    \
        CASE(base + 5, x op 11) CASE(base + 6, x op 13) CASE(base + 7, x op 15)

// All 256 values of a byte, so no bound is compared.
APART uint64_t whole_byte(uint8_t k, uint64_t x) {
    uint64_t y = x ^ 0x5a5a;
    switch (k) {
#define LINE(base)                                                                                                   \
    EIGHT(base, +=) EIGHT(base + 8, *=) EIGHT(base + 16, ^=) EIGHT(base + 24, -=)
        LINE(0) LINE(32) LINE(64) LINE(96) LINE(128) LINE(160) LINE(192) LINE(224)
    }
    return x ^ y;
}

APART uint64_t masked(uint64_t k, uint64_t x) {
    switch (k & 7) {
        CASE(0, x += 41)
        CASE(1, x *= 43)
        CASE(2, x ^= x >> 15)
        CASE(3, x -= 47)
        CASE(4, x = ~x)
        CASE(5, x += x << 6)
        CASE(6, x ^= 0x4747)
        CASE(7, x = (x << 17) | (x >> 47))
    }
    return x;
}

APART uint64_t wide_index(uint64_t k, uint64_t x) {
    switch (k) {
        CASE(0x100000000u, x += 51)
        CASE(0x100000001u, x *= 53)
        CASE(0x100000002u, x ^= x >> 17)
        CASE(0x100000003u, x -= 57)
        CASE(0x100000004u, x = ~x)
        CASE(0x100000005u, x += x << 7)
        CASE(0x100000006u, x ^= 0x5757)
    default:
        return k;
    }
    return x;
}

APART uint64_t negative(int k, uint64_t x) {
    switch (k) {
        CASE(-5, x += 61)
        CASE(-4, x *= 63)
        CASE(-3, x ^= x >> 19)
        CASE(-2, x -= 67)
        CASE(-1, x = ~x)
        CASE(0, x += x << 8)
        CASE(1, x ^= 0x6767)
        CASE(2, x = (x << 27) | (x >> 37))
    default:
        x += (uint64_t)(int64_t)k;
    }
    return x;
}

APART uint64_t unreachable(unsigned k, uint64_t x) {
    switch (k) {
        CASE(0, x += 71)
        CASE(1, x *= 73)
        CASE(2, x ^= x >> 21)
        CASE(3, x -= 77)
        CASE(4, x = ~x)
        CASE(5, x += x << 9)
    default:
        __builtin_unreachable();
    }
    return x;
}

// Cases that fall through, several labels for one case, and a case that leaves the loop.
APART uint64_t looping(const uint8_t *program, uint64_t x) {
    for (;;) {
        switch (*program++) {
        case 0:
            return x;
        case 1:
        case 2:
            x += 81;
            /* fall through */
        case 3:
            x ^= x << 10;
            continue;
        case 4:
            x *= 83;
            break;
        case 5:
            if (x & 1) continue;
            x -= 87;
            break;
        case 6:
            program += *program ? 1 : 0;
            break;
        case 7:
            x = __builtin_bswap64(x);
            break;
        default:
            x = ~x;
        }
        x = mix(x, 1);
    }
}

// A switch at the end of a function: each case may become a tail call.
APART uint64_t tail(unsigned k, uint64_t x) {
    switch (k) {
    case 0: return dense(x & 7, x);
    case 1: return gaps((int)(x & 15), x);
    case 2: return masked(x, x);
    case 3: return negative((int)(x & 3), x);
    case 4: return unreachable((unsigned)(x % 6), x);
    case 5: return wide_index(x, x);
    default: return two(k % 6, x);
    }
}

static uint64_t round_once(void) {
    uint64_t r = guest_seed, x = 1;
    for (int i = 0; i < 4000; i++) {
        uint64_t k = next_random(&r);
        x = mix(dense(k % 11, x), gaps((int)(k >> 8) % 24, x));
        x = nested((unsigned)(k >> 3) % 7, (unsigned)(k >> 13) % 7, x);
        x = two((unsigned)(k >> 5) % 7, x);
        x = byte_index((uint8_t)(k >> 9), x);
        x = byte_index((uint8_t)('a' + (k >> 19) % 9), x);
        x = whole_byte((uint8_t)(k >> 11), x);
        x = masked(k >> 7, x);
        x = mix(x, wide_index(0xffffffffu + (k >> 23) % 9, x));
        x = mix(x, wide_index((k >> 33) % 9, x));
        x = negative((int)((k >> 17) % 10) - 6, x);
        x = unreachable((unsigned)(k >> 21) % 6, x);
        uint8_t program[24];
        for (int j = 0; j < 23; j++) program[j] = (uint8_t)(1 + (k >> j) % 9);
        program[22] = program[23] = 0;
        x = looping(program, x);
        x = tail((unsigned)(k >> 29) % 8, x);
    }
    return x;
}

int main(void) { return guest_run("switches", round_once); }
