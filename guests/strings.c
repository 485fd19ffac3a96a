// String functions chosen by ifunc: the C library's and one of the program.
//#Lang: c
#include "guest.h"
#include <strings.h>
#include <wchar.h>

typedef uint64_t hasher(const char *text, size_t n);

APART uint64_t hash_bytes(const char *text, size_t n) {
    uint64_t x = 5381;
    while (n--) x = x * 33 + (uint8_t)*text++;
    return x;
}
__attribute__((unused)) static hasher *resolve_hash(void) { return hash_bytes; }
hasher hash __attribute__((ifunc("resolve_hash")));

static uint64_t round_once(void) {
    char a[700], b[700];
    uint64_t r = guest_seed, x = 1;
    for (int i = 0; i < 400; i++) {
        size_t n = 1 + next_random(&r) % 600;
        for (size_t j = 0; j < n; j++) a[j] = (char)('a' + (r >> (j % 50)) % 26);
        a[n] = 0;
        memset(b, 'z', sizeof b);
        memcpy(b, a, n + 1);
        x = mix(x, strlen(b) + hash(b, n));
        CHECK(strcmp(a, b) == 0 && memcmp(a, b, n) == 0);
        char *found = strchr(a, (char)('a' + i % 26));
        x = mix(x, found ? (uint64_t)(found - a) : n);
        found = strrchr(a, (char)('a' + i % 26));
        x = mix(x, found ? (uint64_t)(found - a) : n);
        memmove(a + n / 3, a, n - n / 3);
        x = mix(x, hash(a, n));
        found = strstr(b, "ab");
        x = mix(x, found ? (uint64_t)(found - b) : n);
        x = mix(x, strspn(b, "abcdefghijklm"));
        CHECK(memchr(b, 0, sizeof b) == b + n);
        CHECK(strnlen(b, sizeof b) == n);
        CHECK(strncasecmp(b, b, n) == 0);
        x = mix(x, strcmp(a, b) < 0);
        wchar_t wide[64];
        wmemset(wide, L'x', 63);
        wide[n % 63] = 0;
        x = mix(x, wcslen(wide));
    }
    return x;
}

int main(void) { return guest_run("strings", round_once); }
