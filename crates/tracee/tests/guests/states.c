// A process in some state, by its argument, with a thread that counts (but for vforks).
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile unsigned long count, children;
static int full[2];
static void *counter(void *p) { for (;;) { count++; __asm__ volatile("pause"); } }
static void ready(void) {
  printf("READY %p %p\n", &count, &children);
  fflush(stdout);
}
// Gives the page for which the main thread waits after a while.
static void *provider(void *fd) {
  struct uffd_msg fault;
  if (read((int)(long)fd, &fault, sizeof fault) != sizeof fault) abort();
  usleep(1500000);
  struct uffdio_zeropage zero = {{fault.arg.pagefault.address & -4096ul, 4096}, 0, 0};
  if (ioctl((int)(long)fd, UFFDIO_ZEROPAGE, &zero)) abort();
  return 0;
}
// Writes more than the pipe holds, and makes children afterwards.
static void *makes_children(void *p) {
  static char much[300000];
  if (write(full[1], much, sizeof much) < 0) abort();
  for (;; children++) {
    pid_t child = vfork();
    if (child == 0) _exit(0);
    waitpid(child, 0, 0);
    usleep(10000);
  }
}
// Lets the write go on after a while.
static void *reads(void *p) {
  char some[4096];
  usleep(700000);
  while (read(full[0], some, sizeof some) > 0) {
  }
  return 0;
}
// The guest ends with the test.
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(int argc, char **argv) {
  char *what = argv[1];
  pthread_t t;
  // One of them is alone.
  if (strcmp(what, "vforks")) pthread_create(&t, 0, counter, 0);
  if (!strcmp(what, "leader")) {
    ready();
    pthread_exit(0);
  } else if (!strcmp(what, "strict")) {
    ready();
    getchar();
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    for (;;) ;
  } else if (!strcmp(what, "filter")) {
    // Whoever maps memory dies.
    struct sock_filter f[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog p = {4, f};
    ready();
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &p);
    for (;;) pause();
  } else if (!strcmp(what, "vfork")) {
    ready();
    if (vfork() == 0) {
      // The parent waits, uninterruptible, until this ends.
      usleep(1500000);
      _exit(0);
    }
    for (;;) count += 1000000000000, sleep(1);
  } else if (!strcmp(what, "fault")) {
    // A wait for a page that is uninterruptible, as the kernel reads it as if it were of another process.
    long fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api)) {
      printf("READY 0\n");
      return 0;
    }
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register all = {{(unsigned long)page, 4096}, UFFDIO_REGISTER_MODE_MISSING, 0};
    if (ioctl(fd, UFFDIO_REGISTER, &all)) abort();
    pthread_t other;
    pthread_create(&other, 0, provider, (void *)fd);
    if (pipe(full)) abort();
    pthread_create(&other, 0, makes_children, 0);
    pthread_create(&other, 0, reads, 0);
    ready();
    char byte = 1;
    struct iovec own = {&byte, 1}, its = {page, 1};
    if (process_vm_readv(getpid(), &own, 1, &its, 1, 0) != 1 || byte) abort();
    for (;;) count += 1000000000000, sleep(1);
  } else if (!strcmp(what, "vforks")) {
    ready();
    for (;; count++) {
      // Nine tenths of its time.
      if (vfork() == 0) {
        usleep(18000);
        _exit(0);
      }
      while (wait(0) < 0) {
      }
      usleep(2000);
    }
  } else if (!strcmp(what, "exec")) {
    ready();
    getchar();
    execl("/bin/sleep", "sleep", "100", (char *)0);
  }
  ready();
  for (;;) pause();
}
