// A library is loaded, called and unloaded again and again.
//#Lang: c
//#Library: lib/plugin.c
//#Link: -rdynamic -ldl
#include "guest.h"
#include <dlfcn.h>

APART uint64_t host_hot(uint64_t x, unsigned n) {
    while (n--) x = (x & 8) ? mix(x, n) : x + 0x123456789;
    return x;
}

__attribute__((visibility("default"))) uint64_t host_callback(uint64_t x) { return host_hot(x, 4); }

static uint64_t round_once(void) {
    uint64_t x = 1;
    for (int i = 0; i < 3; i++) {
        void *library = dlopen(GUEST_LIBRARY, (i & 1) ? RTLD_NOW : RTLD_LAZY);
        if (!library) guest_fail("dlopen: %s", dlerror());
        uint64_t (*work)(uint64_t, unsigned) = (uint64_t(*)(uint64_t, unsigned))dlsym(library, "plugin_work");
        int *instances = dlsym(library, "plugin_instances");
        CHECK(work && instances && *instances == 1);
        for (int j = 0; j < 500; j++) x = work(host_hot(x, 5), 20);
        CHECK(dlclose(library) == 0);
    }
    return x;
}

int main(void) { return guest_run("plugin", round_once); }
