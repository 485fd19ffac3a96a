// Threads that wait in the middle of a function and then use the GS base, in a way that is selected at build
// time: gs PAGE [LIBRARY [early]]. The library is loaded at the end; with `early`, as soon as the threads are
// to wait.
#include "page.h"
#include <asm/prctl.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

enum { THREADS = 2, STEPS = 4000, WORDS = 1 << 17 };

// What a thread has behind its GS base, below 4 GiB.
static uint64_t *own[THREADS];
static void (*take)(void *);
static int awaited;

static void nap(void) {
    struct timespec tick = {0, 1000000};
    nanosleep(&tick, NULL);
}

static uint64_t gs_base(void) {
    uint64_t base = 1;
    if (syscall(SYS_arch_prctl, ARCH_GET_GS, &base)) abort();
    return base;
}

// Returns whether the calling thread has a GS base of its own afterwards.
static int use_gs(void *at) {
#if defined(BY_PRCTL)
    if (syscall(SYS_arch_prctl, ARCH_SET_GS, at)) abort();
#elif defined(BY_CODE)
    static volatile int code = ARCH_SET_GS;
    if (syscall(SYS_arch_prctl, code, at)) abort();
#elif defined(BY_WRGSBASE)
    __asm__ volatile("wrgsbase %0" ::"r"((uint64_t)at));
#elif defined(BY_WRGSBASE32)
    __asm__ volatile("wrgsbase %0" ::"r"((uint32_t)(uintptr_t)at));
#elif defined(BY_RELOAD)
    __asm__ volatile("mov %0, %%gs" ::"r"(0));
    return 0;
#elif defined(BY_POP)
    __asm__ volatile("push $0; pop %%gs" ::: "memory");
    return 0;
#else
    if (!awaited) return 0;
    while (!__atomic_load_n((void **)&take, __ATOMIC_ACQUIRE)) nap();
    take(at);
#endif
    return 1;
}

// Both threads wait here for the end, after the test's request.
APART static void stay(int which) {
    if (page->work[THREADS + which]) return;
    page->work[THREADS + which] = 1;
    while (!page->stop) nap();
    if (gs_base() != 0) page->work[2 * THREADS] = 1;
    use_gs(own[which]);
}

APART static uint64_t walk(uint64_t x, int which) {
    for (unsigned n = 0; n < STEPS; n++) {
        x = (x & 4) ? mix(x, n) : x * 5 + 3;
        if (x & 64) x ^= n;
        if (n == STEPS / 2 && which >= 0 && page->go) stay(which);
    }
    return x;
}

static void *work(void *argument) {
    int which = (int)(intptr_t)argument;
    uint64_t wanted = walk(1, which);
    while (!page->stop) {
        for (unsigned i = 0; i < 20; i++)
            if (walk(1, which) != wanted) abort();
        page_count(&page->work[which]);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    page_open(argv[1]);
    awaited = argc > 2;
    for (int i = 0; i < THREADS; i++) {
        own[i] = mmap(NULL, WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        if (own[i] == MAP_FAILED) abort();
    }
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i);
#if defined(LOCKED)
    // Memory that is mapped from now on is locked, up to LOCKED KiB; 0: up to the system's limit.
    struct rlimit limit = {LOCKED * 1024ul, LOCKED * 1024ul};
    if ((LOCKED && setrlimit(RLIMIT_MEMLOCK, &limit)) || mlockall(MCL_FUTURE)) abort();
    if (geteuid() == 0 && setresuid(65534, 65534, 65534)) abort();
#endif
#if defined(FORKS)
    while (!page->go) walk(1, -1);
    pid_t child = fork();
    if (child == 0) {
        // The whet that samples or counts the parent does not do so with this child.
        while (!page->stop) walk(1, -1);
        _exit(gs_base() != 0);
    }
    int status;
    if (waitpid(child, &status, 0) != child) abort();
    if (status != 0) page->work[2 * THREADS] = 1;
#endif
    if (argc > 2) {
        while (!page->go && !page->stop) nap();
        while (argc == 3 && !page->stop) nap();
        void *library = dlopen(argv[2], RTLD_NOW);
        if (!library) abort();
        void *found = dlsym(library, "take");
        if (!found) abort();
        __atomic_store_n((void **)&take, found, __ATOMIC_RELEASE);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    // 1: a thread had a base that it did not set. 2: something wrote to its memory.
    int wrong = page->work[2 * THREADS] ? 1 : 0;
    for (int i = 0; i < THREADS; i++)
        for (unsigned n = 0; n < WORDS; n++)
            if (own[i][n]) wrong |= 2;
    return wrong;
}
