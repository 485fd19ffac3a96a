// Requests the address of a symbol, through a function that passes the request on by a jump: wrapped PAGE.
#include "page.h"
#include <dlfcn.h>

APART void *seek(void *where, const char *name) { return dlsym(where, name); }

APART void *seek_on(const char *name, void *where) { return seek(where, name); }

// Looks up the next `malloc` behind the module of the caller, which must be a module that the loader has
// listed.
APART uint64_t look(uint64_t x) { return x + (seek_on("malloc", RTLD_NEXT) != NULL); }

APART uint64_t plain(uint64_t x) {
    for (int i = 0; i < 1000; i++) x = mix(x, x & 7);
    return x;
}

int main(int argc, char **argv) {
    if (argc < 2) return 1;
    page_open(argv[1]);
    while (!page->stop) {
        if (look(plain(3)) != plain(3) + 1) abort();
        page->work[0] = page->work[0] + 1;
    }
    return 0;
}
