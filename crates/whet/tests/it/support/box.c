// Starts a command as services and containers are started: box HOW... -- COMMAND...
//   ns       in pid and mount namespaces of its own, with a /proc and a /tmp of its own
//   mdwe     MemoryDenyWriteExecute= by prctl (Linux 6.3)
//   wx       MemoryDenyWriteExecute= by a filter, as systemd makes it
//   service  SystemCallFilter= with calls that services need, and nothing else
// Exits with 77 if the kernel does not support it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF(op, value, yes, no) BPF_JUMP(BPF_JMP | op | BPF_K, value, yes, no)
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)
#define LENGTH(array) (sizeof(array) / sizeof *(array))
enum { MDWE = 65, MDWE_REFUSE_EXEC_GAIN = 1 };

static void die(const char *what) {
    int code = errno == EINVAL || errno == ENOSYS ? 77 : 99;
    perror(what);
    exit(code);
}

static void filter(struct sock_filter *code, size_t n) {
    struct sock_fprog program = {(unsigned short)n, code};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) die("seccomp");
}

static void no_gain_of_execution(void) {
    struct sock_filter code[] = {
        LOAD(nr),
        IF(BPF_JEQ, SYS_mmap, 0, 4),
        LOAD(args[2]),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, PROT_EXEC | PROT_WRITE),
        IF(BPF_JEQ, PROT_EXEC | PROT_WRITE, 0, 6),
        RETURN(SECCOMP_RET_ERRNO | EPERM),
        IF(BPF_JEQ, SYS_mprotect, 1, 0),
        IF(BPF_JEQ, SYS_pkey_mprotect, 0, 3),
        LOAD(args[2]),
        IF(BPF_JSET, PROT_EXEC, 0, 1),
        RETURN(SECCOMP_RET_ERRNO | EPERM),
        RETURN(SECCOMP_RET_ALLOW),
    };
    filter(code, LENGTH(code));
}

static void calls_of_services(void) {
    static const int allowed[] = {
        SYS_access,     SYS_arch_prctl,   SYS_brk,          SYS_clock_nanosleep, SYS_clone,
        SYS_clone3,     SYS_close,        SYS_execve,       SYS_exit,            SYS_exit_group,
        SYS_fstat,      SYS_ftruncate,    SYS_futex,        SYS_getpid,          SYS_getrandom,
        SYS_gettid,     SYS_madvise,      SYS_mmap,         SYS_mprotect,        SYS_munmap,
        SYS_nanosleep,  SYS_newfstatat,   SYS_openat,       SYS_prctl,           SYS_pread64,
        SYS_prlimit64,  SYS_read,         SYS_rseq,         SYS_rt_sigaction,    SYS_rt_sigprocmask,
        SYS_rt_sigreturn, SYS_restart_syscall, SYS_set_robust_list, SYS_set_tid_address, SYS_write,
    };
    enum { N = LENGTH(allowed) };
    struct sock_filter code[N + 3];
    code[0] = (struct sock_filter)LOAD(nr);
    for (unsigned i = 0; i < N; i++)
        code[i + 1] = (struct sock_filter)IF(BPF_JEQ, (unsigned)allowed[i], N - i, 0);
    code[N + 1] = (struct sock_filter)RETURN(SECCOMP_RET_KILL_PROCESS);
    code[N + 2] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
    filter(code, LENGTH(code));
}

static void is_denied(void) {
    int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    if (mmap(NULL, 4096, all, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) {
        fputs("writable and executable memory is to be had\n", stderr);
        exit(99);
    }
}

// An empty /tmp, with the command's folder if that lies there.
static void own_tmp(const char *command) {
    char folder[4096] = "";
    const char *end = strrchr(command, '/');
    if (end && (size_t)(end - command) < sizeof folder) memcpy(folder, command, (size_t)(end - command));
    int kept = open(folder, O_PATH | O_DIRECTORY);
    if (kept < 0) die(folder);
    if (mount("tmp", "/tmp", "tmpfs", 0, "mode=1777")) die("/tmp");
    if (strncmp(folder, "/tmp/", 5)) return;
    for (char *at = folder + 5; (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        if (mkdir(folder, 0755) && errno != EEXIST) die(folder);
    }
    char from[64];
    snprintf(from, sizeof from, "/proc/self/fd/%d", kept);
    if (mkdir(folder, 0755) || mount(from, folder, NULL, MS_BIND, NULL)) die(folder);
    close(kept);
}

// The child continues; the parent ends as the child ends.
static void namespaces(const char *command) {
    if (unshare(CLONE_NEWPID | CLONE_NEWNS)) die("unshare");
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child) {
        int status;
        if (waitpid(child, &status, 0) != child) die("waitpid");
        exit(WIFEXITED(status) ? WEXITSTATUS(status) : 98);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("private mounts");
    if (mount("proc", "/proc", "proc", 0, NULL)) die("/proc");
    own_tmp(command);
}

int main(int argc, char **argv) {
    int command = 1;
    while (command < argc && strcmp(argv[command++], "--")) continue;
    if (command >= argc) return 2;
    for (int i = 1; i < command - 1; i++) {
        if (strcmp(argv[i], "ns") && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) die("no_new_privs");
        if (!strcmp(argv[i], "ns")) {
            namespaces(argv[command]);
        } else if (!strcmp(argv[i], "mdwe")) {
            if (prctl(MDWE, MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)) die("mdwe");
            is_denied();
        } else if (!strcmp(argv[i], "wx")) {
            no_gain_of_execution();
            is_denied();
        } else if (!strcmp(argv[i], "service")) {
            calls_of_services();
        } else {
            return 2;
        }
    }
    execv(argv[command], argv + command);
    die(argv[command]);
}
