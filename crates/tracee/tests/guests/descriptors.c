// A message that is received whole (MSG_WAITALL) and whose second half brings descriptors. Counts calls, and messages that
// came without them.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
enum { HALF = 100, FDS = 2 };
static volatile struct { unsigned long messages, bad, unused[2]; } count;
union control { struct cmsghdr head; char bytes[CMSG_SPACE(sizeof(int[FDS]))]; };
static void *sender(void *arg) {
  int to = (int)(long)arg;
  char half[HALF] = {0};
  if (write(to, half, HALF) != HALF) abort();
  usleep(6000);
  struct iovec v = {half, HALF};
  union control c;
  memset(&c, 0, sizeof c);
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
  c.head = (struct cmsghdr){CMSG_LEN(sizeof(int[FDS])), SOL_SOCKET, SCM_RIGHTS};
  memcpy(CMSG_DATA(&c.head), (int[FDS]){0, 1}, sizeof(int[FDS]));
  if (sendmsg(to, &m, 0) != HALF) abort();
  return 0;
}
static unsigned received(int from) {
  unsigned fds = 0;
  for (unsigned had = 0; had < 2 * HALF;) {
    char bytes[2 * HALF];
    struct iovec v = {bytes, 2 * HALF - had};
    union control c;
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
    long r = recvmsg(from, &m, MSG_WAITALL);
    if (r <= 0) abort();
    had += r;
    if (m.msg_controllen < CMSG_LEN(sizeof(int[FDS]))) continue;
    int got[FDS];
    memcpy(got, CMSG_DATA(&c.head), sizeof got);
    for (int i = 0; i < FDS; i++) fds += !close(got[i]);
  }
  return fds;
}
// The guest ends with the test.
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(void) {
  printf("READY %p 1\n", (void *)&count);
  fflush(stdout);
  for (;;) {
    int pair[2];
    pthread_t t;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) abort();
    pthread_create(&t, 0, sender, (void *)(long)pair[0]);
    if (received(pair[1]) != FDS) count.bad++;
    pthread_join(t, 0);
    close(pair[0]), close(pair[1]);
    count.messages++;
  }
}
