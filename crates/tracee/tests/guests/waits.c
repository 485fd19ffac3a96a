// One thread per waiting call, each with a timeout of 60 ms that nothing cuts short. For each: how often it returned,
// how often with EINTR, how often with anything else unexpected, and the longest wait in microseconds.
#include <sys/prctl.h>
#include <arpa/inet.h>
#include <errno.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
enum { N = 30 };
static volatile struct { unsigned long calls, eintr, odd, longest; } count[N];
static int ep, sem, tcp[2], un[2], un_full, listener, full_port, uring, both, file, filled[2], empty[2];
static aio_context_t aio;
// The ring of `both`, whose calls submit and wait at once.
static struct io_uring_params of_both;
static struct io_uring_sqe *entries;
static char *submissions, *completions;
static struct timespec T = {0, 60000000};
static struct timeval TV = {0, 60000};
static int timed(int fd) {
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &TV, sizeof TV);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &TV, sizeof TV);
  return fd;
}
static long call(int i) {
  struct epoll_event e[1];
  struct io_event io[1];
  char b[8] = {0};
  struct iovec v = {b, 8};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  struct mmsghdr mm = {.msg_hdr = m};
  sigset_t s;
  int futex = 0;
  sigemptyset(&s);
  sigaddset(&s, SIGUSR1);
  switch (i) {
  case 0: return epoll_wait(ep, e, 1, 60);
  case 1: return epoll_pwait(ep, e, 1, 60, &s);
  case 2: return syscall(SYS_epoll_pwait2, ep, e, 1, &T, 0, 8);
  case 3: return semtimedop(sem, &(struct sembuf){0, -1, 0}, 1, &T);
  case 4: return recv(tcp[0], b, 8, 0);
  case 5: return recvmsg(un[0], &m, 0);
  case 6: return read(un[0], b, 8);
  case 7: return readv(tcp[0], &v, 1);
  case 8: return accept(listener, 0, 0);
  case 9: return accept4(listener, 0, 0, SOCK_CLOEXEC);
  case 10: return syscall(SYS_rt_sigtimedwait, &s, 0, &T, 8);
  case 11: return syscall(SYS_io_getevents, aio, 1, 1, io, &T);
  case 12: return nanosleep(&T, 0);
  case 13: return clock_nanosleep(CLOCK_MONOTONIC, 0, &T, 0) ? -1 : 0;
  case 14: return syscall(SYS_futex, &futex, FUTEX_WAIT, 0, &T, 0, 0);
  case 15: return poll(0, 0, 60);
  case 16: { struct timeval tv = TV; return select(0, 0, 0, 0, &tv); }
  case 17: return ppoll(0, 0, &T, &s);
  case 18: return send(un_full, b, 8, 0);
  case 19: return write(un_full, b, 8);
  case 20: return recvmmsg(un[0], &mm, 1, 0, 0);
  // A connect taken up again that then times out gives EALREADY instead of EINPROGRESS.
  case 21: {
    int fd = timed(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in a = {AF_INET, full_port, {htonl(INADDR_LOOPBACK)}};
    int r = connect(fd, (void *)&a, sizeof a), was = errno;
    close(fd);
    errno = was;
    return r;
  }
  case 22: {
    if (uring < 0) { nanosleep(&T, 0); return 0; }
    struct __kernel_timespec kt = {0, 60000000};
    struct io_uring_getevents_arg arg = {.ts = (unsigned long)&kt};
    return syscall(SYS_io_uring_enter, uring, 0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &arg, sizeof arg);
  }
  case 23: return sendmsg(un_full, &m, 0);
  case 24: return sendmmsg(un_full, &mm, 1, 0);
  case 25: {
    off_t at = 0;
    return sendfile(un_full, file, &at, 8);
  }
  case 26: return splice(filled[0], 0, un_full, 0, 8, 0);
  case 27: return splice(un[0], 0, empty[1], 0, 8, 0);
  case 28: return preadv2(un[0], &v, 1, -1, 0);
  case 29: {
    if (both < 0) { nanosleep(&T, 0); return 0; }
    struct __kernel_timespec kt = {0, 60000000};
    entries[0] = (struct io_uring_sqe){.opcode = IORING_OP_TIMEOUT, .fd = -1, .addr = (unsigned long)&kt, .len = 1};
    *(unsigned *)(submissions + of_both.sq_off.array) = 0;
    __atomic_add_fetch((unsigned *)(submissions + of_both.sq_off.tail), 1, __ATOMIC_RELEASE);
    long r = syscall(SYS_io_uring_enter, both, 1, 1, IORING_ENTER_GETEVENTS, 0, 0);
    unsigned *head = (unsigned *)(completions + of_both.cq_off.head);
    unsigned done = __atomic_load_n((unsigned *)(completions + of_both.cq_off.tail), __ATOMIC_ACQUIRE) - *head;
    __atomic_store_n(head, *head + done, __ATOMIC_RELEASE);
    return r == 1 && done == 1 ? 0 : 100 + done;
  }
  }
  abort();
}
// A timeout of a socket ends a clock tick early (10 ms at most) if a stop falls into its last tick.
static unsigned long shortest(int i) {
  int by_socket = (i >= 4 && i <= 9) || (i >= 18 && i <= 28 && i != 22);
  return by_socket ? 49000 : 59000;
}
static void *waiter(void *p) {
  int i = (int)(long)p;
  sigset_t s;
  sigfillset(&s);
  pthread_sigmask(SIG_BLOCK, &s, 0);
  for (;;) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    long r = call(i);
    int e = errno;
    clock_gettime(CLOCK_MONOTONIC, &b);
    unsigned long us = (b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000;
    if (r < 0 && e == EINTR) count[i].eintr++;
    else if ((r < 0 && e != EAGAIN && e != ETIMEDOUT && e != ETIME && e != EINPROGRESS && !(i == 21 && e == EALREADY)) || r > 0 || us < shortest(i)) count[i].odd++, count[i].odd += (unsigned long)e << 32;
    if (us > count[i].longest) count[i].longest = us;
    count[i].calls++;
  }
}
// The guest ends with the test.
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(void) {
  ep = epoll_create1(0);
  sem = semget(IPC_PRIVATE, 1, 0600);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t n = sizeof a;
  listener = timed(socket(AF_INET, SOCK_STREAM, 0));
  bind(listener, (void *)&a, n);
  listen(listener, 4);
  int l = socket(AF_INET, SOCK_STREAM, 0);
  a.sin_port = 0;
  bind(l, (void *)&a, n);
  listen(l, 1);
  getsockname(l, (void *)&a, &n);
  tcp[0] = timed(socket(AF_INET, SOCK_STREAM, 0));
  connect(tcp[0], (void *)&a, n);
  // Fill the backlog of l: a further connect gets no answer.
  full_port = a.sin_port;
  for (int i = 0; i < 4; i++) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    connect(fd, (void *)&a, n);
  }
  socketpair(AF_UNIX, SOCK_STREAM, 0, un);
  timed(un[0]);
  int full[2];
  socketpair(AF_UNIX, SOCK_STREAM, 0, full);
  un_full = full[0];
  static char big[1 << 16];
  while (send(un_full, big, sizeof big, MSG_DONTWAIT) > 0) ;
  while (send(un_full, big, 1, MSG_DONTWAIT) > 0) ;
  timed(un_full);
  file = open("/proc/self/exe", O_RDONLY);
  pipe(filled);
  pipe(empty);
  write(filled[1], big, 4096);
  syscall(SYS_io_setup, 4, &aio);
  struct io_uring_params p;
  memset(&p, 0, sizeof p);
  uring = syscall(SYS_io_uring_setup, 4, &p);
  if (uring >= 0) mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, uring, IORING_OFF_SQ_RING);
  both = syscall(SYS_io_uring_setup, 4, &of_both);
  if (both >= 0) {
    submissions = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, both, IORING_OFF_SQ_RING);
    completions = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, both, IORING_OFF_CQ_RING);
    entries = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, both, IORING_OFF_SQES);
  }
  semctl(sem, 0, SETVAL, 0);
  pthread_t t;
  for (long i = 0; i < N; i++) pthread_create(&t, 0, waiter, (void *)i);
  printf("READY %p %x %x\n", (void *)&count, N, uring >= 0);
  fflush(stdout);
  getchar();
  semctl(sem, 0, IPC_RMID);
  return 0;
}
