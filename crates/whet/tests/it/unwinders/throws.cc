// Four threads throw and catch all the time. On request, a fifth descends a stack of frames, stays there
// until the end is requested, and then throws through all of them.
//
// Arguments: the page, and a file for what dl_iterate_phdr shows: whether the program comes first, how many
// modules are whet's, and whether each of those can be read.
#include "../support/page.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdexcept>
#include <stdio.h>
#include <string>
#include <string.h>
#include <thread>
#include <vector>

#undef APART
#define APART __attribute__((noinline))

struct Guard {
    uint64_t &at;
    uint64_t value;
    ~Guard() { at = mix(at, value); }
};

// The names are for `--only`.
extern "C" APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x & 2) ? x * 5 + 1 : mix(x, n);
    return x;
}

static APART void wait_for(volatile uint64_t *word) {
    while (!*word) usleep(1000);
}

// Throws at the bottom; if `wait` is set, only when the end is requested.
extern "C" APART uint64_t descend(unsigned depth, uint64_t x, uint64_t &digest, bool wait) {
    Guard guard{digest, depth};
    x = hot(x, 3);
    if (depth == 0) {
        if (wait) {
            page->tid = (uint64_t)gettid();
            wait_for(&page->stop);
        }
        if (x & 1 || wait) throw std::runtime_error("thrown");
        if (x & 2) throw x;
        return x;
    }
    uint64_t y = descend(depth - 1, x, digest, wait);
    return mix(y, x);
}

extern "C" APART uint64_t attempt(unsigned depth, uint64_t digest, bool wait) {
    try {
        uint64_t x = descend(depth, digest, digest, wait);
        digest = mix(digest, x);
    } catch (const std::exception &e) {
        digest = mix(digest, strlen(e.what()));
    } catch (uint64_t x) {
        digest = mix(digest, x);
    }
    return digest;
}

static APART uint64_t round_of(uint64_t seed) {
    uint64_t digest = seed;
    for (unsigned i = 0; i < 60; i++) digest = attempt(i % 10, digest, false);
    return digest;
}

// Not a constant in code: unwinders are recognised by such a constant.
static volatile unsigned frame_index = PT_GNU_EH_FRAME;

static int at_once(struct dl_phdr_info *, size_t, void *) { return 42; }

// A caller of the walk into which no sample need fall.
extern "C" APART int list_modules() {
    int said = dl_iterate_phdr(at_once, nullptr);
    __asm__ volatile("");
    return said;
}

static void work(unsigned thread, uint64_t *result) {
    uint64_t first = round_of(thread + 1);
    do {
        if (round_of(thread + 1) != first) {
            puts("mismatch");
            fflush(stdout);
            _exit(1);
        }
#ifdef LISTS
        for (unsigned i = 0; i < 20; i++)
            if (list_modules() != 42) _exit(1);
#endif
        page_count(&page->work[thread]);
    } while (!page->stop);
    *result = first;
}

struct Seen {
    unsigned modules, ours;
    bool program_first, readable;
    uint64_t adds;
};

static int see(struct dl_phdr_info *info, size_t size, void *data) {
    Seen *seen = (Seen *)data;
    if (seen->modules++ == 0) {
        seen->program_first = info->dlpi_phdr == nullptr || info->dlpi_name[0] == 0;
        seen->adds = info->dlpi_adds;
    }
    if (seen->adds != info->dlpi_adds || size < sizeof *info) seen->readable = false;
    if (strcmp(info->dlpi_name, "[whet]") == 0) {
        seen->ours++;
        const ElfW(Phdr) *h = info->dlpi_phdr;
        bool two = info->dlpi_phnum == 2 && h[0].p_type == PT_LOAD && h[1].p_type == frame_index;
        const unsigned char *index = (const unsigned char *)(info->dlpi_addr + h[1].p_vaddr);
        if (!two || h[0].p_flags != (PF_R | PF_X) || index[0] != 1) seen->readable = false;
    }
    // A callback may end the walk. The walk returns what the callback returned.
    return seen->modules == 1000 ? 7 : 0;
}

#ifdef ANSWERS
// Replaces libc's function, for the libraries as well.
extern "C" int dl_iterate_phdr(int (*callback)(struct dl_phdr_info *, size_t, void *), void *data) {
    typedef int Walk(int (*)(struct dl_phdr_info *, size_t, void *), void *);
    static Walk *const next = (Walk *)dlsym(RTLD_NEXT, "dl_iterate_phdr");
    return next(callback, data);
}
#endif

static void report(const char *path) {
    typedef int Walk(int (*)(struct dl_phdr_info *, size_t, void *), void *);
    Seen seen = {};
    seen.readable = true;
#ifdef ENUMERATES
    Walk *walk = dl_iterate_phdr;
#else
    Walk *walk = (Walk *)dlsym(RTLD_DEFAULT, "dl_iterate_phdr");
#endif
    int all = walk(see, &seen), first = walk(at_once, &seen);
    FILE *out = fopen(path, "w");
    fprintf(out, "%d %d %d %d %u\n", all, first, seen.program_first, seen.readable, seen.ours);
    fclose(out);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    page_open(argv[1]);
    uint64_t results[5] = {}, x = 1;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 4; i++) threads.emplace_back(work, i, &results[i]);
    threads.emplace_back([&results] {
        wait_for(&page->go);
        results[4] = attempt(12, 99, true);
    });
    for (auto &t : threads) t.join();
    for (uint64_t r : results) x = mix(x, r);
    report(argv[2]);
    printf("threw %016llx\n", (unsigned long long)x);
}
