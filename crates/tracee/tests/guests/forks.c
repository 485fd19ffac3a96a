// Threads that fork (argument f), vfork and exec (v), or spawn shells that exec (s); each child's status is checked.
#include <sys/prctl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile unsigned long done, bad;
static char kind;
extern char **environ;
static int bare(void *p) { return 7; }
static void *worker(void *p) {
  char *stack = malloc(65536);
  for (;;) {
    pid_t c;
    int st, want = 7;
    char *argv[] = {"sh", "-c", "exit 7", 0};
    if (kind == 'f') {
      if ((c = fork()) == 0) _exit(7);
    } else if (kind == 'v') {
      if ((c = vfork()) == 0) {
        execv("/bin/true", argv);
        _exit(1);
      }
      want = 0;
    } else if (kind == 'c') {
      // A process that looks like a thread to a tracer of clones: no SIGCHLD at its end.
      c = clone(bare, stack + 65536, 0, 0);
    } else if (posix_spawn(&c, "/bin/sh", 0, 0, argv, environ)) abort();
    if (waitpid(c, &st, __WALL) != c || !WIFEXITED(st) || WEXITSTATUS(st) != want) bad++;
    __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
  }
}
// The guest ends with the test.
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(int argc, char **argv) {
  kind = argv[1][0];
  pthread_t t;
  for (int i = 0; i < 3; i++) pthread_create(&t, 0, worker, 0);
  printf("READY %p %p\n", &done, &bad);
  fflush(stdout);
  for (;;) pause();
}
