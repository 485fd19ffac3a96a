// A page that the program and the test share: a request from the test, and counters that show the program at
// work.
#ifndef PAGE_H
#define PAGE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

struct page {
    uint64_t stop;   // set by the test: the program is to end
    uint64_t go;     // set by the test: the program is to do its special action
    uint64_t tid;    // of a thread that is not the first
    uint64_t work[5];  // rounds, one counter for each thread at work
};

static volatile struct page *page;

static inline void page_open(const char *path) {
    // If a test is given up, its program ends too.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(path, O_RDWR);
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) abort();
    close(fd);
    page = (volatile struct page *)at;
}

// After a round: adds 1 to one of the page's counters, and sleeps in the kernel for 1 ms.
static inline void page_count(volatile uint64_t *counter) {
    struct timespec nap = {0, 1000000};
    *counter = *counter + 1;
    nanosleep(&nap, NULL);
}

static inline uint64_t mix(uint64_t digest, uint64_t value) {
    digest = (((digest << 5) | (digest >> 59)) ^ value) * 0xff51afd7ed558ccdu + 0x2545f4914f6cdd1du;
    return digest ^ (digest >> 29);
}

#define APART __attribute__((noipa))

#endif
