// Checks its own general and vector registers, flags and red zone, over and over, in one thread.
// Argument "sleep": rests in a waiting call most of the time instead, and checks what that gives.
#include <sys/prctl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
static volatile unsigned long rounds, bad;
static int pass(void) {
  unsigned long r;
  __asm__ volatile(
    "mov $0x1111111122222222,%%rbx; mov $0x3333333344444444,%%rcx; mov $0x5555555566666666,%%rdx;"
    "mov $0x7777777788888888,%%rsi; mov $0x99999999aaaaaaaa,%%rdi; mov $0xbbbbbbbbcccccccc,%%r8;"
    "mov $0xddddddddeeeeeeee,%%r9; mov $0x1234567812345678,%%r10; mov $0x8765432187654321,%%r11;"
    "mov $0x0123456701234567,%%r12; mov $0x7654321076543210,%%r13; mov $0x0f0f0f0f0f0f0f0f,%%r14;"
    "movq %%rbx,%%xmm0; movq %%rcx,%%xmm15; vpbroadcastq %%xmm15,%%ymm7;"
    "mov %%rdx,-8(%%rsp); mov %%rsi,-64(%%rsp); mov %%rdi,-128(%%rsp);"
    "std; stc; mov $2000,%%eax; 1: lea -1(%%rax),%%rax; jrcxz 2f; 2: test %%eax,%%eax; jnz 1b; stc;"
    "mov $20000,%%eax; 3: dec %%eax; jnz 3b;"
    "sbb %%r15,%%r15; pushfq; pop %%rax; cld; and $0x400,%%eax; xor $0x400,%%eax;"
    "inc %%r15; or %%r15,%%rax;"
    "mov $0x3333333344444444,%%r15; xor %%rcx,%%r15; or %%r15,%%rax; vmovq %%xmm7,%%r15; xor %%rcx,%%r15; or %%r15,%%rax;"
    "vextracti128 $1,%%ymm7,%%xmm8; vmovq %%xmm8,%%r15; xor %%rcx,%%r15; or %%r15,%%rax;"
    "movq %%xmm0,%%r15; xor %%rbx,%%r15; or %%r15,%%rax;"
    "mov $0x1111111122222222,%%r15; xor %%rbx,%%r15; or %%r15,%%rax;"
    "mov $0x5555555566666666,%%r15; xor %%rdx,%%r15; or %%r15,%%rax;"
    "xor -64(%%rsp),%%rsi; or %%rsi,%%rax; xor -128(%%rsp),%%rdi; or %%rdi,%%rax;"
    "mov $0xbbbbbbbbcccccccc,%%r15; xor %%r8,%%r15; or %%r15,%%rax;"
    "mov $0xddddddddeeeeeeee,%%r15; xor %%r9,%%r15; or %%r15,%%rax;"
    "mov $0x1234567812345678,%%r15; xor %%r10,%%r15; or %%r15,%%rax;"
    "mov $0x8765432187654321,%%r15; xor %%r11,%%r15; or %%r15,%%rax;"
    "mov $0x0123456701234567,%%r15; xor %%r12,%%r15; or %%r15,%%rax;"
    "mov $0x7654321076543210,%%r15; xor %%r13,%%r15; or %%r15,%%rax;"
    "mov $0x0f0f0f0f0f0f0f0f,%%r15; xor %%r14,%%r15; or %%r15,%%rax;"
    : "=a"(r) : : "rbx","rcx","rdx","rsi","rdi","r8","r9","r10","r11","r12","r13","r14","r15","xmm0","xmm7","xmm8","xmm15","memory","cc");
  return r == 0;
}
static int wait_well(void) {
  sigset_t set, now;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  sigprocmask(SIG_SETMASK, &set, 0);
  struct timespec t = {0, 3000000}, left;
  int ok = nanosleep(&t, &left) == 0;
  struct pollfd none = {-1, 0, 0};
  sigset_t other;
  sigfillset(&other);
  ok &= ppoll(&none, 1, &t, &other) == 0;
  ok &= poll(&none, 1, 3) == 0;
  sigprocmask(SIG_SETMASK, 0, &now);
  return ok && sigismember(&now, SIGUSR2) == 1 && sigismember(&now, SIGUSR1) == 0;
}
// The guest ends with the test.
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
int main(int argc, char **argv) {
  int sleepy = argc > 1 && !strcmp(argv[1], "sleep");
  printf("READY %p %p\n", &rounds, &bad);
  fflush(stdout);
  for (;;) {
    if (!(sleepy ? wait_well() : pass())) bad++;
    rounds++;
  }
}
