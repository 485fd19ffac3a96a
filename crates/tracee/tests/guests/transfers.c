// One pair of threads per blocking transfer: one end moves much at once, the other little at a time. For each: how many
// calls, how many moved less than they were asked to, how many gave an error, how many bytes came out wrong.
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "tcp.h"
enum { N = 12, PERIOD = 1 << 20, MUCH = 300000, LITTLE = 9000, VECTORS = 40 };
static volatile struct { unsigned long calls, shorts, errors, wrong; } count[N];
static unsigned char pattern[2 * PERIOD];
static int in[N], out[N], file, fed[2], passed;
// Registers that a system call leaves alone.
static volatile unsigned long clobbered;
static pthread_t movers[N];
static long raw(long nr, long a, long b, long c, long d, long e, long f) {
  long r, b2 = b, c2 = c;
  register long d2 asm("r10") = d, e2 asm("r8") = e, f2 asm("r9") = f;
  long a2 = a;
  asm volatile("syscall" : "=a"(r), "+D"(a2), "+S"(b2), "+d"(c2), "+r"(d2), "+r"(e2), "+r"(f2) : "a"(nr) : "rcx", "r11", "memory");
  if (a2 != a || b2 != b || c2 != c || d2 != d || e2 != e || f2 != f) clobbered++;
  return r;
}
static struct iovec *pieces(struct iovec *v, int n, unsigned char *at) {
  for (int i = 0; i < n; i++) v[i] = (struct iovec){at + (size_t)MUCH / n * i, i == n - 1 ? MUCH - (size_t)MUCH / n * i : MUCH / n};
  return v;
}
static long much(int i, unsigned char *at, size_t offset) {
  struct iovec v[VECTORS];
  static unsigned char got[N][MUCH];
  switch (i) {
  case 0: return raw(SYS_write, out[i], (long)at, MUCH, 1, 2, 3);
  case 1: return raw(SYS_writev, out[i], (long)pieces(v, VECTORS, at), VECTORS, 1, 2, 3);
  case 2: return raw(SYS_sendto, out[i], (long)at, MUCH, 0, 0, 0);
  case 3: return raw(SYS_write, out[i], (long)at, MUCH, 1, 2, 3);
  case 4: {
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr m = {.msg_iov = pieces(v, 5, at), .msg_iovlen = 5, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(c), &file, sizeof file);
    return raw(SYS_sendmsg, out[i], (long)&m, 0, 1, 2, 3);
  }
  case 5: {
    off_t from = offset;
    long r = raw(SYS_sendfile, out[i], file, (long)&from, MUCH, 2, 3);
    if (r > 0 && from != (off_t)offset + r) count[i].wrong++;
    return r;
  }
  case 6: {
    // As much as the pipe holds, which another thread has put there: an empty pipe ends the call.
    for (int held = 0; held < 1 << 16; ioctl(fed[0], FIONREAD, &held)) usleep(50);
    long r = raw(SYS_splice, fed[0], 0, out[i], 0, 1 << 16, 0);
    return r == 1 << 16 ? MUCH : r;
  }
  case 7: {
    long r = raw(SYS_recvfrom, in[i], (long)got[i], MUCH, MSG_WAITALL, 0, 0);
    if (r > 0 && memcmp(got[i], at, r)) count[i].wrong++;
    return r;
  }
  case 8: {
    struct msghdr m = {.msg_iov = pieces(v, VECTORS, got[i]), .msg_iovlen = VECTORS};
    long r = raw(SYS_recvmsg, in[i], (long)&m, MSG_WAITALL, 1, 2, 3);
    if (r > 0 && memcmp(got[i], at, r)) count[i].wrong++;
    return r;
  }
  case 9: return raw(SYS_writev, out[i], (long)pieces(v, 3, at), 3, 1, 2, 3);
  case 10: return raw(SYS_pwritev2, out[i], (long)pieces(v, 7, at), 7, -1, -1, 0);
  case 11: return raw(SYS_sendto, out[i], (long)at, MUCH, 0, 0, 0);
  }
  abort();
}
static int taken_whole(int i) { return i == 7 || i == 8; }
static void quiet(void) {
  sigset_t s;
  sigfillset(&s);
  pthread_sigmask(SIG_BLOCK, &s, 0);
}
static void *mover(void *p) {
  int i = (int)(long)p;
  size_t at = 0;
  for (;;) {
    long r = much(i, pattern + at, at);
    count[i].calls++;
    if (r < 0) { count[i].errors++; continue; }
    if (r != MUCH) count[i].shorts++;
    at = (at + r) % PERIOD;
  }
}
static void *feeder(void *p) {
  size_t at = 0;
  quiet();
  for (;;) {
    long r = write(fed[1], pattern + at, 4096);
    if (r > 0) at = (at + r) % PERIOD;
  }
}
static void *nibbler(void *p) {
  int i = (int)(long)p;
  size_t at = 0;
  unsigned char got[LITTLE];
  quiet();
  for (;;) {
    long r;
    usleep(i == 6 ? 3000 : 200);
    if (taken_whole(i)) {
      r = send(out[i], pattern + at, LITTLE, 0);
    } else {
      char control[256];
      struct iovec v = {got, LITTLE};
      struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
      r = i == 4 ? recvmsg(in[i], &m, MSG_CMSG_CLOEXEC) : read(in[i], got, LITTLE);
      if (i == 4) for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        int fd;
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
        close(fd);
        __sync_fetch_and_add(&passed, 1);
      }
      if (r > 0 && memcmp(got, pattern + at, r)) count[i].wrong++;
    }
    if (r > 0) at = (at + r) % PERIOD;
  }
}
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(void) {
  unsigned x = 1;
  for (int i = 0; i < PERIOD; i++) x = x * 1103515245 + 12345, pattern[i] = pattern[i + PERIOD] = x >> 16;
  char name[] = "/tmp/transfersXXXXXX";
  file = mkstemp(name);
  unlink(name);
  if (write(file, pattern, sizeof pattern) != sizeof pattern) abort();
  if (pipe(fed)) abort();
  for (int i = 0; i < N; i++) {
    int p[2];
    if (i == 0 || i == 1 || i == 10) { if (pipe(p)) abort(); }
    else if (i == 2 || i == 3 || i == 7 || i == 9) tcp(p);
    else if (socketpair(AF_UNIX, SOCK_STREAM, 0, p)) abort();
    in[i] = p[0], out[i] = p[1];
  }
  pthread_t t;
  pthread_create(&t, 0, feeder, 0);
  for (long i = 0; i < N; i++) pthread_create(&movers[i], 0, mover, (void *)i), pthread_create(&t, 0, nibbler, (void *)i);
  printf("READY %p %x %p %p\n", (void *)&count, N, (void *)&clobbered, (void *)&passed);
  fflush(stdout);
  // Ignored signals end no call.
  for (;;) {
    for (int i = 0; i < N; i++) pthread_kill(movers[i], SIGCHLD);
    usleep(2000);
  }
}
