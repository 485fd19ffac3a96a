// Threads that only call one small function. Argument 1 is a file of one page, with the call count of each
// thread in a cache line (64 bytes) of its own. Argument 2 is the number of threads, 64 at most.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static volatile uint64_t *page;

__attribute__((noipa)) uint64_t hammered(uint64_t x) {
    if (x & 1) x = x * 3 + 1;
    else x >>= 1;
    if ((x & 7) == 5) x ^= x << 7;
    return x;
}

static void *hammer(void *arg) {
    volatile uint64_t *calls = page + 8 * (uintptr_t)arg;
    for (uint64_t x = (uintptr_t)arg + 12345;; *calls += 1) x = hammered(x) + 1;
    return NULL;
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(argv[1], O_RDWR);
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) abort();
    pthread_t t;
    for (uintptr_t i = 1; i < (uintptr_t)atoi(argv[2]); i++) pthread_create(&t, NULL, hammer, (void *)i);
    hammer(NULL);
    return 0;
}
