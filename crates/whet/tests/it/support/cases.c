// Programs that spin in different ways: cases PAGE WAY.
#include "page.h"
#include <asm/prctl.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

APART uint64_t mix_some(uint64_t x, unsigned n) {
    while (n--) x = (x & 4) ? mix(x, n) : x * 5 + 3;
    return x;
}

APART uint64_t sum_up(uint64_t x) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < 200; i++) sum += mix_some(x + i, i % 7);
    return sum;
}

APART uint64_t round_once(void) {
    uint64_t x = 1;
    for (unsigned i = 0; i < 50; i++) x = mix(x, sum_up(x));
    return x;
}

APART uint64_t turn_some(uint64_t x, unsigned n) {
    while (n--) x = (x & 8) ? (x << 7 | x >> 57) + n : x ^ 0x5555;
    return x;
}

APART uint64_t turn_once(void) {
    uint64_t x = 1;
    for (unsigned i = 0; i < 10000; i++) x += turn_some(x + i, i % 7);
    return x;
}

// Makes no system call, so it can run under any filter.
static uint64_t spin(volatile uint64_t *until, unsigned counter) {
    uint64_t first = round_once();
    while (!*until) {
        if (round_once() != first) __builtin_trap();
        page->work[counter] = page->work[counter] + 1;
    }
    return first;
}

static void *other(void *has_own_files) {
    if (has_own_files && unshare(CLONE_FILES)) abort();
    page->tid = (uint64_t)syscall(SYS_gettid);
    spin(&page->stop, 1);
    return NULL;
}

static void few_calls_only(void) {
    static const int allowed[] = {SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_restart_syscall};
    enum { N = sizeof allowed / sizeof *allowed };
    struct sock_filter code[N + 3];
    code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < N; i++)
        code[i + 1] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], N - i, 0);
    code[N + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    code[N + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {N + 3, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) abort();
}

int main(int argc, char **argv) {
    const char *way = argc > 2 ? argv[2] : "spin";
    page_open(argv[1]);
    uint64_t digest = 0;
    if (!strcmp(way, "spin")) {
        digest = spin(&page->stop, 0);
    } else if (!strcmp(way, "serve")) {
        // A steady load of its own: one system call after each round, until the test requests a rest.
        digest = round_once();
        while (!page->stop && !page->go) {
            if (round_once() != digest) __builtin_trap();
            page->work[0] = page->work[0] + 1;
            syscall(SYS_getppid);
        }
        page->work[1] = 1; // It rests.
        struct timespec rest = {0, 50000000};
        while (!page->stop) nanosleep(&rest, NULL);
    } else if (!strcmp(way, "now_and_then")) {
        // Busy for a quarter of the time, and with other work after a request.
        while (!page->stop) {
            struct timespec from, to;
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
            for (unsigned i = 0; i < 10; i++) digest = page->go ? turn_once() : round_once();
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
            page->work[0] = page->work[0] + 1;
            long took = (to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec;
            struct timespec rest = {0, took < 300000000 ? took * 3 : 900000000};
            nanosleep(&rest, NULL);
        }
    } else if (!strcmp(way, "locks_itself")) {
        // Holds the locks that a whet takes on a process: on the file of its memory, and on the file behind a
        // pidfd.
        int memory = open("/proc/self/mem", O_RDWR), own = (int)syscall(SYS_pidfd_open, getpid(), 0);
        if (memory < 0 || own < 0 || flock(memory, LOCK_EX)) abort();
        // Before Linux 6.9 all pidfds share one file, which no whet locks.
        if (argc > 3) flock(own, LOCK_EX);
        digest = spin(&page->stop, 0);
    } else if (!strcmp(way, "threads") || !strcmp(way, "own_files")) {
        pthread_t t;
        pthread_create(&t, NULL, other, strcmp(way, "threads") ? way : NULL);
        digest = spin(&page->stop, 0);
        pthread_join(t, NULL);
    } else if (!strcmp(way, "strict")) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) abort();
        spin(&page->stop, 0);
        syscall(SYS_exit, 0);
    } else if (!strcmp(way, "filter")) {
        few_calls_only();
        spin(&page->stop, 0);
        _exit(0);
    } else if (!strcmp(way, "exec")) {
        spin(&page->go, 0);
        execl("/proc/self/exe", argv[0], argv[1], "spin", NULL);
        abort();
    } else if (!strcmp(way, "leave")) {
        spin(&page->go, 0);
        _exit(3);
    } else if (!strcmp(way, "gs")) {
        // Data of its own behind the GS base, as Wine and some threading libraries have it.
        static uint64_t own[4096];
        // Neither number is visible in the code, because this code is part of all cases.
        volatile int number = SYS_arch_prctl + 1, code = ARCH_SET_FS;
        if (syscall(number - 1, code - 1, own)) abort();
        digest = spin(&page->stop, 0);
        for (unsigned i = 0; i < sizeof own / sizeof *own; i++)
            if (own[i]) abort();
    } else if (!strcmp(way, "vfork")) {
        pthread_t t;
        pthread_create(&t, NULL, other, NULL);
        pid_t self = getpid(), child = vfork();
        if (child == 0) {
            struct timespec tick = {0, 1000000};
            while (!page->stop && getppid() == self) {
                page->work[0] = page->work[0] + 1;
                nanosleep(&tick, NULL);
            }
            _exit(0);
        }
        pthread_join(t, NULL);
        waitpid(child, NULL, 0);
    } else {
        return 2;
    }
    printf("%016llx\n", (unsigned long long)digest);
    return argc > 3 ? atoi(argv[3]) : 0;
}
