// Calls that a signal with a handler must end, also where the handler's signal restarts calls: a transfer that has moved a
// part, with that part; waits with a timeout, with EINTR. Nothing else ends them. Each thread gets one signal every few
// milliseconds, the waits get ignored ones in between.
#include <sys/prctl.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
enum { N = 5 };
static volatile struct { unsigned long calls, bad, handled, got; } count[N];
static __thread int self;
static char big[200000];
static pthread_t threads[N];
static void handler(int s) { count[self].handled++; }
static void drain(int fd, long left) {
  while (left > 0) left -= read(fd, big, left < 4096 ? left : 4096);
}
static void *body(void *p) {
  int i = self = (int)(long)p, ep = epoll_create1(0), fd[2], un[2];
  struct epoll_event e;
  if (pipe(fd) || socketpair(AF_UNIX, SOCK_STREAM, 0, un)) abort();
  struct timeval t = {100, 0};
  setsockopt(un[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  for (;;) {
    unsigned long before = count[i].handled;
    long r = 0;
    int good = 0;
    errno = 0;
    switch (i) {
    case 0: r = write(fd[1], big, sizeof big); good = r == 65536; drain(fd[0], r); break;
    case 1: r = epoll_wait(ep, &e, 1, 100000); good = r == -1 && errno == EINTR; break;
    case 2: r = recv(un[0], big, 8, 0); good = r == -1 && errno == EINTR; break;
    case 3:
      if (write(un[1], big, 100) != 100) abort();
      r = recv(un[0], big, 1000, MSG_WAITALL);
      good = r == 100;
      break;
    case 4: r = send(un[0], big, sizeof big, 0); good = r > 0 && (r == sizeof big || count[i].handled > before); drain(un[1], r); break;
    }
    if (!good || (count[i].handled == before && i != 4)) count[i].bad++, count[i].got = r << 8 | errno;
    count[i].calls++;
  }
}
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(void) {
  struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART};
  sigaction(SIGUSR1, &a, 0);
  signal(SIGUSR2, SIG_IGN);
  for (long i = 0; i < N; i++) pthread_create(&threads[i], 0, body, (void *)i);
  printf("READY %p %x\n", (void *)&count, N);
  fflush(stdout);
  for (unsigned n = 0;; n++) {
    for (int i = 0; i < N; i++) {
      if (n % 4 == 3) pthread_kill(threads[i], SIGUSR1);
      else if (i == 1 || i == 2) pthread_kill(threads[i], SIGUSR2);
    }
    usleep(900);
  }
}
