// A parent that calls a function of the C library, and a worker that was forked before the first such call and
// makes none until "go 2". So the slot of the function holds another value in each, if slots are bound late.
#include "page.h"
#include <stdio.h>
#include <sys/wait.h>

enum { ROUND = 2000 };

static APART uint64_t round_of(const char *text) {
    uint64_t digest = 1;
    for (unsigned i = 0; i < ROUND; i++) {
        char turned[8] = "";
        swab(text, turned, 4);
        digest = mix(digest, (uint64_t)turned[i % 4]);
    }
    return digest;
}

static APART uint64_t alone(void) {
    uint64_t digest = 1;
    for (unsigned i = 0; i < ROUND; i++) digest = mix(digest, i);
    return digest;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    page_open(argv[1]);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        uint64_t wanted = alone(), digest = 0;
        while (!page->stop) {
            if (alone() != wanted) _exit(3);
            if (page->go == 2) {
                uint64_t now = round_of("98765");
                if (digest != 0 && now != digest) _exit(4);
                digest = now;
            }
            page_count(&page->work[1]);
        }
        _exit(0);
    }
    page->work[3] = (uint64_t)pid;
    uint64_t wanted = round_of("12345");
    int failed = 0, status;
    while (!page->stop) {
        if (round_of("12345") != wanted) failed = 1;
        page_count(&page->work[0]);
    }
    if (waitpid(pid, &status, 0) != pid || status != 0) failed = 1;
    printf("%s\n", failed ? "failed" : "done");
    return failed;
}
