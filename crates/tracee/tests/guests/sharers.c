// Processes that share the memory without being threads. Argument "long": one that stays, and counts. "short": threads
// that make one after the other, each counting for a few milliseconds, some of which end by exec. "spawn": by
// posix_spawn. In the last two the parent's threads do not wait in the kernel for what the child does.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile unsigned long count, done;
static char *kind;
extern char **environ;
// No TLS, no libc state: the child has that of the thread that made it.
static int counts(void *p) {
  long rounds = (long)p;
  for (long i = 0; rounds < 0 || i < rounds; i++) {
    count++;
    __asm__ volatile("pause");
  }
  if (rounds & 1) {
    char *argv[] = {"true", 0};
    execve("/bin/true", argv, argv + 1);
  }
  syscall(SYS_exit, 0);
  return 0;
}
static void *makes(void *p) {
  char *stack = malloc(65536);
  for (long i = 0;; i++) {
    pid_t c;
    char *argv[] = {"true", 0};
    if (!strcmp(kind, "spawn")) {
      if (posix_spawn(&c, "/bin/true", 0, 0, argv, environ)) abort();
    } else {
      c = clone(counts, stack + 65536, CLONE_VM | (i & 2 ? SIGCHLD : 0), (void *)(60000 + i));
    }
    waitpid(c, 0, __WALL);
    __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
    usleep(3000);
  }
}
// The guest ends with the test; what shares its memory by the same means.
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
static int stays(void *p) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return counts(p);
}
int main(int argc, char **argv) {
  kind = argv[1];
  pthread_t t;
  int child = 0;
  if (!strcmp(kind, "long")) child = clone(stays, (char *)malloc(65536) + 65536, CLONE_VM | SIGCHLD, (void *)-1L);
  else pthread_create(&t, 0, makes, 0);
  printf("READY %p %p %x\n", &count, &done, child);
  fflush(stdout);
  for (;;) pause();
}
