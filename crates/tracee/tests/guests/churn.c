// Threads that make and end threads all the time. Arguments: makers, spinners, sleepers.
#include <sys/prctl.h>
#include <signal.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile unsigned long made, spun;
static void *nothing(void *p) { return p; }
static void *maker(void *p) {
  for (;;) {
    pthread_t t;
    if (pthread_create(&t, 0, nothing, 0)) abort();
    pthread_join(t, 0);
    __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED);
  }
}
static void *spinner(void *p) { for (;;) spun++; }
static void *sleeper(void *p) { for (;;) pause(); }
// The guest ends with the test.
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(int argc, char **argv) {
  pthread_t t;
  for (int i = atoi(argv[1]); i-- > 0;) pthread_create(&t, 0, maker, 0);
  for (int i = atoi(argv[2]); i-- > 0;) pthread_create(&t, 0, spinner, 0);
  for (int i = atoi(argv[3]); i-- > 0;) pthread_create(&t, 0, sleeper, 0);
  printf("READY %p %p\n", &made, &spun);
  fflush(stdout);
  for (;;) pause();
}
