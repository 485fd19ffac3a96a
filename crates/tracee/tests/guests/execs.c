// A program of many threads that executes itself again and again, each time with the next number as its argument.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
static volatile unsigned long count;
static void *works(void *p) {
  for (;;) {
    for (int i = 0; i < 1000; i++) count++;
    usleep((long)p);
  }
}
// The guest ends with the test.
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(int argc, char **argv) {
  int number = argc > 1 ? atoi(argv[1]) : 0;
  char next[16];
  pthread_t t;
  for (long i = 0; i < 40; i++) pthread_create(&t, 0, works, (void *)(100 + i * 50));
  if (!number) {
    printf("READY %p\n", &count);
    fflush(stdout);
  }
  usleep(2000 + number * 377 % 3000);
  sprintf(next, "%d", number + 1);
  execl("/proc/self/exe", argv[0], next, (char *)0);
  return 1;
}
