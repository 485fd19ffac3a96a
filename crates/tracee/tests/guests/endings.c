// How a transfer ends whose other end goes, or whose descriptor comes to mean another file, after a part was moved. For each
// kind: how many calls, how many ended with something else than a part, how many gave a signal that the kernel does not
// give after a part, how many bytes came into the wrong file.
//
// With the argument "filtered" system calls are allowed only from the C library's own code.
#include <sys/prctl.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "tcp.h"
enum { N = 9, MUCH = 400000, LITTLE = 6000 };
static volatile struct { unsigned long calls, odd, signals, wrong; } count[N];
// How often the test has stopped us.
static volatile unsigned long stops;
static char big[MUCH];
struct pair { int kind, in, out; volatile int over; };
static long much(int kind, int out) {
  struct iovec v[2] = {{big, MUCH / 2}, {big + MUCH / 2, MUCH / 2}};
  struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
  switch (kind % 4) {
  case 0: return write(out, big, MUCH);
  case 1: return writev(out, v, 2);
  case 2: return send(out, big, MUCH, 0);
  default: return sendmsg(out, &m, 0);
  }
}
// Takes a little, lets some time go by, and closes its end; of the last kind it puts another file in the other end's place.
static void *peer(void *arg) {
  struct pair *p = arg;
  static char taken[LITTLE];
  usleep(2000);
  if (read(p->in, taken, LITTLE) < 0) abort();
  usleep(4000);
  if (p->kind == 8) {
    // Before the first stop that meets the transfer, the closer cannot be determined.
    for (int held = 0; !p->over && held < 60000; ioctl(p->in, FIONREAD, &held)) usleep(100);
    for (unsigned long seen = stops; !p->over && stops < seen + 2;) usleep(100);
    char name[] = "/tmp/endingsXXXXXX";
    int other[2], file = mkstemp(name);
    unlink(name);
    if (pipe2(other, O_NONBLOCK)) abort();
    // Other files of the same kind and of another one, in turn.
    dup2(count[8].calls % 2 ? other[1] : file, p->out);
    usleep(4000);
    // Room for more.
    fcntl(p->in, F_SETFL, O_NONBLOCK);
    for (int i = 0; i < 40; i++) { while (read(p->in, taken, LITTLE) > 0) ; usleep(100); }
    struct stat s;
    fstat(file, &s);
    count[8].wrong += s.st_size;
    for (long r; (r = read(other[0], taken, LITTLE)) > 0;) count[8].wrong += r;
    close(file), close(other[0]), close(other[1]);
  }
  close(p->in);
  return 0;
}
static void *mover(void *arg) {
  int kind = (int)(long)arg;
  sigset_t pipes;
  sigemptyset(&pipes);
  sigaddset(&pipes, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipes, 0);
  for (;;) {
    int fd[2];
    if (kind == 8) { if (pipe(fd)) abort(); }
    else if (kind < 4) tcp(fd);
    else if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd)) abort();
    struct pair p = {kind, fd[0], fd[1]};
    pthread_t t;
    pthread_create(&t, 0, peer, &p);
    long r = much(kind, fd[1]);
    p.over = 1;
    if (r <= 0 || (r >= MUCH && kind != 8)) count[kind].odd++;
    pthread_join(t, 0);
    close(fd[1]);
    struct timespec none = {0, 0};
    // A pipe gives it after a part, too.
    if (sigtimedwait(&pipes, 0, &none) == SIGPIPE && kind != 8) count[kind].signals++;
    count[kind].calls++;
  }
}
// From the mappings that system calls are made from by the program itself.
static void filter_by_address(void) {
  unsigned long from = 0, to = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[4096];
  while (fgets(line, sizeof line, maps)) {
    unsigned long a, b;
    char perms[5];
    if (sscanf(line, "%lx-%lx %4s", &a, &b, perms) == 3 && perms[2] == 'x' && strstr(line, "libc.so")) from = a, to = b;
  }
  fclose(maps);
  if (!from || from >> 32 != to >> 32) abort();
  struct sock_filter f[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, from >> 32, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (unsigned)from, 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (unsigned)to, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog prog = {sizeof f / sizeof *f, f};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog)) abort();
}
// The guest ends with the test.
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(int argc, char **argv) {
  pthread_t t;
  int filtered = argc > 1 && !strcmp(argv[1], "filtered");
  if (filtered) filter_by_address();
  for (long i = 0; i < N; i++) pthread_create(&t, 0, mover, (void *)i);
  printf("READY %p %x %p\n", (void *)&count, N, (void *)&stops);
  fflush(stdout);
  getchar();
  return 0;
}
