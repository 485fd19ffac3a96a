// Two plugins replace each other at the same address, until the test requests the end of this. Beside them,
// the program works.
#include "page.h"
#include <dlfcn.h>
#include <pthread.h>

struct __attribute__((visibility("default"))) Base {
    virtual uint64_t value(uint64_t x) const;
    virtual uint64_t other(uint64_t x) const;
    uint64_t added = 3;
};

uint64_t Base::value(uint64_t x) const { return (x >> 3) + added; }
uint64_t Base::other(uint64_t x) const { return x; }

struct Another : Base {
    uint64_t value(uint64_t x) const override { return x + added; }
};

APART static uint64_t visit(const Base &b, uint64_t x, int n) {
    while (n--) x = mix(b.value(x), (uint64_t)n);
    return x;
}

static char **paths;

static uint64_t with(const char *path, uint64_t x) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) abort();
    auto make = reinterpret_cast<Base *(*)()>(dlsym(library, "plugin_make"));
    auto drop = reinterpret_cast<void (*)(Base *)>(dlsym(library, "plugin_drop"));
    auto step = reinterpret_cast<uint64_t (*)(uint64_t, unsigned)>(dlsym(library, "plugin_step"));
    auto thrower = reinterpret_cast<uint64_t (*)(uint64_t)>(dlsym(library, "plugin_throw"));
    Base *b = make();
    for (int i = 0; i < 40; i++) x = visit(*b, step(b->other(x), 40), 50);
    for (uint64_t i = 0; i < 3; i++) {
        try {
            x = thrower(mix(x, i));
        } catch (uint64_t thrown) {
            x = mix(x, thrown);
        }
    }
    drop(b);
    if (dlclose(library)) abort();
    return x;
}

static uint64_t both() { return with(paths[1], with(paths[0], 1)); }

static void *plugins(void *unused) {
    uint64_t first = both();
    while (!page->go && !page->stop) {
        if (both() != first) abort();
        page->work[1] = page->work[1] + 1;
    }
    return unused;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    page_open(argv[1]);
    paths = argv + 2;
    pthread_t thread;
    uint64_t first = visit(Another(), 1, 100000);
    if (pthread_create(&thread, NULL, plugins, NULL)) abort();
    while (!page->stop) {
        if (visit(Another(), 1, 100000) != first) abort();
        page_count(&page->work[0]);
    }
    return pthread_join(thread, NULL);
}
