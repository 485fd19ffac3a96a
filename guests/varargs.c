// Variable arguments: registers, floats (al), the stack, va_copy, and a list that is passed on.
//#Lang: c
#include "guest.h"

APART uint64_t sum(int count, ...) {
    va_list args;
    va_start(args, count);
    uint64_t total = 0;
    for (int i = 0; i < count; i++) total = mix(total, va_arg(args, uint64_t));
    va_end(args);
    return total;
}

APART uint64_t typed_list(const char *types, va_list args) {
    uint64_t x = 0;
    for (; *types; types++) {
        switch (*types) {
        case 'i': x = mix(x, (uint64_t)va_arg(args, int)); break;
        case 'l': x = mix(x, va_arg(args, uint64_t)); break;
        case 'd': x = mix(x, (uint64_t)(va_arg(args, double) * 1024.0)); break;
        case 's': x = mix(x, strlen(va_arg(args, const char *))); break;
        case 'L': x = mix(x, (uint64_t)(va_arg(args, long double) * 8.0L)); break;
        default: guest_fail("type %c", *types);
        }
    }
    return x;
}

APART uint64_t typed(const char *types, ...) {
    va_list args, again;
    va_start(args, types);
    va_copy(again, args);
    uint64_t x = typed_list(types, args);
    CHECK(x == typed_list(types, again));
    va_end(again);
    va_end(args);
    return x;
}

static uint64_t round_once(void) {
    uint64_t r = guest_seed, x = 1;
    char text[160];
    for (int i = 0; i < 600; i++) {
        uint64_t k = next_random(&r);
        x = mix(x, sum(3, x, k, (uint64_t)i));
        x = mix(x, sum(9, x, k, x ^ k, x + k, k >> 3, k >> 5, k >> 7, k >> 9, x));
        x = mix(x, typed("idlsdiL", i, (double)(k & 0xffff) / 7.0, k, "four", 0.25 * i, 7, (long double)i));
        x = mix(x, typed("dddddddddd", 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, (double)i));
        int n = snprintf(text, sizeof text, "%d %s %.3f %llx %c %5u|%-6ld|", i, "text", (double)(k & 0xfff) / 16.0,
                         (unsigned long long)k, 'a' + i % 26, (unsigned)(k & 0xffff), (long)i);
        for (int j = 0; j < n; j++) x = mix(x, (uint8_t)text[j]);
    }
    return x;
}

int main(void) { return guest_run("varargs", round_once); }
