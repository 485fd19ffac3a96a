// A parent that forks workers, as servers do: some live long, others do one task and end. All of them compute in
// functions that whet clones, and compare each round with the first. The parent exits with 1 if a round of its
// own or a worker failed.
//   family PAGE LONG [flows [headless]]
//               how many workers live long; whether short-lived ones come and go; whether the parent's first
//               thread ends
// Counters of the page: rounds of all long-lived workers, rounds of short-lived ones, short-lived workers that
// have ended. Behind them: the pid of the newest long-lived worker, how many workers may outlive the parent or
// have done what they were to do.
//   go 2    the first long-lived worker executes the program anew
//   go 3    the parent ends and leaves its workers
//   go 4    the parent forks one more long-lived worker
//   go 5-7  the first long-lived worker makes a page of its code writable: 5 leaves it so, 6 changes its last
//           byte and makes it read-only again, 7 does so without a change
#include "page.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

static APART uint64_t leaf(uint64_t digest, unsigned i) {
    if (i % 7 == 0) return mix(digest, i);
    if (i % 5 == 0) return digest + i;
    return digest ^ (digest >> 3);
}

static APART uint64_t choose(uint64_t digest, unsigned i) {
    switch (i % 6) {
    case 0: return leaf(digest, i);
    case 1: return digest * 3 + 1;
    case 2: return digest ^ i;
    case 3: return leaf(digest + 1, i + 3);
    case 4: return digest - (digest >> 5);
    default: return mix(digest, 7);
    }
}

static APART uint64_t loop(unsigned rounds) {
    uint64_t digest = 1;
    for (unsigned i = 0; i < rounds; i++) digest = choose(digest, i);
    return digest;
}

enum { ROUND = 20000 };
static uint64_t wanted;

static void work(volatile uint64_t *counter, unsigned rounds) {
    for (unsigned i = 0; i < rounds && !page->stop; i++) {
        if (loop(ROUND) != wanted) _exit(3);
        __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
    }
}

extern char etext[];

// The code has a second page, which nobody executes.
__attribute__((aligned(4096), used)) APART uint64_t spare(void) { return 7; }

static void change_rights(uint64_t how) {
    // The last page of code.
    char *at = (char *)(((uint64_t)etext - 1) & ~4095ul);
    if (mprotect(at, 4096, PROT_READ | PROT_WRITE | PROT_EXEC)) abort();
    if (how == 6) at[4095] ^= 1;
    if (how != 5 && mprotect(at, 4096, PROT_READ | PROT_EXEC)) abort();
}

static void fork_long(char *program, char *path, int is_first) {
    pid_t pid = fork();
    if (pid != 0) {
        page->work[3] = (uint64_t)pid;
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pid_t above = getppid();
    for (int is_free = 0, is_changed = 0;;) {
        work(&page->work[0], 20);
        if (page->stop || (getppid() != above && page->go != 3)) _exit(0);
        if (page->go == 2 && is_first) execl("/proc/self/exe", program, path, "0", NULL);
        if (page->go >= 5 && is_first && !is_changed) {
            change_rights(page->go);
            is_changed = 1;
            __atomic_add_fetch(&page->work[4], 1, __ATOMIC_RELAXED);
        }
        if (page->go == 3 && !is_free) {
            // Should the test be given up, it ends nevertheless.
            prctl(PR_SET_PDEATHSIG, 0);
            alarm(60);
            is_free = 1;
            __atomic_add_fetch(&page->work[4], 1, __ATOMIC_RELAXED);
        }
    }
}

static char **words;
static int many, flows, headless;

static void *parent(void *unused) {
    char path[8];
    // A thread that ends loads a library; the workers are to have it too.
    while (headless && readlink("/proc/self/exe", path, sizeof path) >= 0) usleep(1000);
    for (int i = 0; i < many; i++) fork_long(words[0], words[1], i == 0);
    int failed = 0, status;
    uint64_t done = 0;
    struct timespec nap = {0, 1000000};
    while (!page->stop) {
        uint64_t go = page->go;
        if (go == 3 && page->work[4] == (uint64_t)many) _exit(0);
        if (go == 4 && done != 4) fork_long(words[0], words[1], 0);
        done = go;
        if (flows) {
            pid_t pid = fork();
            if (pid == 0) {
                work(&page->work[1], 3);
                _exit(0);
            }
            if (waitpid(pid, &status, 0) != pid || status != 0) failed = 1;
            page->work[2] = page->work[2] + 1;
        } else {
            nanosleep(&nap, NULL);
        }
        if (loop(ROUND) != wanted) failed = 1;
    }
    while (wait(&status) > 0)
        if (status != 0) failed = 1;
    printf("%s\n", failed ? "failed" : "done");
    exit(failed);
    return unused;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    page_open(argv[1]);
    wanted = loop(ROUND);
    words = argv;
    many = atoi(argv[2]);
    flows = argc > 3 && strcmp(argv[3], "flows") == 0;
    if (many == 0) {  // executed anew by a worker
        work(&page->work[0], -1u);
        return 0;
    }
    headless = argc > 4;
    if (headless) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, parent, NULL)) return 2;
        pthread_exit(NULL);
    }
    parent(NULL);
}
