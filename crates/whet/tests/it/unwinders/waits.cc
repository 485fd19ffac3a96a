// A thread waits, and a signal handler walks the stack of that wait by LLVM's libunwind. A walk that meets
// code of no module, and continues to the waiting function, has passed through one of whet's routines.
#include "../support/page.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <unwind.h>

// Counters: rounds of the hot thread, walks, walks through code of no module, walks that did not reach the
// waiting function.
enum { ROUNDS, WALKS, THROUGH, LOST };

struct Seen {
    bool strange, whole;
};

__attribute__((noinline)) static void waiting(int epoll) {
    struct epoll_event event;
    if (epoll_wait(epoll, &event, 1, 100000) >= 0 || errno != EINTR) abort();
}

static _Unwind_Reason_Code look(struct _Unwind_Context *context, void *seen) {
    Seen *s = static_cast<Seen *>(seen);
    void *ip = reinterpret_cast<void *>(_Unwind_GetIP(context));
    Dl_info info;
    if (!dladdr(ip, &info)) s->strange = true;
    if (_Unwind_FindEnclosingFunction(ip) == reinterpret_cast<void *>(waiting)) s->whole = true;
    return _URC_NO_REASON;
}

static void handler(int) {
    Seen seen = {};
    _Unwind_Backtrace(look, &seen);
    page->work[WALKS] = page->work[WALKS] + 1;
    if (seen.strange) page->work[THROUGH] = page->work[THROUGH] + 1;
    if (!seen.whole) page->work[LOST] = page->work[LOST] + 1;
}

static void *wait_on(void *) {
    int epoll = epoll_create1(0);
    for (;;) waiting(epoll);
}

__attribute__((noinline)) static uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = x % 3 ? mix(x, n) : x / 3 + 12345;
    return x;
}

int main(int, char **argv) {
    page_open(argv[1]);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    sigaction(SIGUSR1, &action, nullptr);
    pthread_t thread;
    pthread_create(&thread, nullptr, wait_on, nullptr);
    uint64_t x = 1;
    while (!page->stop) {
        x = hot(x, 20000);
        page_count(&page->work[ROUNDS]);
        if (page->work[ROUNDS] % 8 == 0) pthread_kill(thread, SIGUSR1);
    }
    return x == 0;
}
