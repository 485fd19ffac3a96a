// Eight threads throw at the same time.
//#Lang: c++
//#Flags: -pthread
#include "guest.h"
#include <stdexcept>
#include <thread>
#include <vector>

struct Guard {
    uint64_t &at;
    uint64_t value;
    ~Guard() { at = mix(at, value); }
};

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x & 2) ? x * 5 + 1 : mix(x, n);
    return x;
}

APART uint64_t descend(unsigned depth, uint64_t x, uint64_t &digest) {
    Guard guard{digest, depth};
    x = hot(x, 3);
    if (depth == 0) {
        if (x & 1) throw std::runtime_error("thrown");
        if (x & 2) throw x;
        return x;
    }
    return mix(descend(depth - 1, x, digest), x);
}

APART uint64_t work(uint64_t seed) {
    uint64_t digest = seed;
    for (unsigned i = 0; i < 120; i++) {
        try {
            uint64_t x = descend(i % 10, digest, digest);
            digest = mix(digest, x);
        } catch (const std::exception &e) {
            digest = mix(digest, strlen(e.what()));
        } catch (uint64_t x) {
            digest = mix(digest, x);
        }
    }
    return digest;
}

static uint64_t round_once() {
    uint64_t results[8], x = 1;
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 8; i++) threads.emplace_back([&results, i] { results[i] = work(i + 1); });
    for (auto &t : threads) t.join();
    for (uint64_t r : results) x = mix(x, r);
    return x;
}

int main() { return guest_run("throwing_threads", round_once); }
