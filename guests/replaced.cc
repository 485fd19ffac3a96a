// Two plugins replace each other at the same address. All that was found for the first is wrong for the
// second.
//#Lang: c++
//#Count: 0.9
//#Twice: lib/replaced.cc
//#Link: -rdynamic -ldl
#include "guest.h"
#include <dlfcn.h>

struct __attribute__((visibility("default"))) Base {
    virtual uint64_t value(uint64_t x) const;
    virtual uint64_t other(uint64_t x) const;
    uint64_t added = 3;
};

uint64_t Base::value(uint64_t x) const { return (x >> 3) + added; }
uint64_t Base::other(uint64_t x) const { return x; }

// With only one possible callee, compilers guess it; a second override prevents that.
struct Another : Base {
    uint64_t value(uint64_t x) const override { return x + added; }
};

APART uint64_t visit(const Base &b, uint64_t x, int n) {
    while (n--) x = mix(b.value(x), n);
    return x;
}

APART uint64_t steps(uint64_t (*step)(uint64_t, unsigned), uint64_t x, int n) {
    while (n--) x = step(x, 10);
    return x;
}

static uint64_t with(const char *path, uint64_t x, int calls) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) guest_fail("dlopen: %s", dlerror());
    auto make = reinterpret_cast<Base *(*)()>(dlsym(library, "plugin_make"));
    auto drop = reinterpret_cast<void (*)(Base *)>(dlsym(library, "plugin_drop"));
    CHECK(make && drop);
    auto step = reinterpret_cast<uint64_t (*)(uint64_t, unsigned)>(dlsym(library, "plugin_step"));
    auto thrower = reinterpret_cast<uint64_t (*)(uint64_t)>(dlsym(library, "plugin_throw"));
    CHECK(step && thrower);
    Base *b = make();
    for (int i = 0; i < calls; i++) x = visit(*b, steps(step, b->other(x), 4), 50);
    for (int i = 0; i < 20; i++) {
        try {
            x = thrower(mix(x, i));
        } catch (uint64_t thrown) {
            x = mix(x, thrown);
        }
    }
    drop(b);
    CHECK(dlclose(library) == 0);
    return x;
}

static uint64_t round_once() {
    uint64_t x = guest_seed;
    x = visit(Another(), x, 3);
    for (int i = 0; i < 4; i++) {
        x = with(GUEST_LIBRARY, x, 24000);
        x = with(GUEST_SECOND_LIBRARY, x, 6000);
    }
    return x;
}

int main() { return guest_run("replaced", round_once); }
