// vfork, exec and posix_spawn of this program itself, in the middle of hot work.
//#Lang: c
#include "guest.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
static char self[4096];

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x % 7 < 3) ? mix(x, n) : x * 5 + 3;
    return x;
}

APART int ended(pid_t child) {
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status)) guest_fail("child ended with status %x", (unsigned)status);
    return WEXITSTATUS(status);
}

APART int by_vfork_exec(char *const argv[]) {
    pid_t child = vfork();
    if (child == 0) {
        execve(self, argv, environ);
        _exit(99);
    }
    return ended(child);
}

APART int by_vfork_exit(int code) {
    pid_t child = vfork();
    if (child == 0) _exit(code);
    return ended(child);
}

APART int by_fork_exec(char *const argv[]) {
    pid_t child = fork();
    if (child == 0) {
        execve(self, argv, environ);
        _exit(99);
    }
    return ended(child);
}

APART int by_spawn(char *const argv[]) {
    pid_t child;
    CHECK(posix_spawn(&child, self, NULL, NULL, argv, environ) == 0);
    return ended(child);
}

static uint64_t round_once(void) {
    static char number[24];
    char *const argv[] = {"child", number, NULL};
    uint64_t x = 1;
    int (*const ways[])(char *const[]) = {by_vfork_exec, by_fork_exec, by_spawn};
    for (int i = 0; i < 3; i++) {
        x = hot(x, 30000);
        snprintf(number, sizeof number, "%d", i + 1);
        int code = ways[i](argv);
        if (code != (int)(hot((uint64_t)i + 1, 500) & 63)) guest_fail("way %d gave %d", i, code);
        CHECK(by_vfork_exit(i + 7) == i + 7);
    }
    return x;
}

int main(int argc, char **argv) {
    if (argc == 2) return (int)(hot(strtoull(argv[1], NULL, 10), 500) & 63);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(n > 0);
    return guest_run("spawn", round_once);
}
