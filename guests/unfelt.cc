// What a stop must not change: transfers that block half done are complete, waits end after their time with
// their own result, and a thread that is cancelled in either of them unwinds.
//#Lang: c++
//#Flags: -pthread
#include "guest.h"
#include <arpa/inet.h>
#include <atomic>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

enum { MUCH = 150000, LITTLE = 7000, HELD = 65536 };
static char pattern[MUCH];
static std::atomic<int> busy;
static int file;
static struct timespec length = {0, 20000000};
// The longest time that a wait took, in seconds.
static std::atomic<double> longest;

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x % 3) ? mix(x, n) : x / 3 + 12345;
    return x;
}

struct Pair {
    int in, out;
    explicit Pair(bool pipes) {
        int fd[2];
        CHECK((pipes ? pipe(fd) : socketpair(AF_UNIX, SOCK_STREAM, 0, fd)) == 0);
        in = fd[0], out = fd[1];
    }
    ~Pair() { close(in), close(out); }
};

// The other end of a transfer: reads or writes a few bytes at a time.
static void *nibble(void *arg) {
    Pair &pair = *static_cast<Pair *>(arg);
    char got[LITTLE];
    for (long at = 0, r; at < MUCH; at += r) {
        r = read(pair.in, got, sizeof got);
        CHECK(r > 0 && memcmp(got, pattern + at, r) == 0);
        usleep(300);
    }
    return nullptr;
}

static void *give(void *arg) {
    Pair &pair = *static_cast<Pair *>(arg);
    for (long at = 0, r; at < MUCH; at += r) {
        r = write(pair.in, pattern + at, MUCH - at < LITTLE ? MUCH - at : LITTLE);
        CHECK(r > 0);
        usleep(300);
    }
    return nullptr;
}

// Transfers, each through its own pair to a thread that reads or writes a few bytes at a time.
enum Transfer { WRITE, WRITEV, SEND, SENDMSG, SENDFILE, SPLICE, RECEIVE, TRANSFERS };

static long move(Transfer kind, int out) {
    struct iovec pieces[20];
    for (int i = 0; i < 20; i++) pieces[i] = {pattern + MUCH / 20 * i, MUCH / 20};
    struct msghdr message = {};
    message.msg_iov = pieces, message.msg_iovlen = 20;
    switch (kind) {
    case WRITE: return write(out, pattern, MUCH);
    case WRITEV: return writev(out, pieces, 20);
    case SEND: return send(out, pattern, MUCH, 0);
    case SENDMSG: return sendmsg(out, &message, 0);
    case SENDFILE: {
        off_t from = 0;
        long r = sendfile(out, file, &from, MUCH);
        CHECK(r != MUCH || from == MUCH);
        return r;
    }
    case SPLICE: {
        // At most as much as a pipe holds, since an empty pipe ends the call.
        Pair held(true);
        long moved = 0;
        for (long part; moved < MUCH; moved += part) {
            part = MUCH - moved < HELD ? MUCH - moved : HELD;
            CHECK(write(held.out, pattern + moved, part) == part);
            if (splice(held.in, nullptr, out, nullptr, part, 0) != part) break;
        }
        return moved;
    }
    default: {
        static thread_local char got[MUCH];
        long r = recv(out, got, MUCH, MSG_WAITALL);
        CHECK(memcmp(got, pattern, MUCH) == 0);
        return r;
    }
    }
}

static void *transfers(void *arg) {
    Transfer kind = static_cast<Transfer>(reinterpret_cast<intptr_t>(arg));
    Pair pair(kind == WRITE || kind == WRITEV);
    pthread_t other;
    CHECK(pthread_create(&other, nullptr, kind == RECEIVE ? give : nibble, &pair) == 0);
    CHECK(move(kind, pair.out) == MUCH);
    pthread_join(other, nullptr);
    busy--;
    return nullptr;
}

// Waits that only their timeout ends, which is `length`.
enum Wait {
    EPOLL_WAIT, EPOLL_PWAIT2, RECEIVE_TIMED, ACCEPT_TIMED, CONNECT_TIMED, SIGTIMEDWAIT, SEMTIMEDOP, IO_GETEVENTS, SELECT, POLL, FUTEX, WAITS
};

static bool failed_with(long result, int wanted) { return result == -1 && errno == wanted; }

static void waited(Wait kind, const struct timespec *time) {
    struct timeval micros = {time->tv_sec, time->tv_nsec / 1000};
    struct sockaddr_in any = {};
    any.sin_family = AF_INET, any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    switch (kind) {
    case EPOLL_WAIT:
    case EPOLL_PWAIT2: {
        int epoll = epoll_create1(0);
        struct epoll_event event;
        int ms = static_cast<int>(time->tv_sec * 1000 + time->tv_nsec / 1000000);
        CHECK((kind == EPOLL_WAIT ? epoll_wait(epoll, &event, 1, ms)
                                  : syscall(SYS_epoll_pwait2, epoll, &event, 1, time, nullptr, 8)) == 0);
        close(epoll);
        return;
    }
    case RECEIVE_TIMED: {
        Pair sockets(false);
        char byte;
        CHECK(setsockopt(sockets.in, SOL_SOCKET, SO_RCVTIMEO, &micros, sizeof micros) == 0);
        CHECK(failed_with(recv(sockets.in, &byte, 1, 0), EAGAIN));
        return;
    }
    case ACCEPT_TIMED:
    case CONNECT_TIMED: {
        int listener = socket(AF_INET, SOCK_STREAM, 0), others[4];
        socklen_t size = sizeof any;
        CHECK(bind(listener, reinterpret_cast<struct sockaddr *>(&any), size) == 0 && listen(listener, 1) == 0);
        CHECK(getsockname(listener, reinterpret_cast<struct sockaddr *>(&any), &size) == 0);
        if (kind == ACCEPT_TIMED) {
            CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &micros, sizeof micros) == 0);
            CHECK(failed_with(accept(listener, nullptr, nullptr), EAGAIN));
        } else {
            // Once the listener's queue is full, further connections get no answer.
            for (int &other : others) {
                other = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
                connect(other, reinterpret_cast<struct sockaddr *>(&any), size);
            }
            int out = socket(AF_INET, SOCK_STREAM, 0);
            CHECK(setsockopt(out, SOL_SOCKET, SO_SNDTIMEO, &micros, sizeof micros) == 0);
            long r = connect(out, reinterpret_cast<struct sockaddr *>(&any), size);
            CHECK(failed_with(r, EINPROGRESS) || failed_with(r, EALREADY));
            close(out);
            for (int other : others) close(other);
        }
        close(listener);
        return;
    }
    case SIGTIMEDWAIT: {
        sigset_t usr1;
        sigemptyset(&usr1);
        sigaddset(&usr1, SIGUSR1);
        CHECK(failed_with(sigtimedwait(&usr1, nullptr, time), EAGAIN));
        return;
    }
    case SEMTIMEDOP: {
        int semaphore = semget(IPC_PRIVATE, 1, 0600);
        struct sembuf take = {0, -1, 0};
        long r = semtimedop(semaphore, &take, 1, time);
        int error = errno;
        semctl(semaphore, 0, IPC_RMID);
        CHECK(r == -1 && error == EAGAIN);
        return;
    }
    case IO_GETEVENTS: {
        aio_context_t context = 0;
        struct io_event event;
        CHECK(syscall(SYS_io_setup, 1, &context) == 0);
        CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, time) == 0);
        CHECK(syscall(SYS_io_destroy, context) == 0);
        return;
    }
    case SELECT: CHECK(select(0, nullptr, nullptr, nullptr, &micros) == 0); return;
    case POLL: CHECK(ppoll(nullptr, 0, time, nullptr) == 0); return;
    default: {
        int word = 0;
        CHECK(failed_with(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, time, nullptr, 0), ETIMEDOUT));
        return;
    }
    }
}

// A timeout of a socket ends in its last clock tick if a stop falls into it.
static double may_be_short(Wait kind) {
    struct timespec tick;
    clock_getres(CLOCK_MONOTONIC_COARSE, &tick);
    return kind == RECEIVE_TIMED || kind == ACCEPT_TIMED || kind == CONNECT_TIMED ? tick.tv_nsec * 1e-9 : 0;
}

static void *waits(void *arg) {
    Wait kind = static_cast<Wait>(reinterpret_cast<intptr_t>(arg));
    double before = guest_now();
    waited(kind, &length);
    double took = guest_now() - before;
    double wanted = length.tv_sec + length.tv_nsec * 1e-9;
    if (took < 0.99 * wanted - may_be_short(kind)) guest_fail("wait %d took %f s of %f s", kind, took, wanted);
    for (double seen = longest; seen < took && !longest.compare_exchange_weak(seen, took);) {}
    busy--;
    return nullptr;
}

struct Guard {
    std::atomic<int> &unwound;
    ~Guard() { unwound++; }
};

struct Job {
    int kind;
    std::atomic<int> unwound{0};
};

static void *cancelled(void *arg) {
    Job &job = *static_cast<Job *>(arg);
    Guard outer{job.unwound};
    Pair full(true);
    try {
        Guard inner{job.unwound};
        struct epoll_event event;
        int epoll = epoll_create1(0);
        if (job.kind) CHECK(write(full.out, pattern, MUCH) < 0);
        for (;;) epoll_wait(epoll, &event, 1, 100000);
    } catch (...) {
        job.unwound++;
        throw;
    }
}

static uint64_t round_once() {
    pthread_t all[TRANSFERS + WAITS], c[2];
    Job jobs[2];
    busy = TRANSFERS + WAITS;
    for (int i = 0; i < 2; i++) {
        jobs[i].kind = i;
        CHECK(pthread_create(&c[i], nullptr, cancelled, &jobs[i]) == 0);
    }
    for (intptr_t i = 0; i < TRANSFERS + WAITS; i++) {
        void *kind = reinterpret_cast<void *>(i < TRANSFERS ? i : i - TRANSFERS);
        CHECK(pthread_create(&all[i], nullptr, i < TRANSFERS ? transfers : waits, kind) == 0);
    }
    uint64_t x;
    do x = hot(guest_seed, 5000);
    while (busy);
    for (pthread_t one : all) pthread_join(one, nullptr);
    for (int i = 0; i < 2; i++) {
        void *result;
        CHECK(pthread_cancel(c[i]) == 0);
        CHECK(pthread_join(c[i], &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
        CHECK(jobs[i].unwound == 3);
    }
    // A test that counts rounds sets GUEST_TELLS.
    static bool verbose = getenv("GUEST_TELLS") != nullptr;
    if (verbose) fprintf(stderr, "round\nlongest wait %.3f s\n", longest.load());
    return x;
}

int main() {
    if (const char *ms = getenv("GUEST_WAIT_MS")) length = {atoi(ms) / 1000, atoi(ms) % 1000 * 1000000};
    for (int i = 0; i < MUCH; i++) pattern[i] = static_cast<char>(i * 131 >> 3);
    char name[] = "/tmp/unfelt-XXXXXX";
    file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0 && write(file, pattern, MUCH) == MUCH);
    // SIGUSR1 is blocked, so that sigtimedwait can wait for it.
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, &usr1, nullptr) == 0);
    return guest_run("unfelt", round_once);
}
