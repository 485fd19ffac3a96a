// Coroutines of the language: frames on the heap, resumed through pointers in them, also with exceptions.
//#Lang: c++
//#Flags: -std=c++20
//#Compilers: gcc
#include "guest.h"
#include <coroutine>
#include <exception>
#include <stdexcept>
#include <vector>

struct Generator {
    struct promise_type {
        uint64_t value = 0;
        std::exception_ptr error;
        Generator get_return_object() { return Generator{std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        std::suspend_always yield_value(uint64_t v) {
            value = v;
            return {};
        }
        void return_void() {}
        void unhandled_exception() { error = std::current_exception(); }
    };
    std::coroutine_handle<promise_type> handle;
    explicit Generator(std::coroutine_handle<promise_type> h) : handle(h) {}
    Generator(Generator &&other) noexcept : handle(other.handle) { other.handle = nullptr; }
    Generator(const Generator &) = delete;
    ~Generator() {
        if (handle) handle.destroy();
    }
    bool next(uint64_t &out) {
        handle.resume();
        if (handle.promise().error) std::rethrow_exception(handle.promise().error);
        out = handle.promise().value;
        return !handle.done();
    }
};

Generator numbers(uint64_t seed, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        if (seed & 1)
            co_yield seed * 3 + 1;
        else
            co_yield mix(seed, i);
        seed = next_random(&seed);
        if (seed % 211 == 0) throw std::runtime_error("stopped");
    }
}

Generator folded(Generator inner) {
    uint64_t x, sum = 0;
    while (inner.next(x)) co_yield sum = mix(sum, x);
}

static uint64_t round_once() {
    // A coroutine that lives as long as the program, suspended between rounds.
    static Generator kept = [](uint64_t v) -> Generator {
        for (;;) co_yield mix(v, 5);
    }(3);
    uint64_t r = guest_seed, x = 1, y;
    for (int i = 0; i < 400; i++) {
        std::vector<Generator> all;
        for (int j = 0; j < 5; j++) all.push_back(folded(numbers(next_random(&r), 12)));
        try {
            for (bool more = true; more;) {
                more = false;
                for (auto &g : all)
                    if (!g.handle.done() && g.next(y)) x = mix(x, y), more = true;
            }
        } catch (const std::runtime_error &e) {
            x = mix(x, strlen(e.what()));
        }
        kept.next(y);
        x = mix(x, y);
    }
    return x;
}

int main() { return guest_run("coroutines", round_once); }
