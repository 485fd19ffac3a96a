// An exception that leaves a noexcept function must end the program by std::terminate.
//#Lang: c++
//#Signal: 6
#include "guest.h"
#include <exception>
#include <stdexcept>

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x & 4) ? x * 3 + 1 : mix(x, n);
    return x;
}

APART uint64_t may_throw(uint64_t x, bool violate) {
    x = hot(x, 5);
    if (violate || x % 5 == 0) throw std::runtime_error("left");
    return x;
}

APART uint64_t never_throws(uint64_t x, bool violate) noexcept {
    if (violate) return may_throw(x, true);
    try {
        return may_throw(x, false);
    } catch (const std::exception &) {
        return x + 1;
    }
}

APART uint64_t outer(uint64_t x, bool violate) {
    try {
        return never_throws(x, violate);
    } catch (...) {
        guest_fail("an exception passed a noexcept function");
    }
}

static uint64_t round_once() {
    uint64_t r = guest_seed, x = 1;
    for (int i = 0; i < 1500; i++) x = mix(x, outer(next_random(&r), false));
    return x;
}

int main() {
    int status = guest_run("terminate", round_once);
    std::set_terminate([] {
        try {
            throw;
        } catch (const std::exception &e) {
            printf("terminate: %s\n", e.what());
        }
        fflush(stdout);
        abort();
    });
    outer(1, true);
    return status;
}
