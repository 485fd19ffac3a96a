// Two threads, each with an io_uring that waits for two completions of which one never comes: a request with
// IORING_OP_TIMEOUT ends each wait. One thread submits and waits in one call, the other in two. For each: how
// often its wait ended, and how often with anything but the timeout's completion or a wait that was cut short.
#include <sys/prctl.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static volatile unsigned long ended[2], wrong[2];
struct ring {
  int fd;
  struct io_uring_params of;
  struct io_uring_sqe *entries;
  char *words;
};
static int make(struct ring *r) {
  r->fd = (int)syscall(SYS_io_uring_setup, 8, &r->of);
  if (r->fd < 0) return 0;
  // One mapping has the words of both queues since Linux 5.4 (IORING_FEAT_SINGLE_MMAP).
  r->words = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQ_RING);
  r->entries = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQES);
  return r->words != MAP_FAILED && r->entries != MAP_FAILED;
}
static void put(struct ring *r, struct io_uring_sqe entry) {
  unsigned *tail = (unsigned *)(r->words + r->of.sq_off.tail);
  unsigned i = *tail & *(unsigned *)(r->words + r->of.sq_off.ring_mask);
  r->entries[i] = entry;
  ((unsigned *)(r->words + r->of.sq_off.array))[i] = i;
  __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
}
static long enter(struct ring *r, unsigned submit, unsigned wait) {
  return syscall(SYS_io_uring_enter, r->fd, submit, wait, wait ? IORING_ENTER_GETEVENTS : 0, 0, 0);
}
// Takes all completions, and returns whether the timeout's is one of them.
static int take(struct ring *r, unsigned long round, long which) {
  unsigned *head = (unsigned *)(r->words + r->of.cq_off.head);
  unsigned tail = __atomic_load_n((unsigned *)(r->words + r->of.cq_off.tail), __ATOMIC_ACQUIRE);
  struct io_uring_cqe *all = (void *)(r->words + r->of.cq_off.cqes);
  int found = 0;
  for (unsigned h = *head; h != tail; h++) {
    struct io_uring_cqe *c = &all[h & *(unsigned *)(r->words + r->of.cq_off.ring_mask)];
    if (c->user_data == round && c->res == -ETIME) found = 1;
    else wrong[which]++;
  }
  __atomic_store_n(head, tail, __ATOMIC_RELEASE);
  return found;
}
static struct ring rings[2];
static void *waiter(void *p) {
  long which = (long)p;
  struct ring *r = &rings[which];
  static int never[2][2];
  static char byte[2];
  if (pipe(never[which])) abort();
  put(r, (struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = never[which][0], .addr = (unsigned long)&byte[which], .len = 1});
  if (enter(r, 1, 0) != 1) abort();
  for (unsigned long round = 1;; round++) {
    struct __kernel_timespec t = {0, 3000000 + (long)(round * 37 % 41) * 100000};
    put(r, (struct io_uring_sqe){.opcode = IORING_OP_TIMEOUT, .fd = -1, .addr = (unsigned long)&t, .len = 1, .user_data = round});
    if (which && enter(r, 1, 0) != 1) wrong[which]++;
    for (unsigned submit = !which; ; submit = 0) {
      long n = enter(r, submit, 2);
      if (n != submit) wrong[which]++;
      if (take(r, round, which)) break;
    }
    ended[which]++;
  }
}
// The guest ends with the test.
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(void) {
  int works = make(&rings[0]) && make(&rings[1]);
  pthread_t t;
  for (long i = 0; works && i < 2; i++) pthread_create(&t, 0, waiter, (void *)i);
  printf("READY %p %p %p %p %x\n", (void *)&ended[0], (void *)&ended[1], (void *)&wrong[0], (void *)&wrong[1], works);
  fflush(stdout);
  for (;;) pause();
}
