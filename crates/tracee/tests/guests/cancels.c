// Threads that are cancelled in the middle of a transfer or of a wait, in turn, and a transfer that goes on beside them.
#include <sys/prctl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>
enum { MUCH = 200000, LITTLE = 5000 };
static volatile unsigned long cancelled, calls, shorts;
static char big[MUCH];
static int pair[2];
static void close_one(void *fd) { close((int)(long)fd); }
static void *half(void *full) {
  int *fd = full;
  for (;;) if (write(fd[1], big, sizeof big) < 0) abort();
}
static void *wait_long(void *unused) {
  int epoll = epoll_create1(0);
  struct epoll_event event;
  pthread_cleanup_push(close_one, (void *)(long)epoll);
  for (;;) if (epoll_wait(epoll, &event, 1, 1000000) < 0) abort();
  pthread_cleanup_pop(0);
}
static void *nibbler(void *p) {
  static char taken[LITTLE];
  for (;;) {
    if (read(pair[0], taken, LITTLE) < 0) abort();
    usleep(200);
  }
}
static void *mover(void *p) {
  for (;;) {
    if (write(pair[1], big, sizeof big) != sizeof big) shorts++;
    calls++;
  }
}
// The guest ends with the test.
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(void) {
  pthread_t t;
  if (pipe(pair)) abort();
  pthread_create(&t, 0, nibbler, 0);
  pthread_create(&t, 0, mover, 0);
  printf("READY %p %p %p\n", (void *)&cancelled, (void *)&calls, (void *)&shorts);
  fflush(stdout);
  for (;;) {
    int full[2];
    if (pipe(full)) abort();
    pthread_create(&t, 0, cancelled % 2 ? wait_long : half, full);
    usleep(4000);
    pthread_cancel(t);
    pthread_join(t, 0);
    close(full[0]), close(full[1]);
    cancelled++;
  }
}
