// Virtual calls: single, multiple and virtual bases, thunks, covariant results, pointers to members,
// dynamic_cast.
//#Lang: c++
#include "guest.h"
#include <memory>
#include <typeinfo>
#include <vector>

struct Shape {
    virtual ~Shape() = default;
    virtual uint64_t area(uint64_t x) const = 0;
    virtual const Shape *self() const { return this; }
    virtual uint64_t sides() const { return 0; }
};
struct Named {
    virtual ~Named() = default;
    virtual uint64_t name(uint64_t x) const { return x + 1; }
};
struct Counted {
    uint64_t count = 3;
    virtual ~Counted() = default;
    virtual uint64_t tally(uint64_t x) { return x + count++; }
};

struct Square : Shape {
    uint64_t area(uint64_t x) const override { return x * x; }
    uint64_t sides() const override { return 4; }
};
struct Circle : Shape, Named {
    uint64_t area(uint64_t x) const override { return (x & 1) ? x * 3 : x / 3; }
    uint64_t name(uint64_t x) const override { return mix(x, 17); }
    const Circle *self() const override { return this; }
};
struct Tagged : virtual Counted, Shape {
    uint64_t area(uint64_t x) const override { return x ^ (x >> 9); }
    uint64_t tally(uint64_t x) override { return mix(x, count += 2); }
};
struct Both final : Tagged, Named {
    uint64_t area(uint64_t x) const override { return Tagged::area(x) + 5; }
    uint64_t name(uint64_t x) const override { return x - count; }
    const Both *self() const override { return this; }
    uint64_t sides() const override { return 9; }
};

APART uint64_t visit(const Shape &s, uint64_t x) {
    x = s.self()->area(x) + s.sides();
    if (auto *named = dynamic_cast<const Named *>(&s)) x = named->name(x);
    if (typeid(s) == typeid(Both)) x ^= 0xb07;
    return x;
}

APART uint64_t tally(Counted &c, uint64_t x) { return c.tally(x); }

APART uint64_t by_member(const Shape &s, uint64_t (Shape::*member)(uint64_t) const, uint64_t x) {
    return (s.*member)(x);
}

static uint64_t round_once() {
    std::vector<std::unique_ptr<Shape>> shapes;
    uint64_t r = guest_seed, x = 1;
    for (int i = 0; i < 200; i++) {
        switch (next_random(&r) % 4) {
        case 0: shapes.push_back(std::make_unique<Square>()); break;
        case 1: shapes.push_back(std::make_unique<Circle>()); break;
        case 2: shapes.push_back(std::make_unique<Tagged>()); break;
        default: shapes.push_back(std::make_unique<Both>());
        }
    }
    for (int i = 0; i < 20; i++)
        for (auto &s : shapes) {
            x = mix(x, visit(*s, x));
            if (auto *c = dynamic_cast<Counted *>(s.get())) x = mix(x, tally(*c, x));
            x = mix(x, by_member(*s, &Shape::area, x));
        }
    return x;
}

int main() { return guest_run("virtuals", round_once); }
