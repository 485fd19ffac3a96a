// A child queues numbered real-time signals as fast as they are taken; each must come once, in order, with its number.
#include <sys/prctl.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile unsigned long taken, bad;
static void handler(int s, siginfo_t *i, void *c) {
  if (i->si_code != SI_QUEUE || (unsigned long)i->si_value.sival_ptr != taken) bad++;
  taken++;
}
static void *spinner(void *p) { for (;;) ; }
// The guest ends with the test.
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(void) {
  struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
  sigaction(SIGRTMIN + 3, &a, 0);
  sigset_t s;
  sigemptyset(&s);
  sigaddset(&s, SIGRTMIN + 3);
  pthread_sigmask(SIG_BLOCK, &s, 0);
  pthread_t t;
  pthread_create(&t, 0, spinner, 0);
  pthread_sigmask(SIG_UNBLOCK, &s, 0);
  pid_t me = getpid();
  printf("READY %p %p\n", &taken, &bad);
  fflush(stdout);
  if (fork() == 0) {
    for (unsigned long n = 0; getppid() == me; n++)
      while (sigqueue(me, SIGRTMIN + 3, (union sigval){.sival_ptr = (void *)n}) && errno == EAGAIN) usleep(50);
    _exit(0);
  }
  for (;;) pause();
}
