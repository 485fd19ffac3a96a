// A thread is in a system call, and a signal handler walks the stack of that call by LLVM's libunwind. If the
// signal interrupts it in code of no module, it is in one of whet's routines, and the walk must continue to the
// calling function. The call is a wait, which the signals end. With TRANSFERS it is a transfer that has moved a
// part, and its handler, which restarts calls, is installed on the test's request.
#include "../support/page.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <ucontext.h>
#include <unwind.h>

// Counters: rounds of the hot thread, walks, walks from code of no module, such walks that did not reach the
// calling function.
enum { ROUNDS, WALKS, THROUGH, LOST };

#ifdef TRANSFERS
enum { FLAGS = SA_SIGINFO | SA_RESTART };
__attribute__((noinline)) static void calling() {
    static char bytes[150000];
    int ends[2];
    if (pipe(ends) != 0) abort();
    page->tid = gettid();
    // The pipe holds less, and nobody reads.
    if (write(ends[1], bytes, sizeof bytes) > 0) abort();
}
#else
enum { FLAGS = SA_SIGINFO };
__attribute__((noinline)) static void calling() {
    struct epoll_event event;
    int epoll = epoll_create1(0);
    page->tid = gettid();
    while (epoll_wait(epoll, &event, 1, 100000) < 0 && errno == EINTR);
    abort();
}
#endif

static _Unwind_Reason_Code look(struct _Unwind_Context *context, void *whole) {
    void *ip = reinterpret_cast<void *>(_Unwind_GetIP(context));
    if (_Unwind_FindEnclosingFunction(ip) == reinterpret_cast<void *>(calling)) *static_cast<bool *>(whole) = true;
    return _URC_NO_REASON;
}

static void handler(int, siginfo_t *, void *context) {
    bool whole = false;
    Dl_info info;
    _Unwind_Backtrace(look, &whole);
    long long at = static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RIP];
    if (!dladdr(reinterpret_cast<void *>(at), &info)) {
        page->work[THROUGH] = page->work[THROUGH] + 1;
        if (!whole) page->work[LOST] = page->work[LOST] + 1;
    }
    page->work[WALKS] = page->work[WALKS] + 1;
}

static void *other_thread(void *) {
    calling();
    return nullptr;
}

__attribute__((noinline)) static uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = x % 3 ? mix(x, n) : x / 3 + 12345;
    return x;
}

int main(int, char **argv) {
    page_open(argv[1]);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = FLAGS;
    bool handled = !(FLAGS & SA_RESTART);
    if (handled) sigaction(SIGUSR1, &action, nullptr);
    pthread_t thread;
    pthread_create(&thread, nullptr, other_thread, nullptr);
    while (!page->tid) usleep(1000);
    uint64_t x = 1;
    while (!page->stop) {
        x = hot(x, 20000);
        page_count(&page->work[ROUNDS]);
        if (!handled && page->go) {
            sigaction(SIGUSR1, &action, nullptr);
            handled = true;
        }
        if (handled && page->work[ROUNDS] % 8 == 0) pthread_kill(thread, SIGUSR1);
    }
    return x == 0;
}
