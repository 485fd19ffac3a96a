// Two threads that call through virtual tables, from a loop that they never leave: virtual PAGE.
#include "page.h"
#include <cstdio>
#include <pthread.h>

struct Shape {
    uint64_t size = 3;
    virtual ~Shape() {}
    virtual uint64_t area() const { return size; }
    virtual uint64_t turn(uint64_t x) const {
        for (unsigned i = 0; i < (x & 7); i++) x = mix(x, i);
        return x;
    }
};

struct Circle : Shape {
    uint64_t area() const override { return size * size + 1; }
};

APART static uint64_t measure(const Shape &shape, uint64_t x) { return mix(shape.turn(x), shape.area()); }

// Objects in `measure` nearly always have the same table; objects here have either.
APART static uint64_t rarely(const Shape &shape, uint64_t x) { return x + shape.area(); }

APART static uint64_t round_once() {
    Shape shape;
    Circle circle;
    uint64_t x = 1;
    for (unsigned i = 0; i < 5000; i++) {
        x = measure(i % 100 ? shape : circle, x);
        x = rarely(x & 1 ? shape : circle, x);
    }
    return x;
}

APART static uint64_t spin(unsigned counter) {
    uint64_t first = round_once();
    uint64_t idle = 1;
    while (!page->stop) {
        if (round_once() != first) __builtin_trap();
        // Enough work of its own that samples fall into it.
        for (unsigned i = 0; i < 20000; i++) idle = mix(idle, i);
        page->work[counter] = page->work[counter] + 1 + (idle == 0);
    }
    return first;
}

static void *other(void *) {
    spin(1);
    return nullptr;
}

int main(int, char **argv) {
    page_open(argv[1]);
    pthread_t thread;
    pthread_create(&thread, nullptr, other, nullptr);
    uint64_t digest = spin(0);
    pthread_join(thread, nullptr);
    printf("%016llx\n", static_cast<unsigned long long>(digest));
    return 0;
}
