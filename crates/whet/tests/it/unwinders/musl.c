// A C program on musl, linked dynamically or statically, without an unwinder. At the end it prints whether it
// is shown modules of whet's.
#include "../support/page.h"

#include <link.h>
#include <stdio.h>
#include <string.h>

APART uint64_t mix_some(uint64_t x, unsigned n) {
    while (n--) x = (x & 4) ? mix(x, n) : x * 5 + 3;
    return x;
}

APART uint64_t round_once(void) {
    uint64_t sum = 0;
    char text[32];
    for (unsigned i = 0; i < 2000; i++) {
        sum += mix_some(sum + i, i % 9);
        snprintf(text, sizeof text, "%llx", (unsigned long long)sum);
        sum += strlen(text);
    }
    return sum;
}

static unsigned ours;

static int see(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    ours += info->dlpi_name && !strcmp(info->dlpi_name, "[whet]");
    return 0;
}

#ifdef HANDLES
static void count_signal(int unused) { (void)unused; }
#endif

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    page_open(argv[1]);
#ifdef HANDLES
    // Brings the code by which signal handlers return into a static program.
    struct sigaction action = {.sa_handler = count_signal};
    sigaction(SIGUSR1, &action, NULL);
#endif
    uint64_t first = round_once();
    while (!page->stop) {
        if (round_once() != first) abort();
        page->work[0] = page->work[0] + 1;
    }
    dl_iterate_phdr(see, NULL);
    printf("%016llx %s\n", (unsigned long long)first, ours ? "shown" : "nothing");
    return 0;
}
