// throw, catch, rethrow and cleanups, across hot functions and inside them.
//#Lang: c++
#include "guest.h"
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

static uint64_t cleanups;

struct Guard {
    uint64_t value;
    explicit Guard(uint64_t v) : value(v) {}
    ~Guard() { cleanups = mix(cleanups, value); }
};

struct Base {
    uint64_t value;
    virtual ~Base() = default;
};
struct Derived : Base {};
struct Virtual : virtual Base {
    explicit Virtual(uint64_t v) { value = v; }
};

APART uint64_t hot(uint64_t x, unsigned n) {
    while (n--) x = (x & 1) ? x * 3 + 1 : mix(x, n);
    return x;
}

APART uint64_t thrower(uint64_t x) {
    x = hot(x, 4);
    switch (x % 9) {
    case 0: throw static_cast<int>(x & 0xffff);
    case 1: throw std::runtime_error(std::to_string(x));
    case 2: {
        Derived d;
        d.value = x;
        throw d;
    }
    case 3: throw Virtual(x);
    case 4: throw "text";
    case 5: throw std::string("a string longer than the short form of a string allows");
    default: return x;
    }
}

APART uint64_t descend(unsigned depth, uint64_t x) {
    Guard guard(x ^ depth);
    if (depth == 0) return thrower(x);
    uint64_t y = descend(depth - 1, hot(x, 2));
    return mix(y, guard.value);
}

// Exceptions are caught and thrown again on the way.
APART uint64_t again(unsigned depth, uint64_t x) {
    Guard guard(depth);
    try {
        return descend(depth, x);
    } catch (const Base &b) {
        cleanups = mix(cleanups, b.value);
        throw;
    } catch (int n) {
        if (n & 1) throw std::out_of_range("odd");
        throw;
    }
}

APART uint64_t catching(unsigned depth, uint64_t x) {
    try {
        return again(depth, x);
    } catch (const std::out_of_range &) {
        return 1;
    } catch (const std::exception &e) {
        return strlen(e.what());
    } catch (const Derived &d) {
        return d.value + 2;
    } catch (const Base &b) {
        return b.value + 3;
    } catch (int n) {
        return static_cast<uint64_t>(n) + 4;
    } catch (const char *text) {
        return strlen(text) + 5;
    } catch (...) {
        return 6;
    }
}

// A throw and its catch in one function, in its loop. Another exception is thrown while the first is handled.
APART uint64_t inside(uint64_t x) {
    uint64_t caught = 0;
    for (unsigned i = 0; i < 12; i++) {
        try {
            Guard guard(i);
            if (hot(x, i) % 3 == 0) throw i;
            x += i;
        } catch (unsigned n) {
            try {
                if (n & 1) throw std::logic_error("nested");
                caught += n;
            } catch (const std::logic_error &e) {
                caught = mix(caught, strlen(e.what()));
            }
        }
    }
    return mix(x, caught);
}

struct Fails {
    Guard first, second;
    explicit Fails(uint64_t x)
    try : first(x), second(thrower(x)) {
    } catch (...) {
        cleanups = mix(cleanups, 99);
    }
};

// The exception is stored as a pointer and rethrown from there.
APART uint64_t carried(uint64_t x) {
    std::exception_ptr kept;
    try {
        Fails fails(x);
        x = mix(x, fails.second.value);
    } catch (...) {
        kept = std::current_exception();
    }
    if (!kept) return x;
    try {
        std::rethrow_exception(kept);
    } catch (const std::exception &e) {
        return hot(x, static_cast<unsigned>(strlen(e.what())));
    } catch (...) {
        return hot(x, 3);
    }
}

// A noexcept function that catches all exceptions. A destructor in it calls uncaught_exceptions.
struct Counts {
    ~Counts() { cleanups = mix(cleanups, static_cast<uint64_t>(std::uncaught_exceptions())); }
};
APART uint64_t quiet(uint64_t x) noexcept {
    try {
        Counts counts;
        return thrower(x);
    } catch (...) {
        return x;
    }
}

static uint64_t round_once() {
    uint64_t r = guest_seed, x = 1;
    cleanups = 1;
    for (unsigned i = 0; i < 60; i++) {
        x = mix(x, catching(i % 14, next_random(&r)));
        x = mix(x, inside(r));
        x = mix(x, carried(r));
        x = mix(x, quiet(r >> 3));
        auto owned = std::make_unique<Guard>(x);
        x = mix(x, owned->value ^ cleanups);
    }
    return x;
}

int main() { return guest_run("throws", round_once); }
