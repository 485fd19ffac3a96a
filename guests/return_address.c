// Functions that read their return address: they look up its module with dladdr, and compare it with the
// bounds of the program's code. One of them is reached by a tail call.
//#Lang: c
//#Link: -rdynamic -ldl
#include "guest.h"
#include <dlfcn.h>

extern char __executable_start, etext;

APART uint64_t by_bounds(uint64_t x) {
    char *from = __builtin_return_address(0);
    CHECK(from > &__executable_start && from < &etext);
    return mix(x, 3);
}

APART uint64_t by_module(uint64_t x) {
    Dl_info info;
    CHECK(dladdr(__builtin_return_address(0), &info) && info.dli_fbase == &__executable_start);
    return mix(x, 5);
}

APART uint64_t by_tail_call(uint64_t x) { return x & 1 ? by_bounds(x + 1) : x; }

// A wrapper, as in preloaded libraries.
__attribute__((visibility("default"))) int atoi(const char *text) {
    int (*next)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "atoi");
    CHECK(next && next != atoi);
    return next(text) + 1;
}

APART uint64_t caller(uint64_t x) {
    x = by_bounds(x) + 1;
    x = by_module(x) + 1;
    x = by_tail_call(x) + 1;
    return mix(x, (uint64_t)atoi("41"));
}

APART uint64_t plain(uint64_t x, unsigned n) {
    while (n--) x = (x & 4) ? mix(x, n) : x + 0x1234567;
    return x;
}

static uint64_t round_once(void) {
    uint64_t x = guest_seed;
    for (int i = 0; i < 2000; i++) x = plain(caller(x), 20);
    return x;
}

int main(void) { return guest_run("return_address", round_once); }
