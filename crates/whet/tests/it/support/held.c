// A thread that is interrupted inside the first bytes of a function, and stays there until it may continue:
// held PAGE HOW WHO.
#include "page.h"
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>

// Waits at its second instruction, two bytes from the start: that instruction reads memory that it may not
// read.
uint64_t held(const volatile uint64_t *at);
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".globl held\n"
    ".type held, @function\n"
    "held:\n"
    ".cfi_startproc\n"
    "xor %eax, %eax\n"
    "mov (%rdi), %rax\n"
    "add $1, %rax\n"
    "lea (%rax,%rax,2), %rax\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size held, .-held\n");

static void *memory;
static ucontext_t here, there;

static void wait_to_go(void) {
    page->tid = (uint64_t)syscall(SYS_gettid);
    while (!page->go) usleep(1000);
}

static void wait_there(void) {
    wait_to_go();
    swapcontext(&there, &here);
}

static void on_other_stack(int signal) {
    (void)signal;
    wait_to_go();
}

static void open_memory(void) {
    if (mprotect(memory, 4096, PROT_READ | PROT_WRITE)) abort();
}

// Runs on the stack of the interrupted code, and from there on the alternate stack, by another signal.
static void nested(int signal) {
    (void)signal;
    raise(SIGUSR2);
    open_memory();
}

// Runs on the stack of the interrupted code, and from there on a stack of its own.
static void leaving(int signal) {
    (void)signal;
    static char stack[1 << 16];
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = sizeof stack;
    makecontext(&there, wait_there, 0);
    swapcontext(&here, &there);
    open_memory();
}

static void *work(void *unused) {
    (void)unused;
    static char alternate[1 << 16];
    stack_t s = {.ss_sp = alternate, .ss_size = sizeof alternate};
    if (sigaltstack(&s, NULL)) abort();
    if (held(memory) != 3) abort();
    while (!page->stop) {
        if (held(memory) != 3) abort();
        page->work[0] = page->work[0] + 1;
    }
    return NULL;
}

// Stays where whet can make it run a system call.
static void *rest(void *unused) {
    (void)unused;
    for (;;) pause();
}

int main(int argc, char **argv) {
    if (argc < 4) return 1;
    page_open(argv[1]);
    memory = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction fault = {.sa_handler = strcmp(argv[2], "nested") ? leaving : nested};
    struct sigaction other = {.sa_handler = on_other_stack, .sa_flags = SA_ONSTACK};
    if (sigaction(SIGSEGV, &fault, NULL) || sigaction(SIGUSR2, &other, NULL)) abort();
    pthread_t thread;
    if (!strcmp(argv[3], "first")) {
        if (pthread_create(&thread, NULL, rest, NULL)) abort();
        work(NULL);
    } else {
        if (pthread_create(&thread, NULL, work, NULL)) abort();
        pthread_join(thread, NULL);
    }
    return 0;
}
