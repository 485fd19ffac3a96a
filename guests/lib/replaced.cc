// Built twice. The virtual table of the class lies at the same address in both libraries. Its first slot
// leads to the program's function in the first library, and to the library's own function in the second.
#include <stdint.h>

struct Base {
    virtual uint64_t value(uint64_t x) const;
    virtual uint64_t other(uint64_t x) const;
    uint64_t added = 3;
};

struct Derived final : Base {
#ifdef GUEST_SECOND
    uint64_t value(uint64_t x) const override { return x * 5 + added; }
    uint64_t other(uint64_t x) const override;
#else
    uint64_t other(uint64_t x) const override;
    uint64_t spare(uint64_t x) const { return x * 5 + added; }
#endif
};

// The compiler puts the virtual table where the first function that is not inline is defined.
uint64_t Derived::other(uint64_t x) const { return x ^ added; }

// Both libraries have the same first instructions at the same place.
extern "C" uint64_t plugin_step(uint64_t x, unsigned n) {
    while (n--) {
        if (x % 3 == 0) {
            x = (x >> 7) + n;
        } else {
#ifdef GUEST_SECOND
            x = x * 0x9e3779b1 + n;
#else
            x = x * 0x85ebca6b + n;
#endif
        }
        if (x == 12345) throw x;
    }
    return x;
}

// An exception that leaves the library.
extern "C" uint64_t plugin_throw(uint64_t x) {
    if (plugin_step(x, 3) % 2) throw x + 1;
    return x;
}

extern "C" Base *plugin_make() { return new Derived; }
extern "C" void plugin_drop(Base *b) { delete static_cast<Derived *>(b); }
