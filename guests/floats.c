// Floating point: SSE, x87, rounding modes and conversions. Vector registers are live across branches and
// calls.
//#Lang: c
//#Flags: -frounding-math -ffp-contract=off
//#Link: -lm
#include "guest.h"
#include <emmintrin.h>
#include <fenv.h>
#include <math.h>

static uint64_t bits(double d) {
    uint64_t u;
    memcpy(&u, &d, 8);
    return u;
}

APART double newton(double a, int steps) {
    double x = a > 1 ? a / 2 : a;
    while (steps--) x = 0.5 * (x + a / x);
    return x;
}

APART double polynomial(const double *c, int n, double x) {
    double y = 0;
    while (n--) y = y * x + c[n];
    return y;
}

APART long double extended(long double x, int n) {
    long double y = 1;
    while (n--) y = (y > 100.0L) ? y / 3.0L : y * x + 0.125L;
    return y;
}

APART __m128i vectors(__m128i a, __m128i b, int n) {
    while (n--) {
        if (_mm_movemask_epi8(_mm_cmplt_epi32(a, b)) & 0x10)
            a = _mm_add_epi32(a, _mm_slli_epi32(b, 3));
        else
            b = _mm_xor_si128(b, _mm_srli_epi32(a, 5));
        a = _mm_shuffle_epi32(a, 0x39);
    }
    return _mm_add_epi64(a, b);
}

APART float narrow(float x, int n) {
    while (n--) x = x < 1.0f ? x * 1.75f : x - 0.3f;
    return x;
}

static uint64_t round_once(void) {
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    static const double c[] = {0.5, -1.25, 3.0, 0.1, -0.7};
    uint64_t r = guest_seed, x = 1;
    for (int i = 0; i < 600; i++) {
        double d = (double)(next_random(&r) >> 20) / 4096.0 + 0.001;
        fesetround(modes[i % 4]);
        x = mix(x, bits(newton(d, 12)));
        x = mix(x, bits(polynomial(c, 5, d / 1e9)));
        x = mix(x, bits((double)extended((long double)d / 1e8L, 30)));
        fesetround(FE_TONEAREST);
        x = mix(x, bits((double)narrow((float)(d / 1e10), 40)));
        x = mix(x, (uint64_t)(int64_t)lrint(d / 3) + (uint64_t)(d * 1e-3));
        x = mix(x, bits(floor(d) + fabs(-d) + fmod(d, 3.7)));
        __m128i v = vectors(_mm_set_epi32(i, 2, (int)r, 4), _mm_set_epi32(5, (int)(r >> 32), 7, i), 30);
        uint64_t parts[2];
        _mm_storeu_si128((__m128i *)parts, v);
        x = mix(mix(x, parts[0]), parts[1]);
        x = mix(x, (uint64_t)(isnan(d / 0.0 - d / 0.0) != 0) + (uint64_t)signbit(-d));
    }
    return x;
}

int main(void) { return guest_run("floats", round_once); }
