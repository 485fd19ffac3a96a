// A parent and a worker that share memory. The worker writes each page again and again, and checks that each still has
// what it wrote in the round before. The parent sleeps, has touched nothing of the memory until the end, and then finds
// what the last round has written. It exits with 1 if anything else was found.
//   shared PAGE MIB HOW
//               how much memory, and where: `aligned` to 2 MiB, or `unaligned`; `holes`: of each second 2 MiB a
//               sixteenth is left out, of each fourth the half; `empty`: nothing is written; `busy`: the parent
//               never sleeps; `private`: the memory is the worker's alone
// The worker's rounds are the counter of the page; behind them is its pid.
#include "page.h"
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

enum { PAGE = 4096, HUGE = 2 << 20, WORDS = PAGE / 8 };

static volatile uint64_t *memory;
static uint64_t pages;
static int holes, empty;

static int is_used(uint64_t page) {
    uint64_t unit = page / (HUGE / PAGE), in_unit = page % (HUGE / PAGE);
    if (empty) return 0;
    if (!holes) return 1;
    if (unit % 4 == 3) return in_unit % 2;
    return unit % 2 == 0 || in_unit % 16;
}

static uint64_t written(uint64_t page, uint64_t round) { return mix(page, round) | 1; }

static int is_as_written(uint64_t page, uint64_t round) {
    volatile uint64_t *at = memory + page * WORDS;
    return at[0] == written(page, round) && at[WORDS - 1] == written(page, round);
}

static void write_page(uint64_t page, uint64_t round) {
    volatile uint64_t *at = memory + page * WORDS;
    at[0] = at[WORDS - 1] = written(page, round);
}

static void work(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    page->work[1] = (uint64_t)getpid();
    for (uint64_t i = 0; i < pages; i++)
        if (is_used(i)) write_page(i, 0);
    for (uint64_t round = 0; !page->stop; round++) {
        for (uint64_t i = 0; i < pages; i++) {
            if (!is_used(i)) continue;
            if (!is_as_written(i, round)) _exit(3);
            write_page(i, round + 1);
        }
        page->work[0] = round + 1;
    }
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    page_open(argv[1]);
    uint64_t size = strtoul(argv[2], NULL, 10) << 20;
    const char *how = argv[3];
    pages = size / PAGE;
    holes = strcmp(how, "holes") == 0;
    empty = strcmp(how, "empty") == 0;
    char *place = (char *)0x300000000000 + (strcmp(how, "unaligned") == 0 ? PAGE : 0);
    int is_private = strcmp(how, "private") == 0;
    int flags = (is_private ? MAP_PRIVATE : MAP_SHARED) | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    memory = mmap(place, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory != (void *)place) return 2;
    pid_t worker = fork();
    if (worker == 0) work();
    struct timespec nap = {0, 20000000};
    while (!page->stop)
        if (strcmp(how, "busy")) nanosleep(&nap, NULL);
    int status, failed;
    failed = waitpid(worker, &status, 0) != worker || status != 0;
    for (uint64_t i = 0; i < pages && !is_private; i++) failed |= is_used(i) && !is_as_written(i, page->work[0]);
    printf("%s\n", failed ? "failed" : "done");
    return failed;
}
