// A waiting call that a signal with a handler ends: EINTR must come through, however often the target is stopped.
// A child sends a signal every few milliseconds; epoll_wait has no timeout.
#include <sys/prctl.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>
static volatile unsigned long handled, ended, bad;
static void handler(int s) { handled++; }
// The guest ends with the test.
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(void) {
  struct sigaction a = {.sa_handler = handler};
  sigaction(SIGUSR1, &a, 0);
  // Ignored ones must not be noticed.
  signal(SIGUSR2, SIG_IGN);
  int ep = epoll_create1(0);
  sigset_t block, open;
  sigemptyset(&open);
  sigemptyset(&block);
  sigaddset(&block, SIGUSR1);
  sigprocmask(SIG_BLOCK, &block, 0);
  pid_t me = getpid();
  printf("READY %p %p %p\n", &handled, &ended, &bad);
  fflush(stdout);
  if (fork() == 0) {
    while (getppid() == me) {
      kill(me, SIGUSR2);
      usleep(700);
      kill(me, SIGUSR1);
      usleep(1300);
    }
    _exit(0);
  }
  for (;;) {
    unsigned long before = handled;
    struct epoll_event e;
    int r = epoll_pwait(ep, &e, 1, -1, &open);
    if (r != -1 || errno != EINTR || handled == before) bad++;
    ended++;
  }
}
