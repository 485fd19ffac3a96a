// Threads of which some compute and the others wait: in epoll_wait, in recv, for a condition. Argument 1 is a
// file of one page, whose first 8 bytes count rounds of the first computing thread. Bytes 8 to 15 are 1 when
// all threads run. Argument 2 is the number of threads, argument 3 how many of them compute.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

static volatile uint64_t *page;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;

#define STEP(n) \
    __attribute__((noipa)) static uint64_t step##n(uint64_t x) { \
        if (x & 1) x = x * 3 + n; \
        else x >>= 1; \
        if ((x & 7) == n % 8) x ^= x << 7; \
        return x; \
    }
STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8)

static void *compute(void *arg) {
    uintptr_t n = (uintptr_t)arg;
    for (uint64_t x = n + 12345;;) {
        x = step1(x) + step2(x) + step3(x) + step4(x) + 1;
        x = step5(x) + step6(x) + step7(x) + step8(x) + 1;
        if (n == 0) page[0]++;
    }
    return NULL;
}

static void *wait_for_ever(void *arg) {
    uintptr_t n = (uintptr_t)arg;
    int pair[2], poll;
    char byte;
    struct epoll_event event;
    switch (n % 3) {
    case 0:
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) abort();
        for (;;) recv(pair[0], &byte, 1, 0);
    case 1:
        poll = epoll_create1(0);
        for (;;) epoll_wait(poll, &event, 1, -1);
    default:
        pthread_mutex_lock(&lock);
        for (;;) pthread_cond_wait(&never, &lock);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(argv[1], O_RDWR);
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) abort();
    uintptr_t all = strtoul(argv[2], NULL, 10), computing = strtoul(argv[3], NULL, 10);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    pthread_t t;
    for (uintptr_t i = 1; i < all; i++)
        if (pthread_create(&t, &small, i < computing ? compute : wait_for_ever, (void *)i)) abort();
    page[1] = 1;
    compute(NULL);
}
