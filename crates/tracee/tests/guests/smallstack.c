// The first thread runs on a small stack amid other data, with little room left. Argument: which other thread
// can run system calls. "alone": none. "turns": none, but the thread returns to its own stack at intervals.
// "thread": a thread made by the C library. "guard": one on a stack of the program's own, whose guard is a
// marked page. The data around the small stack is checked by a child process (it is shared memory).
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
enum { AROUND = 256 << 10, STACK = 4096, FILL = 0xa5 };
struct seen { volatile unsigned long rounds, bad, checks; };
static struct seen *seen;
static char *around;
static ucontext_t own, small;
static int turns;
static void nap(int ms) {
  struct timespec t = {0, ms * 1000000};
  nanosleep(&t, 0);
}
static void on_small(void) {
  for (;;) {
    for (int i = 0; i < 20; i++) nap(2), seen->rounds++;
    if (turns) swapcontext(&small, &own);
  }
}
static void *other(void *p) {
  for (;;) nap(5);
}
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(int argc, char **argv) {
  turns = !strcmp(argv[1], "turns");
  around = mmap(0, 2 * AROUND + STACK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  seen = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  char *stack = around + AROUND;
  memset(around, FILL, AROUND);
  memset(stack + STACK, FILL, AROUND);
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
      // What is far away is not checked: the nearer, the oftener.
      int bad = 0;
      for (char *p = stack - 8192; p < stack; p++) bad |= *(volatile unsigned char *)p != FILL;
      for (char *p = stack + STACK; p < stack + STACK + 1024; p++) bad |= *(volatile unsigned char *)p != FILL;
      seen->bad += bad;
      seen->checks++;
    }
  }
  pthread_t t;
  if (!strcmp(argv[1], "thread")) pthread_create(&t, 0, other, 0);
  if (!strcmp(argv[1], "guard")) {
    char *own_stack = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (madvise(own_stack + (512 << 10), 4096, 102 /* MADV_GUARD_INSTALL */)) own_stack = 0;
    pthread_attr_t a;
    pthread_attr_init(&a);
    if (own_stack) pthread_attr_setstack(&a, own_stack + (516 << 10), 508 << 10);
    else puts("NONE"), exit(0);
    pthread_create(&t, &a, other, 0);
  }
  printf("READY %p %p %p\n", &seen->rounds, &seen->bad, &seen->checks);
  fflush(stdout);
  getcontext(&small);
  small.uc_stack.ss_sp = stack;
  small.uc_stack.ss_size = STACK;
  makecontext(&small, on_small, 0);
  for (;;) {
    swapcontext(&own, &small);
    for (int i = 0; i < 20; i++) nap(2), seen->rounds++;
  }
}
